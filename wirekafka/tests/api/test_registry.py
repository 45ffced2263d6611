import inspect
import subprocess
import sys
from collections.abc import Iterator

import pytest

from wirekafka.api.index import INDEX
from wirekafka.api.registry import APIS, Api, all_apis, find_api, serves
from wirekafka.wire.types import Int32, Message

every_api = pytest.mark.parametrize("api", all_apis(), ids=lambda api: api.name)


class PingRequest(Message):
    number: Int32 = 0


class PingResponse(Message):
    number: Int32 = 0


@pytest.fixture
def ping() -> Iterator[Api]:
    @serves(9_999, PingRequest, PingResponse, versions=range(2, 5), flexible_since=4)
    def handle(broker: object, call: object) -> PingResponse:
        return PingResponse()

    yield APIS[9_999]
    del APIS[9_999]


def test_served_handler_is_in_the_table(ping: Api) -> None:
    assert (ping.key, ping.name, ping.versions) == (9_999, "Ping", range(2, 5))
    assert ping.handler(None, None) == PingResponse()  # type: ignore[arg-type]


def test_second_handler_of_an_api_is_a_bug(ping: Api) -> None:
    with pytest.raises(AssertionError, match="two handlers"):
        serves(9_999, PingRequest, PingResponse, versions=range(1), flexible_since=None)(ping.handler)


def test_flexible_versions_have_flexible_headers(ping: Api) -> None:
    assert [ping.is_flexible(version) for version in ping.versions] == [False, False, True]
    assert [ping.has_flexible_response_header(version) for version in ping.versions] == [False, False, True]


def test_response_header_of_api_versions_is_never_flexible() -> None:
    """The client does not know the broker's versions yet (KIP-511)."""
    api = find_api(18)
    assert api is not None
    assert api.is_flexible(3)
    assert not api.has_flexible_response_header(3)


def test_functions_of_a_version_are_looked_up_once(ping: Api) -> None:
    assert ping.request_reader(2) is ping.request_reader(2)
    assert ping.response_writer(4) is ping.response_writer(4)


@every_api
def test_api_says_in_its_module_what_it_does(api: Api) -> None:
    for part in ("Behaviour:", "Versions:", "Differs from Apache Kafka:"):
        assert part in api.doc, f"{inspect.getsourcefile(api.handler)} has no {part!r}"


@every_api
def test_api_serves_versions_without_a_gap(api: Api) -> None:
    assert api.versions.step == 1
    assert len(api.versions) > 0
    assert api.request.__name__ == api.name + "Request"
    assert api.response.__name__ == api.name + "Response"
    assert api.handler.__module__.startswith("wirekafka.api.")


def test_index_says_what_the_modules_serve() -> None:
    served = {
        api.key: (api.name, api.handler.__module__, api.versions[0], api.versions[-1]) for api in all_apis() if api.key != 9_999
    }
    assert {key: (entry.name, f"wirekafka.api.{entry.module}", entry.first, entry.last) for key, entry in INDEX.items()} == served


def test_module_of_an_api_is_imported_when_it_is_asked_for() -> None:
    code = """
import sys
from wirekafka.api.registry import APIS, find_api
from wirekafka.broker import Broker
import wirekafka.server.dispatch
rooms = [name for name in sys.modules if name.startswith(("wirekafka.api.share", "wirekafka.coordinator."))]
rooms.remove("wirekafka.coordinator.reply_gate")
assert (sorted(APIS), rooms) == ([18], []), (sorted(APIS), rooms)
assert find_api(76).name == "ShareGroupHeartbeat"
assert find_api(17) is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_leader_may_change_the_in_sync_replicas_of_all_its_partitions_in_one_request() -> None:
    """A leader of 10,000 partitions whose two followers die names each partition with one replica. Clients ask for less."""
    alter_partition = APIS[56]
    assert alter_partition.most_elements(is_member=True) > 1 + 3 * 10_000
    assert alter_partition.most_elements(is_member=False) < APIS[4].most_elements(is_member=False)


@pytest.mark.parametrize("key", [19, 37, 45], ids=["CreateTopics", "CreatePartitions", "AlterPartitionReassignments"])
def test_administrator_may_assign_all_partitions_in_one_request(key: int) -> None:
    """10,000 topics, each with one partition of three replicas, as kafka-reassign-partitions.sh names them."""
    assert APIS[key].most_elements(is_member=True) >= 10_000 * (1 + 1 + 3)
    assert APIS[key].most_elements(is_member=False) == APIS[46].most_elements(is_member=True)
