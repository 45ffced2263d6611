"""The messages of ApiVersions.

Brokers ask each other in versions 0 to 2, whose responses have the header of all others: the response of version 3 has an older
header than its body.

Source: ApiVersionsRequest.json, ApiVersionsResponse.json.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, String, since, tag


class ApiVersionsRequest(Message):
    client_software_name: Annotated[String, since(3)] = ""
    client_software_version: Annotated[String, since(3)] = ""


class ApiVersion(Message):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Message):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Message):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], tag(0, since=3)] = []
    finalized_features_epoch: Annotated[Int64, tag(1, since=3)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], tag(2, since=3)] = []
    zk_migration_ready: Annotated[Bool, tag(3, since=3)] = False


API_VERSIONS = RequestType(18, ApiVersionsRequest, ApiVersionsResponse, range(3), flexible_since=None)
