"""Faults on command, as clients see them."""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from wirekafka.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wirekafka.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wirekafka.api.registry import all_apis
from wirekafka.errors import ErrorCode
from wirekafka.testing import ActiveFault, EmbeddedBroker
from wirekafka.testing.error_responses import refusal_of
from wirekafka.testing.faults import MOST_CLIENT_ID_LENGTH, MOST_HITS, FaultSpec, Hit
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(storage="memory") as running:
        yield running


@pytest.fixture
def broker(shared: EmbeddedBroker) -> EmbeddedBroker:
    shared.reset()
    shared.create_topic("orders", 2)
    shared.create_topic("others")
    return shared


class Writer:
    """A producer of librdkafka that notes what becomes of its records."""

    def __init__(self, broker: EmbeddedBroker, **settings: Any) -> None:
        base = {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "retry.backoff.ms": 20, "reconnect.backoff.ms": 20}
        self._producer = Producer(base | settings)
        self.results: list[str | None] = []

    def write(self, value: bytes, topic: str = "orders", partition: int = 0) -> str | None:
        self._producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: self.note(error))
        assert self._producer.flush(30) == 0
        return self.results[-1]

    def note(self, error: Any) -> None:
        self.results.append(None if error is None else error.name())


def values(broker: EmbeddedBroker, topic: str = "orders", partition: int | None = None) -> list[bytes | None]:
    return [each.value for each in broker.records(topic, partition)]


def test_error_answers_so_many_requests_and_the_client_tries_again(broker: EmbeddedBroker) -> None:
    with broker.fault(api="Produce", topic="orders", error="NOT_ENOUGH_REPLICAS", times=3) as fault:
        assert Writer(broker).write(b"one") is None
    assert len(fault.hits) == 3
    assert {(hit.api, hit.client_id) for hit in fault.hits} == {("Produce", "rdkafka")}
    assert values(broker) == [b"one"]


def test_error_that_is_final_reaches_the_application(broker: EmbeddedBroker) -> None:
    with broker.fault(api="Produce", error="TOPIC_AUTHORIZATION_FAILED"):
        assert Writer(broker).write(b"one") == "TOPIC_AUTHORIZATION_FAILED"
    assert Writer(broker).write(b"two") is None
    assert values(broker) == [b"two"]


def test_error_hits_one_partition_and_the_others_of_the_request_are_written(broker: EmbeddedBroker) -> None:
    writer = Writer(broker, **{"message.timeout.ms": 2000})
    with broker.fault(api="Produce", topic="orders", partition=1, error="INVALID_RECORD") as fault:
        assert writer.write(b"zero", partition=0) is None
        assert writer.write(b"one", partition=1) is not None
        assert writer.write(b"other", "others") is None
    assert len(fault.hits) == 1
    assert (values(broker, "orders", 0), values(broker, "orders", 1), values(broker, "others")) == ([b"zero"], [], [b"other"])


def test_lost_reply_of_an_idempotent_producer_leaves_the_record_once(broker: EmbeddedBroker) -> None:
    writer = Writer(broker, **{"enable.idempotence": True, "socket.timeout.ms": 1000, "request.timeout.ms": 900})
    with broker.fault(api="Produce", lose="reply", times=1) as fault:
        assert writer.write(b"one") is None
    assert len(fault.hits) == 1
    assert values(broker) == [b"one"]


def test_lost_request_is_not_written(broker: EmbeddedBroker) -> None:
    writer = Writer(broker, **{"message.timeout.ms": 1500, "socket.timeout.ms": 1000, "request.timeout.ms": 900})
    with broker.fault(api="Produce", lose="request"):
        assert writer.write(b"one") is not None
    assert values(broker) == []


def until_hit(fault: ActiveFault) -> None:
    """Waits for a request of a client that does not wait for its response."""
    end = time.monotonic() + 20
    while not fault.hits:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_records_without_acknowledgement_are_lost_alone(broker: EmbeddedBroker) -> None:
    writer = Writer(broker, acks=0)
    with broker.fault(api="Produce", lose="request", times=1) as fault:
        writer.write(b"lost")
        until_hit(fault)
    with broker.fault(api="Produce", topic="orders", partition=1, error="INVALID_RECORD", times=1) as fault:
        writer.write(b"refused", partition=1)
        until_hit(fault)
    writer.write(b"kept")
    assert [each.value for each in broker.wait_for_records("orders", 1)] == [b"kept"]


def fetch(peer: socket.socket, request: FetchRequest) -> FetchResponse:
    frame = bytes.fromhex("0001 000b 00000007 0001") + b"x" + encode(request, 11, False)
    peer.sendall(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
    answer: FetchResponse = decode(FetchResponse, 11, False, peer.recv(size, socket.MSG_WAITALL)[4:])
    return answer


def of_orders() -> list[FetchTopic]:
    return [FetchTopic(topic="orders", partitions=[FetchPartition(partition=0)])]


def test_error_of_fetch_is_that_of_its_partitions(broker: EmbeddedBroker) -> None:
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as peer:
        session = fetch(peer, FetchRequest(session_epoch=0, topics=of_orders())).session_id
        with broker.fault(api="Fetch", error="OFFSET_OUT_OF_RANGE") as fault:
            answer = fetch(peer, FetchRequest(session_id=session, session_epoch=1))
            assert (answer.error_code, len(fault.hits)) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
            answer = fetch(peer, FetchRequest(session_epoch=0, topics=of_orders()))
    assert answer.error_code == ErrorCode.NONE
    assert [each.error_code for topic in answer.responses for each in topic.partitions] == [ErrorCode.OFFSET_OUT_OF_RANGE]


def test_error_of_a_fetch_session_names_no_partition(broker: EmbeddedBroker) -> None:
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as peer, broker.fault(error="INVALID_FETCH_SESSION_EPOCH"):
        answer = fetch(peer, FetchRequest(session_epoch=0, topics=of_orders()))
    assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])


def test_error_of_a_partition_is_not_that_of_the_whole_response(broker: EmbeddedBroker) -> None:
    with socket.create_connection(address(broker), 5) as peer, broker.fault(topic="orders", error="OFFSET_OUT_OF_RANGE"):
        answer = fetch(peer, FetchRequest(topics=of_orders()))
    assert answer.error_code == ErrorCode.NONE
    [partition] = answer.responses[0].partitions
    assert (partition.error_code, partition.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


def test_only_faults_of_fetch_end_fetch_sessions(broker: EmbeddedBroker) -> None:
    with socket.create_connection(address(broker), 5) as peer:
        session = fetch(peer, FetchRequest(session_epoch=0, topics=of_orders())).session_id
        assert session != 0
        with broker.fault(api="Produce", topic="orders", error="INVALID_RECORD"):
            assert fetch(peer, FetchRequest(session_id=session, session_epoch=1)).error_code == ErrorCode.NONE
        with broker.fault(api="Fetch", topic="orders", error="NOT_LEADER_OR_FOLLOWER") as fault:
            answer = fetch(peer, FetchRequest(session_id=session, session_epoch=2))
            assert (answer.error_code, fault.hits) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
            assert fetch(peer, FetchRequest(session_epoch=0, topics=of_orders())).session_id == 0


@pytest.mark.parametrize("moment", ["request", "reply", "mid_reply"])
def test_disconnected_client_connects_again(broker: EmbeddedBroker, moment: str) -> None:
    with broker.fault(api="Produce", disconnect=moment, times=1) as fault:
        assert Writer(broker, **{"enable.idempotence": True}).write(b"one") is None
    assert len(fault.hits) == 1
    assert values(broker) == [b"one"]


def test_connection_ends_in_the_middle_of_a_response(broker: EmbeddedBroker) -> None:
    request = bytes.fromhex("00120000000000070001") + b"x"
    with broker.fault(api="ApiVersions", disconnect="mid_reply"), socket.create_connection(address(broker), 5) as peer:
        peer.sendall(len(request).to_bytes(4, "big") + request)
        received = read_all(peer)
    size = int.from_bytes(received[:4], "big")
    assert 4 < len(received) < size + 4


def test_fault_hits_no_version_that_the_release_refuses() -> None:
    with (
        EmbeddedBroker(storage="memory", release="0.10.2") as old,
        old.fault(api="Metadata", error="BROKER_NOT_AVAILABLE") as fault,
    ):
        for version, has_answer in ((3, False), (2, True)):
            request = bytes.fromhex(f"0003000{version}000000070001") + b"x" + b"\xff\xff\xff\xff"
            with socket.create_connection(address(old), 5) as peer:
                peer.sendall(len(request).to_bytes(4, "big") + request)
                assert bool(peer.recv(1)) is has_answer
        assert [each.version for each in fault.hits] == [2]


def test_response_trickles(broker: EmbeddedBroker) -> None:
    request = bytes.fromhex("00120000000000070001") + b"x"
    with broker.fault(api="ApiVersions", trickle_bytes_per_s=1000), socket.create_connection(address(broker), 5) as peer:
        begun = time.monotonic()
        peer.sendall(len(request).to_bytes(4, "big") + request)
        peer.settimeout(5)
        received = peer.recv(1)
        while len(received) < 4 or len(received) < int.from_bytes(received[:4], "big") + 4:
            received += peer.recv(65_536)
        assert time.monotonic() - begun >= 0.8 * (len(received) - 50) / 1000


def address(broker: EmbeddedBroker) -> tuple[str, int]:
    host, _, port = broker.bootstrap.partition(":")
    return host, int(port)


def read_all(peer: socket.socket) -> bytes:
    peer.settimeout(5)
    received = b""
    while data := peer.recv(65_536):
        received += data
    return received


def test_delay_comes_before_the_request_is_handled(broker: EmbeddedBroker) -> None:
    begun = time.monotonic()
    with broker.fault(api="Produce", delay_s=0.4, times=1):
        assert Writer(broker).write(b"one") is None
    assert time.monotonic() - begun >= 0.4
    assert values(broker) == [b"one"]


def test_throttle_time_is_in_the_response(broker: EmbeddedBroker) -> None:
    told: list[int] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "throttle_cb": lambda event: told.append(round(event.throttle_time * 1000))}
    )
    with broker.fault(api="Produce", throttle_ms=123, times=1):
        producer.produce("orders", b"one")
        assert producer.flush(20) == 0
        end = time.monotonic() + 10
        while not told and time.monotonic() < end:
            producer.poll(0.1)
    assert told[0] == 123


def test_consumer_sees_an_error_of_fetch_for_one_topic_and_then_the_records(broker: EmbeddedBroker) -> None:
    Writer(broker).write(b"one")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    with broker.fault(api="Fetch", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=3) as fault:
        message = consumer.poll(20)
    assert (message.value(), len(fault.hits)) == (b"one", 3)
    consumer.close()


def test_fault_begins_and_ends_in_the_middle_of_a_fetch_session(broker: EmbeddedBroker) -> None:
    writer = Writer(broker)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("orders", 0, 0), TopicPartition("others", 0, 0)])
    for number in range(3):
        writer.write(b"%d" % number)
        message = consumer.poll(20)
        assert message is not None and message.value() == b"%d" % number
        with broker.fault(api="Fetch", topic="orders", error="OFFSET_NOT_AVAILABLE", times=2) as fault:
            end = time.monotonic() + 20
            while len(fault.hits) < 2 and time.monotonic() < end:
                consumer.poll(0.05)
            assert len(fault.hits) == 2
            writer.write(b"other", "others")
            message = consumer.poll(20)
            assert message is not None and message.value() == b"other"
    consumer.close()


def test_fault_of_a_group_leaves_other_groups_alone(broker: EmbeddedBroker) -> None:
    def commit(group: str) -> None:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        try:
            consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        finally:
            consumer.close()

    with broker.fault(api="OffsetCommit", group="bad", error="GROUP_AUTHORIZATION_FAILED") as fault:
        commit("good")
        with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
            commit("bad")
    assert len(fault.hits) >= 1
    assert (broker.group("good").committed, broker.group("bad").committed) == ({("orders", 0): 1}, {})


@pytest.mark.parametrize("version", [1, 2, 8])
@pytest.mark.parametrize(("code", "is_of_group"), [("NOT_COORDINATOR", True), ("UNSTABLE_OFFSET_COMMIT", False)])
def test_error_of_offset_fetch_is_that_of_the_group(broker: EmbeddedBroker, version: int, code: str, is_of_group: bool) -> None:
    is_flexible = version >= 6
    if version < 8:
        asked = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0])])
    else:
        topics = [OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    frame = struct.pack(">hhih", 9, version, 7, -1) + b"\0" * is_flexible + encode(asked, version, is_flexible)
    with broker.fault(api="OffsetFetch", error=code), socket.create_connection(address(broker), 20) as peer:
        peer.sendall(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
        body = peer.recv(size, socket.MSG_WAITALL)[4 + is_flexible :]
    response = decode(OffsetFetchResponse, version, is_flexible, body)
    of_group = response if version < 8 else response.groups[0]
    found = [partition.error_code for topic in of_group.topics for partition in topic.partitions]
    assert found == ([] if is_of_group and version >= 2 else [ErrorCode[code]])
    assert of_group.error_code == (ErrorCode[code] if version >= 2 else 0)


def test_requests_are_skipped_and_chosen_by_a_seed(broker: EmbeddedBroker) -> None:
    writer = Writer(broker)
    with broker.fault(api="Produce", error="INVALID_RECORD", skip=2, times=1):
        assert [writer.write(b"%d" % number) for number in range(4)] == [None, None, "INVALID_RECORD", None]
    outcomes = []
    for _ in range(2):
        with broker.fault(api="Produce", error="INVALID_RECORD", probability=0.5, seed=7):
            outcomes.append([writer.write(b"x") for _ in range(12)])
    assert outcomes[0] == outcomes[1]
    assert len(set(outcomes[0])) == 2


def test_faults_go_on_after_a_restore_and_end_with_a_reset(broker: EmbeddedBroker) -> None:
    snapshot = broker.snapshot()
    with broker.fault(api="Metadata", error="TOPIC_AUTHORIZATION_FAILED") as fault:
        broker.restore(snapshot)
        with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
            AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics("orders", timeout=20)
        assert fault.hits
        broker.reset()
        assert AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20).brokers


def test_log_is_sound_after_faults(broker: EmbeddedBroker) -> None:
    writer = Writer(broker, **{"enable.idempotence": True, "socket.timeout.ms": 1000, "request.timeout.ms": 900})
    effects = (
        {"lose": "reply"},
        {"disconnect": "reply"},
        {"error": "NOT_ENOUGH_REPLICAS_AFTER_APPEND"},
        {"disconnect": "mid_reply"},
    )
    for fields in effects:
        with broker.fault(api="Produce", times=1, **fields):
            assert writer.write(b"v") is None
    assert [each.offset for each in broker.records("orders", 0)] == list(range(4))
    assert [each.sequence for each in broker.records("orders", 0)] == list(range(4))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"api": "Product", "error": "NONE"}, "api='Product' is not an API"),
        ({"error": "BROKEN"}, "error='BROKEN' is not an error code"),
        ({"lose": "all"}, "lose='all' is none of request, reply"),
        ({"api": "Produce"}, "a fault has one of error, lose"),
        ({"error": "NONE", "lose": "reply"}, "a fault has one of error, lose"),
        ({"partition": 1, "error": "NONE"}, "partition is given without topic"),
        ({"trickle_bytes_per_s": 0}, "trickle_bytes_per_s=0 is not between 1 and"),
        ({"trickle_bytes_per_s": math.nan}, "trickle_bytes_per_s=nan is not between"),
        ({"trickle_bytes_per_s": 10**400}, "is not between 1 and 1e"),
        ({"reply_delay_s": -1}, "reply_delay_s=-1 is not between 0 and"),
        ({"reply_delay_s": math.nan}, "reply_delay_s=nan is not between 0 and"),
        ({"delay_s": math.inf}, "delay_s=inf is not between 0 and"),
        ({"coordinator": "gone"}, "coordinator='gone' is none of moving, loading"),
        ({"api": "Produce", "stale_metadata": True}, "stale_metadata is a fault of Metadata, not of Produce"),
        ({"full_disk": True, "error": "NONE"}, "a fault has one of error, lose"),
        ({"lost": "reply"}, "a fault has no field 'lost'; it has api, topic, .*lose"),
        ({"lose": "reply", "times": "3"}, "times='3' is not between 0 and inf"),
    ],
)
def test_wrong_faults_are_refused(broker: EmbeddedBroker, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said), broker.fault(**fields):
        pass


def test_fault_counts_all_hits_and_remembers_the_first() -> None:
    fault = ActiveFault(FaultSpec(lose="reply", times=MOST_HITS + 1))
    hits = [Hit(0, "Produce", 9, number, "c" * 30_000) for number in range(MOST_HITS + 2)]
    assert [fault.takes(hit) for hit in hits] == [True] * (MOST_HITS + 1) + [False]
    assert (len(fault.hits), fault.hit_count, fault.is_over) == (MOST_HITS, MOST_HITS + 1, True)
    assert fault.hits[0].client_id == "c" * MOST_CLIENT_ID_LENGTH


def test_fault_whose_test_stops_the_broker_ends_without_an_error() -> None:
    with EmbeddedBroker() as stopped, stopped.fault(api="Produce", lose="reply"):
        stopped.stop()


def refused(request: Any, response: Any, version: int, *, is_flexible: bool = False) -> Any:
    return refusal_of(request, response, ErrorCode.UNKNOWN_SERVER_ERROR, version, is_flexible=is_flexible)


def test_error_of_a_partition_has_no_offset() -> None:
    asked = FetchRequest(topics=[FetchTopic(topic="orders", partitions=[FetchPartition(partition=1, log_start_offset=5)])])
    [partition] = refused(asked, FetchResponse, 11).responses[0].partitions
    assert (partition.partition_index, partition.high_watermark, partition.log_start_offset) == (1, -1, -1)
    topic = TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=1)])
    [produced] = refused(ProduceRequest(topic_data=[topic]), ProduceResponse, 7).responses[0].partition_responses
    assert (produced.index, produced.base_offset) == (1, -1)


def test_error_of_a_coordinator_has_no_node() -> None:
    asked = FindCoordinatorRequest(coordinator_keys=["readers"])
    [found] = refused(asked, FindCoordinatorResponse, 4, is_flexible=True).coordinators
    assert (found.key, found.node_id, found.port) == ("readers", -1, -1)


def test_every_api_can_be_refused_in_every_version() -> None:
    cannot = set()
    for api in all_apis():
        for version in api.versions:
            is_flexible = api.is_flexible(version)
            made = refusal_of(api.request(), api.response, ErrorCode.UNKNOWN_SERVER_ERROR, version, is_flexible=is_flexible)
            if made is None:
                cannot.add(api.name)
            else:
                assert decode(api.response, version, is_flexible, encode(made, version, is_flexible)) is not None
    assert cannot == set()
