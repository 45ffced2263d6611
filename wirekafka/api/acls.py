"""The answers of DescribeAcls, CreateAcls and DeleteAcls on a broker without an authorizer.

Source: kafka.server.AclApis (the case without an authorizer). ClientCompatibilityTest, kafka-acls.sh and several other tools send
these requests, and understand SECURITY_DISABLED as "no ACLs exist".
"""

from __future__ import annotations

from typing import Any

from wirekafka.api.registry import Call
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation

LITERAL_PATTERN = 3
"""PatternType.LITERAL, for versions whose messages have no pattern type (org.apache.kafka.common.resource.PatternType)."""


def refusal(call: Call[Any], operation: Operation) -> KafkaError:
    """Returns the error of a request about ACLs: SECURITY_DISABLED, or CLUSTER_AUTHORIZATION_FAILED without permission."""
    try:
        call.authorize(operation, CLUSTER)
    except KafkaError as error:
        return error
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
