"""ApiVersions: the APIs that this broker serves, and their versions.

Behaviour:
    The response lists every served API with its versions, in the order of the API keys. Clients may send the request at any time.
    A member of a cluster lists the APIs and versions of Apache Kafka 3.9 with ZooKeeper, and those of finalized features. Its
    features are off until the controller has finalized them for all brokers, and it has no metadata.version.
    On a listener that behaves as a release of Apache Kafka or Redpanda, or as a service (wirekafka.api.release), only its
    versions are listed and served. Releases of Apache Kafka before 4.0, releases of Redpanda and services list no features.
    Versions that wirekafka.api.versions.max hides are not listed and not served, and features that need them are not listed.
    A request of version 3 or later names the client's software and its version, which the broker uses in its log. Names that do
    not match Kafka's pattern get INVALID_REQUEST. A request in a version that is not served, whatever its body, gets a response
    in version 0 with UNSUPPORTED_VERSION and the versions of ApiVersions.

Versions:
    0. The list, with one error code.
    1. `throttle_time_ms`.
    2. As 1 (KIP-219: clients throttle themselves).
    3. Flexible; the client's software and its version (KIP-511); supported and finalized features (KIP-584). The response keeps
       header 0, because the client does not know the broker's versions yet.
    4. Supported features whose range begins at 0 are listed too (KIP-1022); earlier versions leave them out.

Differs from Apache Kafka:
    The features kraft.version, eligible.leader.replicas.version and streams.version are not listed, because wirekafka has no
    KRaft controllers, no eligible leader replicas (KIP-966) and no streams groups. The only supported metadata.version is 30,
    that of Apache Kafka 4.3.
    Produce is served from version 0, so that librdkafka keeps compressing (KAFKA-18659).

Source: kafka.server.ApiVersionManager; org.apache.kafka.common.requests.ApiVersionsRequest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wirekafka.api.registry import API_VERSIONS_KEY, Call, serves, versions_on
from wirekafka.api.releases import has_features, releases_of
from wirekafka.errors import ErrorCode
from wirekafka.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


PRODUCE_KEY = 0
FIRST_VERSION_WITH_CLIENT_NAMES = 3
FIRST_VERSION_WITH_FEATURES_FROM_0 = 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


@serves(API_VERSIONS_KEY, ApiVersionsRequest, ApiVersionsResponse, versions=range(5), flexible_since=3)
def api_versions(broker: Broker, call: Call[ApiVersionsRequest]) -> ApiVersionsResponse:
    """Lists the served APIs, and stores the name and version of the client's software."""
    request = call.request
    if call.version >= FIRST_VERSION_WITH_CLIENT_NAMES:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        call.client.software_name, call.client.software_version = name, version
    features, listener = broker.topics.features, call.client.listener
    served = versions_on(broker.config, listener, features.level)
    release = releases_of(broker.config).get(listener)
    if release is not None and PRODUCE_KEY in served:
        # Apache Kafka 4 serves version 3 and later, and lists 0, so that librdkafka keeps compressing (KAFKA-18659).
        served[PRODUCE_KEY] = range(served[PRODUCE_KEY].stop)
    if not has_features(release):
        return ApiVersionsResponse(api_keys=[_range_of(key, versions) for key, versions in served.items()])
    return ApiVersionsResponse(
        api_keys=[_range_of(key, versions) for key, versions in served.items()],
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
    """Returns the response of version 0 for a version of ApiVersions that is not served.

    Releases before KIP-511, which came with version 3, list nothing.

    Source: KIP-511.
    """
    listed = [_range_of(API_VERSIONS_KEY, served)] if FIRST_VERSION_WITH_CLIENT_NAMES in served else []
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=listed)


def _range_of(key: int, versions: range) -> ApiVersion:
    return ApiVersion(api_key=key, min_version=versions[0], max_version=versions[-1])
