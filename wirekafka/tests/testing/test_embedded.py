"""A broker in a thread of a test, for clients that know nothing of it."""

from __future__ import annotations

import http.client
import math
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from wirekafka.config import ConfigError
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.server.listener import ListenError
from wirekafka.testing import EmbeddedBroker
from wirekafka.testing.async_broker import (
    METRICS_LISTENER,
    OF_ONE_BROKER,
    AsyncEmbeddedBroker,
    FixedPortError,
    SnapshotIsClosedError,
)

QUICK = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(storage="memory") as running:
        yield running


def produce(broker: EmbeddedBroker, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value, key=b"k", headers=[("h", b"1")], partition=partition)
    assert producer.flush(20) == 0


def values_of(broker: EmbeddedBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def consumer_of(broker: EmbeddedBroker, **settings: object) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest", **settings})


def consume(consumer: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None, f"{len(found)} of {count} records"
        assert message.error() is None
        found.append(message.value())
    return found


def test_records_of_a_client_are_there_with_all_that_the_log_has(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 2)
    produce(broker, "orders", b"one", b"two", partition=1)
    first, second = broker.wait_for_records("orders", 2)
    assert (first.partition, first.offset, first.key, first.value, first.headers) == (1, 0, b"k", b"one", (("h", b"1"),))
    assert (second.offset, second.value, second.is_committed, second.control) == (1, b"two", True, None)
    assert broker.records("orders", 0) == []


def test_transactions_show_their_markers_and_what_was_aborted(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(20)
    for value, is_committed in ((b"kept", True), (b"dropped", False)):
        producer.begin_transaction()
        producer.produce("orders", value)
        producer.flush(20)
        assert [each.is_committed for each in broker.records("orders") if each.value == value] == [False]
        producer.commit_transaction(20) if is_committed else producer.abort_transaction(20)
    found = [(each.value, each.is_committed) for each in broker.records("orders") if each.control is None]
    assert found == [(b"kept", True), (b"dropped", False)]
    assert [each.control for each in broker.records("orders") if each.control] == ["commit", "abort"]
    assert [each.value for each in broker.wait_for_records("orders", 1)] == [b"kept"]


def test_message_of_a_wait_says_what_was_there(broker: EmbeddedBroker) -> None:
    with pytest.raises(TimeoutError, match="there is no topic orders; there are none"):
        broker.wait_for_records("orders", 1, timeout_s=0.05)
    produce(broker, "orders", b"one")
    with pytest.raises(TimeoutError, match="2 records in orders, but orders has 1 committed records, the last are b'one'"):
        broker.wait_for_records("orders", 2, timeout_s=0.05)
    with pytest.raises(TimeoutError, match="readers to be stable, but there is no group readers"):
        broker.wait_for_group_stable("readers", timeout_s=0.05)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_show_their_members_and_offsets(broker: EmbeddedBroker, protocol: str) -> None:
    broker.create_topic("orders", 2)
    produce(broker, "orders", b"one", b"two")
    settings = QUICK if protocol == "classic" else {}
    consumer = consumer_of(broker, **{"group.protocol": protocol, "client.id": "me", "enable.auto.commit": False}, **settings)
    consumer.subscribe(["orders"])
    assert consume(consumer, 2) == [b"one", b"two"]
    group = broker.wait_for_group_stable("readers", members=1)
    assert (group.type, group.state, group.members[0].client_id) == (protocol.capitalize(), "Stable", "me")
    assert group.members[0].partitions == {("orders", 0), ("orders", 1)}
    with pytest.raises(
        TimeoutError, match=r"readers is Stable with 1 members \(me has orders-0, orders-1\), and has committed nothing"
    ):
        broker.wait_for_committed("readers", "orders", 2, timeout_s=0.05)
    consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    assert broker.wait_for_committed("readers", "orders", 2) == 2
    consumer.close()
    assert [(each.group_id, each.state) for each in broker.groups()] == [("readers", "Empty")]


def test_reset_leaves_nothing_and_keeps_the_address(broker: EmbeddedBroker) -> None:
    address, former = broker.bootstrap, broker.path
    for number in range(3):
        producer = Producer({"bootstrap.servers": address, "transactional.id": "t"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("orders", b"%d" % number)
        producer.commit_transaction(20)
        assert values_of(broker, "orders")[0] == b"%d" % number
        broker.reset()
        assert broker.bootstrap == address
        assert (broker.on_loop(lambda parts: list(parts.topics)), broker.groups()) == ([], [])
    assert broker.path != former


def test_client_that_was_connected_goes_on_after_a_reset(broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "reconnect.backoff.ms": 10})
    for value in (b"before", b"after"):
        producer.produce("orders", value)
        assert producer.flush(20) == 0
        assert values_of(broker, "orders") == [value]
        broker.reset()


def test_snapshot_is_restored_again_and_again(broker: EmbeddedBroker) -> None:
    produce(broker, "orders", b"one")
    consumer = consumer_of(broker)
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    snapshot = broker.snapshot()
    for _ in range(2):
        produce(broker, "orders", b"two")
        assert values_of(broker, "orders") == [b"one", b"two"]
        broker.restore(snapshot)
        assert values_of(broker, "orders") == [b"one"]
        assert broker.group("readers").committed == {("orders", 0): 1}
    snapshot.close()


def test_fork_and_its_origin_go_their_own_ways(broker: EmbeddedBroker) -> None:
    # The active segment is larger than what is copied, so the fork shares it.
    produce(broker, "orders", *[b"%d" % number * 1000 for number in range(1500)])
    count = len(broker.records("orders"))
    with broker.fork() as fork:
        assert fork.bootstrap != broker.bootstrap
        [shared] = {path.stat().st_ino for path in fork.path.glob("orders-0/*.log")} & {
            path.stat().st_ino for path in broker.path.glob("orders-0/*.log")
        }
        assert shared
        produce(fork, "orders", b"in the fork")
        produce(broker, "orders", b"in the origin")
        assert [len(each.records("orders")) for each in (fork, broker)] == [count + 1, count + 1]
        assert (values_of(fork, "orders")[-1], values_of(broker, "orders")[-1]) == (b"in the fork", b"in the origin")


def test_fork_that_was_stopped_and_snapshot_that_was_closed_say_what_to_do(broker: EmbeddedBroker) -> None:
    fork = broker.fork()
    fork.stop()
    with pytest.raises(SnapshotIsClosedError, match=r"does not start again: call fork\(\) again"):
        fork.start()
    snapshot = broker.snapshot()
    snapshot.close()
    with pytest.raises(SnapshotIsClosedError, match=r"call snapshot\(\) again"):
        broker.restore(snapshot)


def test_time_that_is_advanced_ends_a_session_and_deletes_old_segments(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", retention_ms=3_600_000, segment_ms=1_000)
    produce(broker, "orders", b"one")
    consumer = consumer_of(broker, **{"session.timeout.ms": 45_000, "heartbeat.interval.ms": 15_000})
    consumer.subscribe(["orders"])
    assert consume(consumer, 1) == [b"one"]
    broker.wait_for_group_stable("readers", members=1)
    before, begun = broker.clock.now_ms(), time.monotonic()
    broker.clock.advance(60)
    assert broker.clock.now_ms() - before >= 60_000
    assert broker.group("readers").members == ()
    broker.clock.advance(7200)
    assert values_of(broker, "orders") == []
    assert time.monotonic() - begun < 60
    consumer.close()


def test_reset_sets_the_time_to_that_of_the_machine(broker: EmbeddedBroker) -> None:
    broker.clock.advance(86_400)
    for _ in range(3):
        broker.reset()
        assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
        # The broker of the next reset is opened before the time is advanced again.
        time.sleep(0.3)
        broker.clock.advance(86_400)
    with pytest.raises(ValueError, match="not by -1"):
        broker.clock.advance(-1)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e300, -0.5])
def test_time_that_no_timer_can_follow_is_refused(broker: EmbeddedBroker, seconds: float) -> None:
    with pytest.raises(ValueError, match="time can be advanced by 0 seconds or more"):
        broker.clock.advance(seconds)
    broker.create_topic("orders")


@pytest.mark.parametrize("seconds", [math.nan, -1.0])
def test_wait_that_would_never_end_is_refused(broker: EmbeddedBroker, seconds: float) -> None:
    with pytest.raises(ValueError, match="a wait takes 0 seconds or more"):
        broker.wait_for_records("orders", 1, timeout_s=seconds)


def test_settings_are_given_by_keyword_and_wrong_ones_are_refused() -> None:
    with EmbeddedBroker(num_partitions=3, auto_create_topics_enable=True) as broker:
        produce(broker, "orders", b"one")
        assert [broker.records("orders", index) for index in (1, 2)] == [[], []]
        path = broker.path
    assert not path.exists()
    with pytest.raises(ConfigError, match=r"num\.partitons"):
        EmbeddedBroker(num_partitons=3).start()
    with pytest.raises(ValueError, match="storage is 'disk' or 'memory'"):
        EmbeddedBroker(storage="tape").start()


def test_new_connections_reach_the_new_broker_only(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap.partition(":")
    request = bytes.fromhex("00120000000000070001") + b"x"
    for _ in range(5):
        broker.reset()
        for _ in range(20):
            with socket.create_connection((host, int(port)), 20) as peer:
                peer.sendall(len(request).to_bytes(4, "big") + request)
                assert peer.recv(4), "the connection was taken by a broker that is gone"


@pytest.mark.parametrize("release", ["0.10.2", "2.8", "4.3", "redpanda-22.3", "redpanda-24.3", "warpstream"])
def test_client_works_with_a_broker_that_behaves_as_a_release(release: str) -> None:
    with EmbeddedBroker(storage="memory", release=release) as running:
        produce(running, "orders", b"one")
        consumer = consumer_of(running, **QUICK)
        consumer.subscribe(["orders"])
        message = consumer.poll(60)
        assert message is not None and message.value() == b"one"
        consumer.close()


def test_http_client_reads_that_this_is_no_http_port(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 400
    assert b"This is the port of a Kafka broker" in response.read()
    connection.close()


def test_port_that_another_broker_has_is_refused_and_a_fork_has_its_own(broker: EmbeddedBroker) -> None:
    with pytest.raises(ListenError):
        EmbeddedBroker(listeners=f"PLAINTEXT://{broker.bootstrap}").start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with EmbeddedBroker(listeners=f"PLAINTEXT://127.0.0.1:{port}") as fixed, fixed.fork() as fork:
        assert fixed.bootstrap == f"127.0.0.1:{port}" != fork.bootstrap


def test_metrics_on_a_fixed_port_keep_the_broker_from_being_replaced(broker: EmbeddedBroker) -> None:
    async def fix_port(running: AsyncEmbeddedBroker) -> None:
        # As if it had been set at the start. No port is surely free in a test.
        running.settings[METRICS_LISTENER] = "127.0.0.1:9404"

    produce(broker, "orders", b"kept")
    snapshot = broker.snapshot()
    broker.call(fix_port)
    with pytest.raises(FixedPortError, match=r"wirekafka.metrics.listener=127.0.0.1:9404 has a fixed port"):
        broker.reset()
    with pytest.raises(FixedPortError):
        broker.restore(snapshot)
    assert values_of(broker, "orders") == [b"kept"]


def test_metrics_on_a_port_of_the_kernel_let_the_broker_be_replaced() -> None:
    with EmbeddedBroker(storage="memory", wirekafka_metrics_listener="127.0.0.1:0") as broker:
        produce(broker, "orders", b"former")
        broker.reset()
        assert not broker.on_loop(lambda parts: list(parts.topics))


def test_clients_of_a_fork_do_not_reach_the_broker_that_was_forked() -> None:
    made = EmbeddedBroker(advertised_listeners="PLAINTEXT://localhost:1", wirekafka_metrics_listener="127.0.0.1:0")
    with made as broker, broker.fork() as fork:
        produce(fork, "orders", b"in the fork")
        assert values_of(fork, "orders") == [b"in the fork"]
        assert [fork.on_loop(lambda parts, name=name: parts.config.get(name)) for name in OF_ONE_BROKER] == [None, None]


def test_errors_of_topics_and_of_a_broker_that_does_not_run_are_clear(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders")
    with pytest.raises(KafkaError) as refused:
        broker.create_topic("orders")
    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(ValueError, match="partitions=1000000000000 is not between"):
        broker.create_topic("others", 10**12)
    stopped = EmbeddedBroker()
    with pytest.raises(ValueError, match="the broker does not run"):
        stopped.records("orders")
    stopped.stop()


@pytest.mark.parametrize("name", ["log_dirs", "log_dir"])
def test_a_data_directory_is_refused(name: str) -> None:
    settings: dict[str, Any] = {name: "/data"}
    with pytest.raises(ValueError, match="cannot be set: the data is in a temporary directory"):
        EmbeddedBroker(**settings).start()
