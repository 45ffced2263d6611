from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wirekafka.api.api_versions import api_versions, unsupported_version
from wirekafka.api.cluster_versions import CLUSTER_VERSIONS, MEMBERS_ONLY
from wirekafka.api.registry import Api, Call, all_apis, served_versions
from wirekafka.broker import Broker
from wirekafka.config import BrokerConfig, ConfigError
from wirekafka.errors import ErrorCode
from wirekafka.metadata.cluster_features import ClusterFeatures
from wirekafka.metadata.features import Features
from wirekafka.testing.memory_store import MemoryStore
from wirekafka.tests.server.frames import client
from wirekafka.wire.messages.api_versions import ApiVersionsRequest

MEMBER = {"zookeeper.connect": "localhost:2181", "broker.id": "1"}
README = (Path(__file__).parents[3] / "README.md").read_text()


def apis_without_a_cluster() -> list[Api]:
    return [api for api in all_apis() if api.key not in MEMBERS_ONLY]


def broker_that_hides(text: str = "", **levels: int) -> Any:
    """Opens a broker without data; the levels of features, with `_` for `.`, are those that an earlier broker stored."""
    config = BrokerConfig.load(None, {"wirekafka.api.versions.max": text})
    store = MemoryStore()
    store.feature_levels = {name.replace("_", "."): level for name, level in levels.items()}
    store.features_epoch = len(levels)
    return SimpleNamespace(config=config, topics=SimpleNamespace(features=Features(config, store)))


def ask(version: int, name: str = "", software_version: str = "") -> tuple[Any, Call[ApiVersionsRequest]]:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
    call = Call(request, version, "test", client(), 0)
    return api_versions(broker_that_hides(), call), call


@pytest.mark.parametrize("version", [0, 1, 2])
def test_list_is_what_the_registry_serves(version: int) -> None:
    response, _ = ask(version)
    assert response.error_code == 0
    assert [api.api_key for api in response.api_keys] == [api.key for api in apis_without_a_cluster()]
    assert {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys} == {
        api.key: api.versions for api in apis_without_a_cluster()
    }


def test_hidden_versions_are_not_listed() -> None:
    call = Call(ApiVersionsRequest(), 0, "test", client(), 0)
    response: Any = api_versions(broker_that_hides("Fetch:12,DescribeCluster:none"), call)
    listed = {api.api_key: api for api in response.api_keys}
    assert listed[1].max_version == 12
    assert 60 not in listed
    assert set(listed) == {api.key for api in apis_without_a_cluster()} - {60}


def test_member_of_a_cluster_serves_what_its_other_brokers_serve() -> None:
    served = served_versions(BrokerConfig.load(None, MEMBER))
    assert {key: versions[-1] for key, versions in served.items()} == {
        api.key: min(api.versions[-1], CLUSTER_VERSIONS[api.key]) for api in all_apis() if api.key in CLUSTER_VERSIONS
    }
    assert served[0] == range(12)
    assert 6 in served
    assert not {68, 69, 74, 75, 76} & served.keys()


def test_member_serves_what_finalized_features_need() -> None:
    config = BrokerConfig.load(None, MEMBER)
    features = ClusterFeatures(config)
    assert served_versions(config, features.level) == served_versions(config)
    features.follow({name: levels.most for name, levels in features.supported.items()}, 3)
    served = {key: versions[-1] for key, versions in served_versions(config, features.level).items()}
    assert served == CLUSTER_VERSIONS | {
        0: 12,
        26: 5,
        27: 2,
        28: 5,
        68: 1,
        69: 1,
        76: 1,
        77: 1,
        78: 2,
        79: 2,
        83: 0,
        84: 0,
        85: 1,
        86: 0,
        87: 1,
        90: 1,
        91: 0,
        92: 0,
    }
    features.follow({}, 4)
    assert served_versions(config, features.level) == served_versions(config)


def test_member_reports_its_features_and_their_epoch() -> None:
    config = BrokerConfig.load(None, MEMBER)
    features = ClusterFeatures(config)
    broker = cast(Broker, SimpleNamespace(config=config, topics=SimpleNamespace(features=features)))
    response = features_of(broker)
    assert (response.finalized_features, response.finalized_features_epoch) == ([], 0)
    assert {each.name: (each.min_version, each.max_version) for each in response.supported_features} == {
        "group.version": (0, 1),
        "share.version": (0, 1),
        "transaction.version": (0, 2),
    }
    features.follow({"transaction.version": 2}, 5)
    response = features_of(broker)
    assert [(each.name, each.max_version_level) for each in response.finalized_features] == [("transaction.version", 2)]
    assert response.finalized_features_epoch == 5


@pytest.mark.parametrize(("column", "settings"), [(2, {}), (3, MEMBER)])
def test_table_of_the_readme_is_what_each_kind_of_broker_serves(column: int, settings: dict[str, str]) -> None:
    cells = [[cell.strip() for cell in row.strip("| ").split("|")] for row in re.findall(r"^\| \d.*\|$", README, re.MULTILINE)]
    table = {int(row[0]): row[column] for row in cells if len(row) > column and row[column]}
    assert table == {key: f"{each[0]}-{each[-1]}" for key, each in served_versions(BrokerConfig.load(None, settings)).items()}


def test_member_of_a_cluster_may_hide_more() -> None:
    settings = {**MEMBER, "wirekafka.api.versions.max": "Fetch:12,Produce:13"}
    served = served_versions(BrokerConfig.load(None, settings))
    assert (served[1][-1], served[0][-1]) == (12, 11)


@pytest.mark.parametrize("text", ["Fletch:12", "ApiVersions:none"])
def test_hiding_what_is_not_there_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"wirekafka\.api\.versions\.max"):
        served_versions(broker_that_hides(text).config)


def test_produce_is_reported_from_version_0() -> None:
    """Without this entry, librdkafka does not compress (KAFKA-18659)."""
    response, _ = ask(0)
    assert response.api_keys[0].api_key == 0
    assert response.api_keys[0].min_version == 0


def features_of(broker: Any) -> Any:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    return api_versions(broker, Call(request, 4, "test", client(), 0))


def test_features_are_supported_and_finalized_at_their_newest_version() -> None:
    response = features_of(broker_that_hides())
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    assert supported == {
        "group.version": (0, 1),
        "metadata.version": (30, 30),
        "share.version": (0, 1),
        "transaction.version": (0, 2),
    }
    assert {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features} == {
        name: (most, most) for name, (_, most) in supported.items()
    }
    assert response.finalized_features_epoch == 0


def test_features_are_finalized_as_they_were_changed() -> None:
    response = features_of(broker_that_hides(transaction_version=1, group_version=0))
    assert {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features} == {
        "metadata.version": (30, 30),
        "share.version": (1, 1),
        "transaction.version": (1, 1),
    }
    assert [each.name for each in response.supported_features if each.name == "group.version"]
    assert response.finalized_features_epoch == 2


@pytest.mark.parametrize("hidden", ["Produce:11", "EndTxn:4", "TxnOffsetCommit:none"])
def test_features_that_need_hidden_versions_are_not_there(hidden: str) -> None:
    response = features_of(broker_that_hides(f"{hidden},ConsumerGroupHeartbeat:none,DescribeLogDirs:4"))
    features = {each.name: each.max_version_level for each in response.finalized_features}
    assert features["transaction.version"] == 1
    assert "group.version" not in features
    assert "metadata.version" not in features
    assert features["share.version"] == 1


def test_supported_features_from_0_are_kept_from_clients_of_version_3() -> None:
    """These clients take a range that begins at 0 for a broken response (KIP-1022)."""
    response, _ = ask(3, "librdkafka", "2.16.0")
    assert [each.name for each in response.supported_features] == ["metadata.version"]
    assert [each.name for each in response.finalized_features if each.name == "transaction.version"]


@pytest.mark.parametrize(("name", "version"), [("apache-kafka-java", "4.3.1"), ("a", "0"), ("x.y-z", "1.0-rc.2")])
def test_software_of_the_client_is_kept(name: str, version: str) -> None:
    response, call = ask(3, name, version)
    assert response.error_code == 0
    assert (call.client.software_name, call.client.software_version) == (name, version)


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a", ""), ("-a", "1"), ("a-", "1"), ("a b", "1"), ("a", "1\n"), ("ä", "1"), ("a", ".1")]
)
def test_software_that_breaks_the_pattern_is_an_invalid_request(name: str, version: str) -> None:
    response, call = ask(3, name, version)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.api_keys == []
    assert call.client.software_name is None


def test_version_that_is_not_served_is_told_the_range_of_api_versions() -> None:
    response = unsupported_version(range(5))
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(18, 0, 4)]
