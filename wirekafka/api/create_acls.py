"""CreateAcls: adds access control entries.

Behaviour:
    Each entry gets SECURITY_DISABLED, because wirekafka has no authorizer.

Versions:
    0: names are literal. 1: the type of the pattern (KIP-290). 2: flexible. 3: user principals of delegation tokens (KIP-373).

Differs from Apache Kafka:
    Version 0, which Apache Kafka 4 dropped, is served.

Source: kafka.server.AclApis.handleCreateAcls; CreateAclsRequest.getErrorResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.acls import LITERAL_PATTERN, refusal
from wirekafka.api.registry import Call, serves
from wirekafka.metadata.operations import Operation
from wirekafka.wire.types import Int8, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class AclCreation(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    resource_pattern_type: Annotated[Int8, since(1)] = LITERAL_PATTERN
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Message):
    creations: list[AclCreation] = []


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""


class CreateAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []


@serves(30, CreateAclsRequest, CreateAclsResponse, versions=range(4), flexible_since=2)
def create_acls(broker: Broker, call: Call[CreateAclsRequest]) -> CreateAclsResponse:
    """Answers SECURITY_DISABLED for each entry."""
    error = refusal(call, Operation.ALTER)
    result = AclCreationResult(error_code=error.code, error_message=error.message)
    return CreateAclsResponse(results=[result] * len(call.request.creations))
