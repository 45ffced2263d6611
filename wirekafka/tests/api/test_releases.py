"""Listeners that behave as a release of Apache Kafka or Redpanda, or as a service."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.index import INDEX
from wirekafka.api.registry import Client, versions_on
from wirekafka.api.releases import SETTING, release_versions, releases_of
from wirekafka.config import BrokerConfig, ConfigError
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.server.dispatch import Dispatcher
from wirekafka.testing.data_plane import NOW_MS, open_caller
from wirekafka.tests.server.frames import request
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 17, 36, 48, 49
ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS, CONSUMER_GROUP_HEARTBEAT = 43, 45, 68
LISTENERS = "NEW://:9092,OLD://:9093"
PROTOCOLS = "NEW:PLAINTEXT,OLD:PLAINTEXT"


def config(release: str, **settings: str) -> BrokerConfig:
    return BrokerConfig({"wirekafka.api.release": release, **settings})


def kafka_releases() -> list[str]:
    return [name for name in release_versions() if name[0].isdecimal()]


def redpanda_releases() -> list[str]:
    return [name for name in release_versions() if name.startswith("redpanda-")]


def test_table_has_every_release_and_grows_from_one_to_the_next() -> None:
    names = kafka_releases()
    assert (len(names), *names[:2], names[-1]) == (31, "0.8.2", "0.9", "4.3")
    newest = [release_versions()[name][FETCH][-1] for name in names]
    assert newest == sorted(newest)


def test_setting_names_the_releases_of_redpanda_that_the_table_has() -> None:
    names = redpanda_releases()
    assert (names[0], names[-1]) == ("redpanda-22.3", "redpanda-24.3")
    assert f"{names[0]} to {names[-1]}" in BROKER_SETTINGS[SETTING].documentation


@pytest.mark.parametrize("release", redpanda_releases())
def test_listener_serves_exactly_what_redpanda_serves_but_sasl_and_quotas(release: str) -> None:
    served = versions_on(config(release), "PLAINTEXT")
    missing = {SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS}
    assert served == {key: versions for key, versions in release_versions()[release].items() if key not in missing}


def test_service_without_documented_versions_serves_those_of_the_broker_and_no_other_apis() -> None:
    served = versions_on(config("warpstream"), "PLAINTEXT")
    assert served == {key: range(INDEX[key].first, INDEX[key].last + 1) for key in release_versions()["warpstream"]}
    assert not {ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS, CONSUMER_GROUP_HEARTBEAT} & set(served)


@pytest.mark.parametrize("release", list(release_versions()))
def test_listener_serves_only_what_its_release_and_the_broker_have(release: str) -> None:
    for key, versions in versions_on(config(release), "PLAINTEXT").items():
        assert INDEX[key].first <= versions[0] <= versions[-1] <= INDEX[key].last
        assert {versions[0], versions[-1]} <= set(release_versions()[release][key])


@pytest.mark.parametrize(
    ("release", "key", "expected"),
    [
        ("0.8.2", API_VERSIONS, None),
        ("0.10.0", API_VERSIONS, range(1)),
        ("0.11", PRODUCE, range(4)),
        ("2.8", FETCH, range(13)),
        ("3.9", FETCH, range(18)),
        ("4.0", FETCH, range(4, 18)),
        ("redpanda-22.3", METADATA, range(8)),
        ("redpanda-24.3", FETCH, range(4, 12)),
    ],
)
def test_versions_are_those_of_the_release(release: str, key: int, expected: range | None) -> None:
    assert versions_on(config(release), "PLAINTEXT").get(key) == expected


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("2.99", "0.8.2, 0.9"),
        ("latest", "redpanda-24.3, warpstream"),
        ("a:b:c", "RELEASE or LISTENER:RELEASE"),
        ("NONE:2.8", "the names of listeners: PLAINTEXT"),
    ],
)
def test_unknown_release_or_listener_is_refused(release: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        releases_of(config(release))


def test_member_of_a_cluster_behaves_as_no_release() -> None:
    member = BrokerConfig.load(None, {"zookeeper.connect": "localhost:2181", "broker.id": "1", "wirekafka.api.release": "2.8"})
    with pytest.raises(ConfigError, match="nothing in a cluster"):
        releases_of(member)


class Asking:
    """A client of each listener of a broker."""

    def __init__(self, broker: Any) -> None:
        self._dispatcher = Dispatcher(broker)

    def ask(self, listener: str, key: int, version: int, body: bytes = b"") -> Any:
        client = Client("192.0.2.7", 40000, listener, "192.0.2.1", 9092)
        return self._dispatcher.handle(memoryview(bytearray(request(key, version, 1, body)))[4:], client, NOW_MS)

    def api_versions(self, listener: str, version: int) -> ApiVersionsResponse:
        is_flexible = version >= 3
        body = encode(ApiVersionsRequest(client_software_name="a", client_software_version="1"), version, is_flexible)
        data = self.ask(listener, API_VERSIONS, version, b"\0" * is_flexible + body)
        response: ApiVersionsResponse = decode(ApiVersionsResponse, version, is_flexible, memoryview(data)[8:])
        return response


def test_each_listener_behaves_as_its_release(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"listeners": LISTENERS, "listener_security_protocol_map": PROTOCOLS, "wirekafka_api_release": "OLD:0.10.2"}
        async with open_caller(tmp_path, **settings, inter_broker_listener_name="NEW") as caller:
            asking = Asking(caller.broker)
            found = {each.api_key: (each.min_version, each.max_version) for each in asking.api_versions("OLD", 0).api_keys}
            assert (found[PRODUCE], found[FETCH], found[METADATA]) == ((0, 2), (0, 3), (0, 2))
            assert 22 not in found
            newer = asking.api_versions("NEW", 3)
            assert {each.api_key: each.max_version for each in newer.api_keys}[FETCH] == INDEX[FETCH].last
            assert newer.supported_features
            null_topics = struct.pack(">i", -1)
            assert asking.ask("NEW", METADATA, 4, null_topics + b"\0") is not None
            with pytest.raises(ProtocolError, match="Metadata version 4 is not served, only versions 0 to 2"):
                asking.ask("OLD", METADATA, 4, null_topics + b"\0")
            assert asking.ask("OLD", METADATA, 2, null_topics) is not None
            with pytest.raises(ProtocolError, match="InitProducerId .* is not served"):
                asking.ask("OLD", 22, 0)
            refused = decode(ApiVersionsResponse, 0, False, memoryview(asking.ask("OLD", API_VERSIONS, 3))[8:])
            assert (refused.error_code, refused.api_keys) == (ErrorCode.UNSUPPORTED_VERSION, [])

    trio.run(main)


@pytest.mark.parametrize(
    ("release", "has_features"), [("3.9", False), ("4.3", True), ("redpanda-24.3", False), ("warpstream", False)]
)
def test_features_are_listed_since_4_0_and_produce_from_version_0(tmp_path: Path, release: str, has_features: bool) -> None:
    async def main() -> None:
        async with open_caller(tmp_path, wirekafka_api_release=release) as caller:
            asking = Asking(caller.broker)
            response = asking.api_versions("PLAINTEXT", 3)
            assert bool(response.supported_features) == has_features
            assert {each.api_key: each.min_version for each in response.api_keys}[PRODUCE] == 0
            if release == "4.3":
                with pytest.raises(ProtocolError, match="Produce version 2 is not served"):
                    asking.ask("PLAINTEXT", PRODUCE, 2)

    trio.run(main)
