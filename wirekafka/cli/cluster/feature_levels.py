"""The features of a cluster: what each broker supports, what is finalized, and the change of levels.

Source: org.apache.kafka.tools.FeatureCommand; KIP-584.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from wirekafka import __version__
from wirekafka.api.metadata import MetadataResponse
from wirekafka.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from wirekafka.cli.cluster.client import request_type
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.errors import ErrorCode
from wirekafka.metadata.features import UpgradeType
from wirekafka.wire.codec import Buffer
from wirekafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

TIMEOUT_MS = 10_000
"""How long the controller may wait until it follows the new levels itself."""


class Client(Protocol):
    """Asks the brokers of a cluster; a `ClusterClient`."""

    def metadata(self, *, has_topics: bool = True) -> MetadataResponse:
        """Finds the brokers."""

    def ask(self, kind: RequestType[Q, A], request: Q, broker_id: int | None = None) -> A:
        """Asks a broker."""

    def ask_controller(self, kind: RequestType[Q, A], request: Q, error_of: Callable[[A], int]) -> A:
        """Asks the controller."""


class _ApiVersions(RequestType[ApiVersionsRequest, ApiVersionsResponse]):
    """ApiVersions in the versions with features, whose responses have the header 0 all the same (KIP-511)."""

    def _body_of(self, frame: Buffer, version: int) -> memoryview:
        return memoryview(frame)[4:]


API_VERSIONS_WITH_FEATURES = _ApiVersions(18, ApiVersionsRequest, ApiVersionsResponse, range(3, 5), flexible_since=3)


class Feature(NamedTuple):
    """A feature of a cluster.

    Attributes:
        finalized: the level that is in effect; 0 if the feature is off.
        newest: the newest level that all brokers support; 0 if a broker lacks the feature.
        lacking: the brokers that lack the feature.
    """

    name: str
    finalized: int
    newest: int
    lacking: tuple[int, ...]


def read_features(client: Client) -> list[Feature]:
    """Asks every broker for its features; returns those that any broker has, by name.

    Raises:
        ClusterCommandError: a broker does not answer.
    """
    brokers = sorted(each.node_id for each in client.metadata(has_topics=False).brokers)
    request = ApiVersionsRequest(client_software_name="wirekafka", client_software_version=__version__)
    answers = {each: client.ask(API_VERSIONS_WITH_FEATURES, request, each) for each in brokers}
    supported = {
        broker_id: {each.name: each.max_version for each in answer.supported_features} for broker_id, answer in answers.items()
    }
    newest_answer = max(answers.values(), key=lambda answer: answer.finalized_features_epoch)
    finalized = {each.name: each.max_version_level for each in newest_answer.finalized_features}
    return [
        Feature(
            name,
            finalized.get(name, 0),
            min(levels.get(name, 0) for levels in supported.values()),
            tuple(broker_id for broker_id, levels in supported.items() if name not in levels),
        )
        for name in sorted({*finalized, *(name for levels in supported.values() for name in levels)})
    ]


def finalize_newest(client: Client, found: Sequence[Feature]) -> None:
    """Raises each feature to the newest level that all brokers support.

    Raises:
        ClusterCommandError: a broker lacks a feature; the controller refuses the levels, or does not answer.
    """
    lacking = sorted({broker_id for each in found for broker_id in each.lacking})
    if lacking:
        names = ", ".join(map(str, lacking))
        raise ClusterCommandError(f"the brokers {names} lack features: replace them by wirekafka before features are finalized")
    updates = [
        FeatureUpdateKey(feature=each.name, max_version_level=each.newest, upgrade_type=UpgradeType.UPGRADE)
        for each in found
        if each.finalized < each.newest
    ]
    if not updates:
        return
    kind = request_type(UpdateFeaturesRequest, UpdateFeaturesResponse)
    request = UpdateFeaturesRequest(timeout_ms=TIMEOUT_MS, feature_updates=updates)
    response = client.ask_controller(kind, request, lambda answer: answer.error_code)
    if response.error_code:
        error = ErrorCode.of(response.error_code).name
        raise ClusterCommandError(f"the controller refuses the levels ({error}): {response.error_message}")
    refused = [each for each in response.results if each.error_code]
    if refused:
        raise ClusterCommandError(f"the controller refuses a level of {refused[0].feature}: {refused[0].error_message}")
