"""Share groups (KIP-932) with the Java client, its console consumer and kafka-share-groups.sh."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat_tests.harness import broker as brokers
from compat_tests.harness import tools
from compat_tests.harness.broker import CLASSES, Broker
from compat_tests.harness.proxy import CuttingProxy
from compat_tests.harness.share_chaos import Chaos, produce
from compat_tests.harness.sharing import Refused, ShareClient, Shared, Worker
from compat_tests.harness.tools import Tools, run_alone
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

LOCK_MS = 2000
SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "5000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
    "group.share.assignment.interval.ms": "0",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

Configure = Callable[..., None]


@pytest.fixture(scope="module")
def sharing_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Starts a broker with short locks and sessions for share groups."""
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("sharing-broker"), SETTINGS)) as running:
        yield running


@pytest.fixture
def broker(sharing_broker: Broker) -> Broker:
    return sharing_broker


@pytest.fixture
def members(tmp_path: Path) -> Iterator[ShareClient]:
    """Starts a process that has members of share groups."""
    client = ShareClient(tmp_path / "members.log")
    yield client
    client.close()


@pytest.fixture
def configure(tools_jvm: Tools) -> Configure:
    """Changes settings of a group with kafka-configs.sh."""

    def set_configs(bootstrap: str, group: str, **configs: object) -> None:
        text = ",".join(f"{name.replace('_', '.')}={value}" for name, value in configs.items())
        entity = ("--bootstrap-server", bootstrap, "--entity-type", "groups", "--entity-name", group)
        tools_jvm.check(tools.CONFIGS, *entity, "--alter", "--add-config", text)

    return set_configs


def offsets(records: list[Shared]) -> list[int]:
    return [record.offset for record in records]


def drain(members: ShareClient, names: list[str], count: int, timeout_s: float = 40) -> dict[str, list[Shared]]:
    """Lets members accept the records they receive until they have this many together."""
    taken: dict[str, list[Shared]] = {name: [] for name in names}
    deadline = time.monotonic() + timeout_s
    while sum(map(len, taken.values())) < count:
        assert time.monotonic() < deadline, {name: len(found) for name, found in taken.items()}
        for name in names:
            found = members.poll(name, 300)
            members.acknowledge(name, found, "ACCEPT")
            assert members.commit(name) == {}
            taken[name] += found
    return taken


def test_each_record_goes_to_one_member(broker: Broker, members: ShareClient, configure: Configure, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 2)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    for partition in range(2):
        produce(broker, topic, [f"{partition}-{number}" for number in range(150)], partition, **{"linger.ms": 0})
    members.open("a", broker.bootstrap, topic, topic, max_poll_records=20)
    members.open("b", broker.bootstrap, topic, topic, max_poll_records=20)
    taken = drain(members, ["a", "b"], 300)
    everything = [record for records in taken.values() for record in records]
    assert Counter(record.value for record in everything) == Counter(f"{p}-{n}" for p in range(2) for n in range(150))
    assert {record.delivery_count for record in everything} == {1}
    assert members.poll("a", 500) == members.poll("b", 500) == []


def test_more_members_than_partitions_share_one(broker: Broker, members: ShareClient, configure: Configure, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    names = ["a", "b", "c"]
    for name in names:
        members.open(name, broker.bootstrap, topic, topic, max_poll_records=1, share_acquire_mode="record_limit")
        members.poll(name, 500)
    produce(broker, topic, [str(number) for number in range(60)])
    taken = drain(members, names, 60)
    assert all(taken.values()), {name: len(found) for name, found in taken.items()}


def test_records_are_released_rejected_and_accepted_one_by_one(
    broker: Broker, members: ShareClient, configure: Configure, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, [str(number) for number in range(10)])
    members.open("a", broker.bootstrap, topic, topic)
    first = members.poll_until("a", 10)
    assert offsets(first) == list(range(10))
    members.acknowledge("a", first[:4], "ACCEPT")
    members.acknowledge("a", first[4:6], "REJECT")
    members.acknowledge("a", first[6:], "RELEASE")
    assert members.commit("a") == {}
    again = members.poll_until("a", 4)
    assert [(record.offset, record.delivery_count) for record in again] == [(6, 2), (7, 2), (8, 2), (9, 2)]
    members.acknowledge("a", again, "ACCEPT")
    assert members.commit("a") == {}
    assert members.poll("a", 500) == []


def test_record_that_is_released_again_and_again_is_given_up(
    broker: Broker, members: ShareClient, configure: Configure, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest", share_delivery_count_limit=3)
    produce(broker, topic, ["poison"])
    members.open("a", broker.bootstrap, topic, topic)
    for count in (1, 2, 3):
        (record,) = members.poll_until("a", 1)
        assert record.delivery_count == count
        members.acknowledge("a", [record], "RELEASE")
        assert members.commit("a") == {}
    assert members.poll("a", 1500) == []
    produce(broker, topic, ["medicine"])
    assert [record.value for record in members.poll_until("a", 1)] == ["medicine"]


def test_lock_that_runs_out_gives_the_records_to_another_member(
    broker: Broker, members: ShareClient, configure: Configure, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, ["v"])
    members.open("a", broker.bootstrap, topic, topic)
    held = members.poll_until("a", 1)
    began = time.monotonic()
    members.open("b", broker.bootstrap, topic, topic)
    (again,) = members.poll_until("b", 1)
    assert time.monotonic() - began > LOCK_MS / 1000 - 1
    assert (again.offset, again.delivery_count) == (0, 2)
    members.acknowledge("a", held, "ACCEPT")
    assert members.commit("a") == {0: "InvalidRecordStateException"}
    members.acknowledge("b", [again], "ACCEPT")
    assert members.commit("b") == {}


def test_lock_that_is_renewed_lasts_longer(broker: Broker, members: ShareClient, configure: Configure, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, ["v"])
    members.open("a", broker.bootstrap, topic, topic)
    members.open("b", broker.bootstrap, topic, topic)
    held = members.poll_until("a", 1)
    for _ in range(4):
        members.acknowledge("a", held, "RENEW")
        assert members.commit("a") == {}
        assert members.poll("b", LOCK_MS // 2) == []
        members.poll("a", 100)
    members.acknowledge("a", held, "ACCEPT")
    assert members.commit("a") == {}
    assert members.poll("b", LOCK_MS) == []


def test_member_that_leaves_gives_its_records_back_at_once(
    broker: Broker, members: ShareClient, configure: Configure, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest", share_record_lock_duration_ms=60000)
    produce(broker, topic, ["v", "w"])
    members.open("a", broker.bootstrap, topic, topic)
    members.poll_until("a", 2)
    members.close_member("a")
    members.open("b", broker.bootstrap, topic, topic)
    assert [record.delivery_count for record in members.poll_until("b", 2)] == [2, 2]


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 2), ("by_duration:PT1H", 1)])
def test_new_group_begins_where_its_setting_says(
    broker: Broker, members: ShareClient, configure: Configure, topic: str, reset: str, first: int
) -> None:
    create_topic(broker.bootstrap, topic)
    now_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for ago_ms in (7_200_000, 60_000):
        producer.produce(topic, b"v", timestamp=now_ms - ago_ms)
        assert producer.flush(30) == 0
    configure(broker.bootstrap, topic, share_auto_offset_reset=reset)
    members.open("a", broker.bootstrap, topic, topic)
    if reset == "latest":
        for _ in range(6):
            assert members.poll("a", 500) == []
        produce(broker, topic, ["v"])
    assert members.poll_until("a", 1)[0].offset == first


@pytest.mark.parametrize(("isolation", "expected"), [("read_uncommitted", 5), ("read_committed", 3)])
def test_records_of_aborted_transactions_are_passed_over_where_that_is_asked(
    broker: Broker, members: ShareClient, configure: Configure, topic: str, isolation: str, expected: int
) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest", share_isolation_level=isolation)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for values, is_committed in ((["a", "b"], True), (["c", "d"], False), (["e"], True)):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value.encode())
        assert producer.flush(30) == 0
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    members.open("a", broker.bootstrap, topic, topic)
    taken = drain(members, ["a"], expected)["a"]
    assert "".join(record.value for record in taken) == ("abe" if isolation == "read_committed" else "abcde")
    produce(broker, topic, ["f"])
    assert [record.value for record in drain(members, ["a"], 1)["a"]] == ["f"]


def test_what_was_done_outlives_the_broker(
    make_broker: Callable[..., Broker], members: ShareClient, configure: Configure, topic: str
) -> None:
    broker = make_broker(SETTINGS)
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, [str(number) for number in range(9)])
    members.open("a", broker.bootstrap, topic, topic)
    records = members.poll_until("a", 9)
    members.acknowledge("a", records[1:3], "ACCEPT")
    members.acknowledge("a", records[3:5], "REJECT")
    members.acknowledge("a", records[5:7], "RELEASE")
    members.acknowledge("a", [records[0], *records[7:]], "RELEASE")
    assert members.commit("a") == {}
    broker.kill()
    broker.start()
    members.open("b", broker.bootstrap, topic, topic)
    again = members.poll_until("b", 5)
    assert [(record.offset, record.delivery_count) for record in again] == [(0, 2), (5, 2), (6, 2), (7, 2), (8, 2)]


def test_workers_and_broker_are_killed_and_every_record_is_done_with(
    make_broker: Callable[..., Broker],
    proxy: CuttingProxy,
    configure: Configure,
    topic: str,
    tools_jvm: Tools,
    tmp_path: Path,
    chaos_seconds: float,
) -> None:
    broker = make_broker(SETTINGS, advertised=proxy.bootstrap)
    proxy.upstream = broker.address
    create_topic(broker.bootstrap, topic, 2)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest", share_delivery_count_limit=10)
    deadline = time.monotonic() + chaos_seconds
    chaos = Chaos(broker, proxy, topic, tmp_path)
    try:
        chaos.produce_more()
        wait_until(lambda: chaos.said("ACCEPT"), timeout_s=60, what="the workers have begun")
        while time.monotonic() < deadline or chaos.restarts == 0:
            chaos.produce_more()
            chaos.strike()
        describe = ("--bootstrap-server", broker.bootstrap, "--group", topic, "--describe")

        def is_done() -> bool:
            lags = columns(tools_jvm.check(tools.SHARE_GROUPS, *describe).out)
            return {row["PARTITION"]: row["LAG"] for row in lags} == {"0": "0", "1": "0"}

        wait_until(is_done, timeout_s=90, what="every record is done with")
        done = time.monotonic()
        assert chaos.said("record") == set(chaos.values), "every record was given to somebody"
        bad = {value for value in chaos.values if value.startswith("bad")}
        assert chaos.said("REJECT") <= bad
        assert not chaos.said("ACCEPT") & bad
        unsaid = set(chaos.values) - chaos.said("ACCEPT") - chaos.said("REJECT")
        assert len(unsaid) <= chaos.most_unsaid, unsaid
        time.sleep(LOCK_MS / 1000 + 1)
        assert not [worker for worker in chaos.workers if worker.last_record_s > done], "nothing comes again"
    finally:
        chaos.stop()
    for worker in chaos.workers:
        assert_nothing_comes_again(worker)


def assert_nothing_comes_again(worker: Worker) -> None:
    """Raises if a record that a worker has accepted or rejected was delivered to it again."""
    over: set[str] = set()
    for kind, *rest in worker.lines:
        if kind in ("REJECT", "ACCEPT"):
            over.add(rest[-1])
        assert not (kind == "record" and rest[-1] in over), f"{rest} was done with, and came again"


def test_console_share_consumer_reads_and_accepts(broker: Broker, members: ShareClient, configure: Configure, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, ["eins", "zwei", "drei"])
    read = run_alone(
        tools.CONSOLE_SHARE_CONSUMER,
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", topic),
        *("--max-messages", "3", "--timeout-ms", "30000", "--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.delivery=true"),
    )
    assert read.code == 0, read
    assert [line.split("\t")[-1] for line in read.lines()] == ["eins", "zwei", "drei"]
    members.open("a", broker.bootstrap, topic, topic)
    produce(broker, topic, ["vier"])
    assert [record.value for record in members.poll_until("a", 1)] == ["vier"]


def columns(text: str) -> list[dict[str, str]]:
    """Parses a table that a tool prints."""
    head, *rows = [line.split() for line in text.splitlines() if line.strip()]
    return [dict(zip(head, row, strict=False)) for row in rows]


def test_share_groups_are_listed_described_reset_and_deleted(
    broker: Broker, members: ShareClient, configure: Configure, tools_jvm: Tools, topic: str
) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    group = (*server, "--group", topic)
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, [str(number) for number in range(8)])
    members.open("a", broker.bootstrap, topic, topic)
    records = members.poll_until("a", 8)
    members.acknowledge("a", records, "ACCEPT")
    assert members.commit("a") == {}

    assert topic in tools_jvm.check(tools.SHARE_GROUPS, *server, "--list").out.split()
    with_state = columns(tools_jvm.check(tools.SHARE_GROUPS, *server, "--list", "--state").out)
    assert {"GROUP": topic, "STATE": "Stable"} in with_state
    listed = columns(tools_jvm.check(tools.ALL_GROUPS, *server, "--list", "--group-type", "share").out)
    assert {"GROUP": topic, "TYPE": "Share", "PROTOCOL": "share"} in listed
    (state,) = columns(tools_jvm.check(tools.SHARE_GROUPS, *group, "--describe", "--state").out)
    assert (state["STATE"], state["#MEMBERS"]) == ("Stable", "1")
    shown = tools_jvm.check(tools.SHARE_GROUPS, *group, "--describe", "--members").out
    assert re.search(rf"{re.escape(topic)}:0", shown), shown
    (offset,) = columns(tools_jvm.check(tools.SHARE_GROUPS, *group, "--describe").out)
    assert (offset["TOPIC"], offset["PARTITION"], offset["LAG"]) == (topic, "0", "0")

    refused = tools_jvm.run(tools.SHARE_GROUPS, *group, "--delete")
    assert "not EMPTY" in refused.out + refused.err
    reset = ("--reset-offsets", "--topic", topic, "--to-earliest")
    refused = tools_jvm.run(tools.SHARE_GROUPS, *group, *reset, "--execute")
    assert "is not empty" in refused.out + refused.err, refused
    members.close_member("a")

    def is_empty() -> bool:
        (state,) = columns(tools_jvm.check(tools.SHARE_GROUPS, *group, "--describe", "--state").out)
        return state["STATE"] == "Empty"

    wait_until(is_empty, timeout_s=60, what="the group is empty")
    tools_jvm.check(tools.SHARE_GROUPS, *group, *reset, "--execute")
    (offset,) = columns(tools_jvm.check(tools.SHARE_GROUPS, *group, "--describe").out)
    assert (offset["START-OFFSET"], offset["LAG"]) == ("0", "8")
    members.open("b", broker.bootstrap, topic, topic)
    again = members.poll_until("b", 8)
    assert [(record.offset, record.delivery_count) for record in again][0] == (0, 1)
    members.close_member("b")
    wait_until(is_empty, timeout_s=60, what="the group is empty")
    deleted = tools_jvm.check(tools.SHARE_GROUPS, *group, "--delete-offsets", "--topic", topic)
    assert topic in deleted.out
    tools_jvm.check(tools.SHARE_GROUPS, *group, "--delete")
    assert topic not in tools_jvm.check(tools.SHARE_GROUPS, *server, "--list").out.split()


def test_share_group_that_does_not_exist_is_told_as_such(broker: Broker, tools_jvm: Tools, topic: str) -> None:
    outcome = tools_jvm.run(tools.SHARE_GROUPS, "--bootstrap-server", broker.bootstrap, "--group", topic, "--describe")
    assert "not found" in outcome.out + outcome.err


def test_setting_of_a_group_that_cannot_be_is_refused(broker: Broker, configure: Configure, topic: str) -> None:
    with pytest.raises(AssertionError, match="InvalidConfigurationException"):
        configure(broker.bootstrap, topic, share_auto_offset_reset="yesterday")


def test_state_is_written_as_apache_kafka_reads_it(
    make_broker: Callable[..., Broker], members: ShareClient, configure: Configure, tools_jvm: Tools, topic: str
) -> None:
    broker = make_broker(SETTINGS)
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, [str(number) for number in range(6)])
    members.open("a", broker.bootstrap, topic, topic)
    records = members.poll_until("a", 6)
    members.acknowledge("a", records[:2], "RELEASE")
    members.acknowledge("a", records[2:], "ACCEPT")
    assert members.commit("a") == {}
    members.close_member("a")
    broker.terminate()
    text = ""
    for segment in sorted(broker.data_dir.glob("__share_group_state-*/*.log")):
        text += tools_jvm.check(tools.DUMP_LOG, "--files", str(segment), "--share-group-state-decoder").out
    assert re.search(rf'"groupId":"{re.escape(topic)}"', text), text[-3000:]
    assert '"deliveryState":2' in text
    assert '"snapshotEpoch":0' in text
    text = ""
    for segment in sorted(broker.data_dir.glob("__consumer_offsets-*/*.log")):
        text += tools_jvm.check(tools.DUMP_LOG, "--files", str(segment), "--offsets-decoder").out
    for version in range(10, 16):
        assert f'key: {{"type":"{version}"' in text or f'"type":"{version}"' in text, (version, text[-3000:])


def test_client_that_says_nothing_of_records_is_told_by_its_own_library(
    broker: Broker, members: ShareClient, configure: Configure, topic: str
) -> None:
    create_topic(broker.bootstrap, topic)
    configure(broker.bootstrap, topic, share_auto_offset_reset="earliest")
    produce(broker, topic, ["v"])
    members.open("a", broker.bootstrap, topic, topic)
    members.poll_until("a", 1)
    with pytest.raises(Refused):
        members.poll("a", 100)
