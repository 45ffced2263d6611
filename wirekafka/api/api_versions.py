"""ApiVersions: which APIs this broker serves, in which versions.

Behaviour:
    Lists every API of the registry with the versions that are served, in the order of their keys; it can be asked at any time.
    Versions that wirekafka.api.versions.max hides are not listed, and not served either; nor are features that need them.
    A request of version 3 or later names the client's software and its version, which the broker keeps for its log and its
    consoles; names that break Kafka's pattern are answered with INVALID_REQUEST. A request of a version that is not served is
    answered in version 0 with UNSUPPORTED_VERSION and the range of ApiVersions itself, whatever its body.

Versions:
    0. The list, with one error code.
    1. `throttle_time_ms`.
    2. As 1 (KIP-219: clients throttle themselves).
    3. Flexible; the client's software and its version (KIP-511); supported and finalized features (KIP-584). The response keeps
       header 0, for the client does not know yet what the broker speaks.
    4. Supported features whose range begins at 0 are listed too (KIP-1022); before, they are left out.

Differs from Apache Kafka:
    There is no kraft.version, for there are no controllers, no eligible.leader.replicas.version, for no partition has followers,
    and no streams.version. The one metadata.version that is supported is 30, that of 4.3.
    Produce is served from version 0, so that librdkafka goes on compressing (KAFKA-18659).

Source: kafka.server.ApiVersionManager; org.apache.kafka.common.requests.ApiVersionsRequest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import API_VERSIONS_KEY, Call, served_versions, serves
from wirekafka.errors import ErrorCode
from wirekafka.wire.types import Bool, Int16, Int32, Int64, Message, String, since, tag

if TYPE_CHECKING:
    from wirekafka.broker import Broker


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


FIRST_VERSION_WITH_CLIENT_NAMES = 3
FIRST_VERSION_WITH_FEATURES_FROM_0 = 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


@serves(API_VERSIONS_KEY, ApiVersionsRequest, ApiVersionsResponse, versions=range(5), flexible_since=3)
def api_versions(broker: Broker, call: Call[ApiVersionsRequest]) -> ApiVersionsResponse:
    """Lists what is served, and remembers what the client calls itself."""
    request = call.request
    if call.version >= FIRST_VERSION_WITH_CLIENT_NAMES:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        call.client.software_name, call.client.software_version = name, version
    features = broker.topics.features
    return ApiVersionsResponse(
        api_keys=[_range_of(key, versions) for key, versions in served_versions(broker.config).items()],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels.least, max_version=levels.most)
            for name, levels in features.supported.items()
            if levels.least or call.version >= FIRST_VERSION_WITH_FEATURES_FROM_0
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in features.finalized.items()
        ],
    )


def unsupported_version(served: range) -> ApiVersionsResponse:
    """The answer, in version 0, to a version of ApiVersions that is not among those served.

    Source: KIP-511.
    """
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range_of(API_VERSIONS_KEY, served)])


def _range_of(key: int, versions: range) -> ApiVersion:
    return ApiVersion(api_key=key, min_version=versions[0], max_version=versions[-1])
