"""What DescribeAcls, CreateAcls and DeleteAcls answer on a broker without an authorizer.

Source: kafka.server.AclApis (the case without an authorizer); ClientCompatibilityTest, kafka-acls.sh and several other tools ask
for ACLs, and take SECURITY_DISABLED for "there are none".
"""

from __future__ import annotations

from typing import Any

from wirekafka.api.registry import Call
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.operations import CLUSTER, Operation

LITERAL_PATTERN = 3
"""The type of pattern of versions that have no other (org.apache.kafka.common.resource.PatternType)."""


def refusal(call: Call[Any], operation: Operation) -> KafkaError:
    """The error of a request about ACLs: SECURITY_DISABLED; CLUSTER_AUTHORIZATION_FAILED without permission for `operation`."""
    try:
        call.authorize(operation, CLUSTER)
    except KafkaError as error:
        return error
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
