"""DescribeAcls: lists access control entries.

Behaviour:
    The answer is SECURITY_DISABLED, because wirekafka has no authorizer.

Versions:
    0: names are literal. 1: the type of the pattern (KIP-290). 2: flexible. 3: user principals of delegation tokens (KIP-373).

Differs from Apache Kafka:
    Version 0, which Apache Kafka 4 dropped, is served.

Source: kafka.server.AclApis.handleDescribeAcls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.acls import LITERAL_PATTERN, refusal
from wirekafka.api.registry import Call, serves
from wirekafka.metadata.operations import Operation
from wirekafka.wire.types import Int8, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class DescribeAclsRequest(Message):
    resource_type_filter: Int8 = 0
    resource_name_filter: Annotated[NullableString, nullable(0)] = ""
    pattern_type_filter: Annotated[Int8, since(1)] = LITERAL_PATTERN
    principal_filter: Annotated[NullableString, nullable(0)] = ""
    host_filter: Annotated[NullableString, nullable(0)] = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Annotated[Int8, since(1)] = LITERAL_PATTERN
    acls: list[AclDescription] = []


class DescribeAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resources: list[DescribeAclsResource] = []


@serves(29, DescribeAclsRequest, DescribeAclsResponse, versions=range(4), flexible_since=2)
def describe_acls(broker: Broker, call: Call[DescribeAclsRequest]) -> DescribeAclsResponse:
    """Answers SECURITY_DISABLED."""
    error = refusal(call, Operation.DESCRIBE)
    return DescribeAclsResponse(error_code=error.code, error_message=error.message)
