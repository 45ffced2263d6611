"""`wirekafka cluster features`, over a cluster whose answers the test has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from wirekafka.api.metadata import MetadataResponse, MetadataResponseBroker
from wirekafka.api.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.feature_levels import API_VERSIONS_WITH_FEATURES, Feature, finalize_newest, read_features
from wirekafka.cli.cluster.features import print_features
from wirekafka.errors import ErrorCode
from wirekafka.wire.codec import encode
from wirekafka.wire.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from wirekafka.wire.requests import RequestType


class Cluster:
    """Brokers that support some features; the first one is the controller."""

    def __init__(self, supported: Mapping[int, Mapping[str, int]], finalized: Mapping[str, int] = {}) -> None:
        self.supported = supported
        self.finalized = dict(finalized)
        self.refusal = ErrorCode.NONE
        self.asked: list[dict[str, int]] = []

    def metadata(self, *, has_topics: bool = True) -> MetadataResponse:
        return MetadataResponse(brokers=[MetadataResponseBroker(node_id=each) for each in self.supported])

    def ask(self, kind: RequestType[Any, Any], request: Any, broker_id: int | None = None) -> Any:
        assert broker_id is not None
        supported = [SupportedFeatureKey(name=name, max_version=level) for name, level in self.supported[broker_id].items()]
        is_behind = broker_id != min(self.supported)
        finalized = [FinalizedFeatureKey(name=name, max_version_level=level) for name, level in self.finalized.items()]
        return ApiVersionsResponse(
            supported_features=supported,
            finalized_features=[] if is_behind else finalized,
            finalized_features_epoch=3 if is_behind else 4,
        )

    def ask_controller(self, kind: RequestType[Any, Any], request: Any, error_of: Any) -> Any:
        assert isinstance(request, UpdateFeaturesRequest)
        self.asked.append({each.feature: each.max_version_level for each in request.feature_updates})
        if not self.refusal:
            self.finalized |= self.asked[-1]
        return UpdateFeaturesResponse(error_code=self.refusal, error_message="because")


def test_levels_are_those_of_all_brokers_and_of_the_newest_epoch() -> None:
    cluster = Cluster({1: {"a": 2, "b": 1}, 2: {"a": 1}}, {"a": 1})
    assert read_features(cluster) == [Feature("a", 1, 1, ()), Feature("b", 0, 0, (2,))]


def test_newest_levels_are_finalized_in_one_request() -> None:
    cluster = Cluster({1: {"a": 2, "b": 1}, 2: {"a": 2, "b": 1}}, {"b": 1})
    finalize_newest(cluster, read_features(cluster))
    assert cluster.asked == [{"a": 2}]
    finalize_newest(cluster, read_features(cluster))
    assert len(cluster.asked) == 1


def test_nothing_is_finalized_while_a_broker_lacks_a_feature() -> None:
    cluster = Cluster({1: {"a": 2}, 7: {}})
    with pytest.raises(ClusterCommandError, match="the brokers 7 lack features"):
        finalize_newest(cluster, read_features(cluster))
    assert cluster.asked == []


def test_refusal_of_the_controller_is_told() -> None:
    cluster = Cluster({1: {"a": 2}})
    cluster.refusal = ErrorCode.INVALID_REQUEST
    with pytest.raises(ClusterCommandError, match=r"refuses the levels \(INVALID_REQUEST\): because"):
        finalize_newest(cluster, read_features(cluster))


def test_table_has_a_row_for_each_feature(capsys: pytest.CaptureFixture[str]) -> None:
    print_features([Feature("group.version", 0, 1, ()), Feature("x", 2, 0, (3, 4))])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows[0][:3] == ["feature", "finalized", "newest"]
    assert rows[2:] == [["group.version", "off", "1"], ["x", "2", "-", "3,4"]]


def test_response_with_features_has_the_old_header() -> None:
    body = encode(ApiVersionsResponse(finalized_features_epoch=7), 4, True)
    assert API_VERSIONS_WITH_FEATURES.read_response(b"\0\0\0\1" + body, 4).finalized_features_epoch == 7
