"""DeleteAcls: removes the access control entries that match filters.

Behaviour:
    Each filter gets SECURITY_DISABLED, because wirekafka has no authorizer.

Versions:
    0: names are literal. 1: the type of the pattern (KIP-290). 2: flexible. 3: user principals of delegation tokens (KIP-373).

Differs from Apache Kafka:
    Version 0, which Apache Kafka 4 dropped, is served.

Source: kafka.server.AclApis.handleDeleteAcls; DeleteAclsRequest.getErrorResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.acls import LITERAL_PATTERN, refusal
from wirekafka.api.registry import Call, serves
from wirekafka.metadata.operations import Operation
from wirekafka.wire.types import Int8, Int16, Int32, Message, NullableString, String, nullable, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class DeleteAclsFilter(Message):
    resource_type_filter: Int8 = 0
    resource_name_filter: Annotated[NullableString, nullable(0)] = ""
    pattern_type_filter: Annotated[Int8, since(1)] = LITERAL_PATTERN
    principal_filter: Annotated[NullableString, nullable(0)] = ""
    host_filter: Annotated[NullableString, nullable(0)] = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsRequest(Message):
    filters: list[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Annotated[Int8, since(1)] = LITERAL_PATTERN
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DeleteAclsFilterResult(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []


@serves(31, DeleteAclsRequest, DeleteAclsResponse, versions=range(4), flexible_since=2)
def delete_acls(broker: Broker, call: Call[DeleteAclsRequest]) -> DeleteAclsResponse:
    """Answers SECURITY_DISABLED for each filter."""
    error = refusal(call, Operation.ALTER)
    result = DeleteAclsFilterResult(error_code=error.code, error_message=error.message)
    return DeleteAclsResponse(filter_results=[result] * len(call.request.filters))
