"""Produce with acks=all where an append is not a commit: a second replica is in sync, and the test moves the high watermark."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.errors import ErrorCode
from wirekafka.log.validation import ON_LOOP, Batch
from wirekafka.names import TRANSACTION_STATE_TOPIC
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.server.connection import Connection
from wirekafka.server.dispatch import Dispatcher
from wirekafka.server.receive_buffers import ReceiveBuffers
from wirekafka.tests.api import transacting
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, values_of, wait_for
from wirekafka.tests.server.frames import client, request
from wirekafka.tests.waiting import until
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

VERSION = 11
FOLLOWER = 99


def replicated(caller: Caller, partition_count: int = 1, **settings: str) -> list[Partition]:
    """Creates a topic whose partitions have a follower in sync."""
    overrides = {name.replace("_", "."): value for name, value in settings.items()}
    partitions = caller.broker.topics.create("flights", partition_count, overrides).partitions
    for partition in partitions:
        partition.set_replicas((partition.leader, FOLLOWER), (partition.leader, FOLLOWER))
    return partitions


def produce(caller: Caller, *indexes: int, acks: int = -1, records: Any = None) -> Any:
    return caller.ask(message(*indexes, acks=acks, records=records), VERSION)


def message(*indexes: int, acks: int = -1, records: Any = None) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records or batch(b"value")) for index in indexes or (0,)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="flights", partition_data=data)])


def codes(response: Any) -> list[int]:
    return [answer.error_code for answer in response.responses[0].partition_responses]


def fetched(caller: Caller) -> list[bytes | None]:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    answer = caller.ask(FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic="flights", partitions=[asked])]), 12)
    return values_of(answer.responses[0].partitions[0].records)


def test_produce_with_acks_all_is_answered_once_the_high_watermark_passes_its_records(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        first, second = produce(caller), produce(caller)
        assert not first.holds_connection
        assert fetched(caller) == []
        partition.advance_high_watermark(1)
        assert (first.is_done, second.is_done) == (True, False)
        assert fetched(caller) == [b"value"]
        partition.advance_high_watermark(2)
        answer = (await wait_for(second)).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 1)

    run(body, tmp_path)


@pytest.mark.parametrize("acks", [0, 1])
def test_produce_with_other_acks_does_not_wait_for_the_commit(tmp_path: Path, acks: int) -> None:
    async def body(caller: Caller) -> None:
        replicated(caller)
        assert not isinstance(produce(caller, acks=acks), Pending)
        assert fetched(caller) == []

    run(body, tmp_path)


def test_produce_to_several_partitions_waits_for_the_last_commit(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        first, second = replicated(caller, 2)
        pending = produce(caller, 0, 1)
        second.advance_high_watermark(1)
        assert not pending.is_done
        first.advance_high_watermark(1)
        assert codes(await wait_for(pending)) == [0, 0]

    run(body, tmp_path)


def test_produce_whose_records_are_not_committed_in_time_times_out_where_they_are_not(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        first, _ = replicated(caller, 2)
        pending = produce(caller, 0, 1)
        first.advance_high_watermark(1)
        assert codes(await wait_for(pending)) == [0, ErrorCode.REQUEST_TIMED_OUT]

    run(body, tmp_path)


def test_produce_committed_with_too_few_replicas_in_sync_says_so(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller, min_insync_replicas="2")
        pending = produce(caller)
        partition.set_replicas(partition.replicas, (partition.leader,))
        assert codes(await wait_for(pending)) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
        assert codes(produce(caller)) == [ErrorCode.NOT_ENOUGH_REPLICAS]

    run(body, tmp_path)


def test_produce_whose_partition_is_lost_before_the_commit_says_so(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        pending = produce(caller)
        partition.close()
        assert codes(await wait_for(pending)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run(body, tmp_path)


def test_produce_of_a_duplicate_waits_for_the_commit_of_the_first(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        first, again = (produce(caller, records=batch(b"value", **fields)) for _ in range(2))
        assert partition.log.log_end_offset == 1
        partition.advance_high_watermark(1)
        assert codes(await wait_for(first)) == codes(await wait_for(again)) == [0]

    run(body, tmp_path)


def test_produce_whose_client_leaves_waits_for_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        produce(caller).abandon()
        partition.advance_high_watermark(1)
        assert fetched(caller) == [b"value"]

    run(body, tmp_path)


def test_produce_validated_in_a_thread_whose_client_leaves_waits_for_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        heavy = build_batch([Record(value=b"value", timestamp=NOW_MS)] * (ON_LOOP.record_count + 1))
        pending = produce(caller, records=heavy)
        await until(lambda: not pending.holds_connection)
        pending.abandon()
        assert all(wait.callback is None for wait in partition._commit_waits)

    run(body, tmp_path)


def test_produce_requests_that_timed_out_leave_nothing_in_the_partition(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        for _ in range(10):
            await wait_for(produce(caller))
        assert len(partition._commit_waits) <= 1

    run(body, tmp_path)


@pytest.mark.parametrize("is_committed", [True, False])
def test_produce_by_shortcut_waits_for_the_commit_too(tmp_path: Path, is_committed: bool) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        dispatcher, by = Dispatcher(caller.broker), client()

        def send(correlation_id: int) -> Any:
            frame = request(0, VERSION, correlation_id, b"\0" + encode(message(), VERSION, True))
            return dispatcher.handle(memoryview(bytearray(frame))[4:], by, NOW_MS)

        partition.set_replicas((partition.leader,), (partition.leader,))
        send(1)
        route = dispatcher._routes[VERSION]
        assert by.shortcuts
        route.handler = None  # type: ignore[assignment]
        partition.set_replicas((partition.leader, FOLLOWER), (partition.leader, FOLLOWER))
        pending = send(2)
        assert isinstance(pending, Pending)
        if is_committed:
            partition.advance_high_watermark(2)
        answer = await wait_for(pending)
        assert struct.unpack_from(">i", answer, 4)[0] == 2
        found = decode(type(route.api.response()), VERSION, True, memoryview(answer)[9:])
        assert codes(found) == [0 if is_committed else ErrorCode.REQUEST_TIMED_OUT]
        assert found.responses[0].partition_responses[0].base_offset == 1, "the records are in the log"

    run(body, tmp_path)


def test_produce_answers_of_several_requests_leave_in_order_whatever_becomes_of_each(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        first, second = replicated(caller, 2)
        requests = [message(0), message(1), message(0, acks=1), message(7), message(0, acks=0), message(1)]
        replies = Replies(Dispatcher(caller.broker))
        for number, each in enumerate(requests[:5], 1):
            replies.send(request(0, VERSION, number, b"\0" + encode(each, VERSION, True)))
        assert replies.answered == []
        second.advance_high_watermark(1)
        assert replies.answered == []
        replies.send(request(0, VERSION, 6, b"\0" + encode(requests[5], VERSION, True)))
        assert second.log.log_end_offset == 1, "no sixth request is handled before the first is answered"
        first.close()
        assert replies.answered == [1, 2, 3, 4]
        replies.go_on()
        assert second.log.log_end_offset == 2
        second.advance_high_watermark(2)
        assert replies.answered == [1, 2, 3, 4, 6]

    run(body, tmp_path)


def test_produce_without_acks_that_fails_ends_its_connection_after_the_answers_before_it(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        replies = Replies(Dispatcher(caller.broker))
        for number, each in enumerate([message(0), message(7, acks=0), message(0)], 1):
            replies.send(request(0, VERSION, number, b"\0" + encode(each, VERSION, True)))
        assert partition.log.log_end_offset == 1
        assert not replies.connection.is_closing
        partition.advance_high_watermark(1)
        assert replies.answered == [1]
        assert replies.connection.is_closing

    run(body, tmp_path)


def test_produce_connection_that_ends_leaves_no_wait_and_no_timer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = replicated(caller)
        replies = Replies(Dispatcher(caller.broker))
        for number in range(5):
            replies.send(request(0, VERSION, number, b"\0" + encode(message(0), VERSION, True)))
        replies.connection.abandon()
        assert all(wait.callback is None for wait in partition._commit_waits)
        await trio.sleep(10)
        partition.advance_high_watermark(5)
        assert replies.answered == []

    run(body, tmp_path)


class Replies:
    """A connection without a socket, and the correlation ids of the responses that have left."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.answered: list[int] = []
        self.connection = Connection(client(), dispatcher, ReceiveBuffers(), lambda connection: self._take())

    def send(self, frame: bytes) -> None:
        self.connection.space()[: len(frame)] = frame
        self.connection.received(len(frame))
        self.go_on()

    def go_on(self) -> None:
        self.connection.handle_frames()
        self._take()

    def _take(self) -> None:
        while self.connection.output:
            piece = self.connection.output.popleft()
            assert isinstance(piece, bytes)
            self.answered += struct.unpack_from(">i", piece, 4)


def test_produce_by_shortcut_that_fails_unexpectedly_is_answered_for_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        dispatcher, by = Dispatcher(caller.broker), client()

        def send(correlation_id: int) -> Any:
            frame = request(0, VERSION, correlation_id, b"\0" + encode(message(), VERSION, True))
            return dispatcher.handle(memoryview(bytearray(frame))[4:], by, NOW_MS)

        def fail(self: Partition, *arguments: Any, **settings: Any) -> Any:
            raise ZeroDivisionError

        send(1)
        route = dispatcher._routes[VERSION]
        assert by.shortcuts
        route.handler = None  # type: ignore[assignment]
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(Partition, "append", fail)
            answer = send(2)
        found = decode(type(route.api.response()), VERSION, True, memoryview(answer)[9:])
        assert codes(found) == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert [line["log_level"] for line in lines] == ["error"]

    run(body, tmp_path)


@pytest.mark.parametrize("is_heavy", [False, True])
def test_produce_to_a_partition_that_fails_unexpectedly_costs_only_its_own_answer(
    tmp_path: Path, is_heavy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        append = Partition.append

        def fail(self: Partition, *arguments: Any, **settings: Any) -> Any:
            if self.index == 1 and (not is_heavy or isinstance(arguments[0], Batch)):
                raise ZeroDivisionError
            return append(self, *arguments, **settings)

        count = ON_LOOP.record_count + 1 if is_heavy else 1
        records = build_batch([Record(value=b"value", timestamp=NOW_MS)] * count)
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(Partition, "append", fail)
            answer = produce(caller, 0, 1, 2, acks=1, records=records)
            response = await wait_for(answer) if isinstance(answer, Pending) else answer
        assert codes(response) == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
        assert [line["log_level"] for line in lines] == ["error"]

    run(body, tmp_path)


def test_transactional_records_are_appended_once_their_partition_belongs_to_the_transaction_for_certain(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        [partition] = caller.broker.topics.create("flights", 1).partitions
        producer = transacting.Transactor(caller)
        topic = caller.broker.topics.find(TRANSACTION_STATE_TOPIC)
        assert topic is not None
        [state] = topic.partitions
        state.set_replicas((state.leader, FOLLOWER), (state.leader, FOLLOWER))
        data = PartitionProduceData(index=0, records=producer.batch(b"value", sequence=0))
        request = ProduceRequest(transactional_id="pilot", acks=-1, timeout_ms=1000)
        request.topic_data = [TopicProduceData(name="flights", partition_data=[data])]
        response = caller.ask(request, 12)
        assert (response.is_done, partition.log.log_end_offset) == (False, 0)
        state.advance_high_watermark(state.log.log_end_offset)
        assert codes(await wait_for(response)) == [0]
        assert partition.log.log_end_offset == 1

    transacting.run(body, tmp_path)
