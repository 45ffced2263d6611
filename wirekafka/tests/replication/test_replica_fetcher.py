"""The fetchers of a broker, with logs on disk and a connection and timers that the test plays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode
from wirekafka.log.log import Log
from wirekafka.pending import Pending, Work, finish
from wirekafka.replication import replication_troubles
from wirekafka.replication.fetcher import Fetcher, FetcherSettings, FollowedPartition
from wirekafka.replication.replica_fetcher import ReplicaFetchers, fetcher_of
from wirekafka.tests.log.logs import World, batch
from wirekafka.wire.messages.fetch import (
    FETCH,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from wirekafka.wire.messages.list_offsets import LIST_OFFSETS
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

BACK_OFF_MS = 100
TOPIC_ID = b"t" * 16


class PlayedTimer:
    def __init__(self, due_ms: float, callback: Callable[[], object]) -> None:
        self.due_ms = due_ms
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class PlayedTimers:
    def __init__(self) -> None:
        self.now_ms = 0
        self.timers: list[PlayedTimer] = []

    def monotonic_ms(self) -> int:
        return self.now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> PlayedTimer:
        self.timers.append(PlayedTimer(self.now_ms + delay_ms, callback))
        return self.timers[-1]

    expire_later = call_later

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        while due := [timer for timer in self.timers if timer.due_ms <= self.now_ms]:
            for timer in due:
                self.timers.remove(timer)
                if timer.callback is not None:
                    timer.callback()


class PlayedSlices:
    """Runs work at once or, if it is told to, when the test says so."""

    def __init__(self) -> None:
        self.is_slow = False
        self.works: list[tuple[Work[int], Pending[Any]]] = []

    def run(self, work: Work[int]) -> int | Pending[int]:
        if not self.is_slow:
            return finish(work)
        pending: Pending[Any] = Pending(on_abandon=work.close)
        self.works.append((work, pending))
        return pending

    def finish(self) -> None:
        works, self.works, self.is_slow = self.works, [], False
        for work, pending in works:
            pending.complete(finish(work))


class PlayedChannel:
    def __init__(self) -> None:
        self.sent: list[tuple[RequestType[Any, Any], Message, Callable[[Any], object]]] = []
        self.is_closed = False

    def send(self, kind: RequestType[Any, Any], request: Any, version: int, on_end: Callable[[Any], object]) -> None:
        kind.frame(request, version, correlation_id=0, client_id="test")
        self.sent.append((kind, request, on_end))

    def close(self) -> None:
        self.is_closed = True

    def next_fetch(self) -> FetchRequest:
        kind, request, _ = self.sent[-1]
        assert kind is FETCH and isinstance(request, FetchRequest)
        return request

    def answer(self, *partitions: PartitionData, session_id: int = 9) -> None:
        topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[*partitions])] if partitions else []
        self.sent[-1][2](FetchResponse(session_id=session_id, responses=topics))


class Bench:
    """The fetchers of broker 3.

    Attributes:
        channels: the connections, by the leader and the number of the fetcher; the newest one if there were several.
    """

    def __init__(self, path: Path, fetcher_count: int = 1) -> None:
        self.world = World()
        self.path = path
        self.timers = PlayedTimers()
        self.slices = PlayedSlices()
        self.channels: dict[tuple[int, int], PlayedChannel] = {}
        self.fetchers = ReplicaFetchers(
            FetcherSettings(replica_id=3, broker_epoch=lambda: 30, back_off_ms=BACK_OFF_MS),
            fetcher_count=fetcher_count,
            connect=self.connect,
            timers=self.timers,
            slices=self.slices,
        )
        self.logs: dict[int, Log] = {}

    def connect(self, leader_id: int, number: int) -> PlayedChannel:
        self.channels[leader_id, number] = channel = PlayedChannel()
        return channel

    def follow(self, index: int, leader_id: int | None = 1, leader_epoch: int = 5) -> None:
        if index not in self.logs:
            self.logs[index] = self.world.open_log(self.path / str(index))
        self.fetchers.follow(followed(index), self.logs[index], leader_id, leader_epoch)

    def pass_turn(self) -> None:
        self.timers.pass_time(0)


def followed(index: int) -> FollowedPartition:
    return FollowedPartition("topic", TOPIC_ID, index)


def stored_batch(value: bytes, offset: int = 0, epoch: int = 5) -> bytearray:
    """Returns a batch as a leader of the epoch stores it."""
    stored = bytearray(batch(value))
    stored[0:8] = offset.to_bytes(8, "big")
    stored[12:16] = epoch.to_bytes(4, "big")
    return stored


def offsets_of(request: FetchRequest) -> dict[int, int]:
    return {asked.partition: asked.fetch_offset for topic in request.topics for asked in topic.partitions}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_partitions_of_one_leader_are_fetched_by_one_request(bench: Bench) -> None:
    bench.follow(0)
    bench.follow(1)
    bench.pass_turn()
    assert len(bench.channels[1, 0].sent) == 1
    assert offsets_of(bench.channels[1, 0].next_fetch()) == {0: 0, 1: 0}


def test_records_are_appended_and_the_next_fetch_is_sent_at_once(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    frame = memoryview(stored_batch(b"a"))
    channel.answer(PartitionData(partition_index=0, high_watermark=1, log_start_offset=0, records=frame))
    assert offsets_of(channel.next_fetch()) == {0: 1}
    reader = bench.logs[0].reader
    assert (reader.log_end_offset, reader.high_watermark) == (1, 1)


def test_partition_moves_to_the_fetcher_of_its_new_leader(bench: Bench) -> None:
    bench.follow(0)
    bench.follow(1)
    bench.pass_turn()
    bench.follow(0, leader_id=2, leader_epoch=6)
    bench.pass_turn()
    assert offsets_of(bench.channels[2, 0].next_fetch()) == {0: 0}
    bench.channels[1, 0].answer(PartitionData(partition_index=0, records=stored_batch(b"late")), PartitionData(partition_index=1))
    assert bench.logs[0].reader.log_end_offset == 0
    [forgotten] = bench.channels[1, 0].next_fetch().forgotten_topics_data
    assert forgotten.partitions == [0]


def test_fetcher_without_partitions_ends_its_connection(bench: Bench) -> None:
    bench.follow(0)
    bench.follow(0, leader_id=2, leader_epoch=6)
    assert bench.channels[1, 0].is_closed and len(bench.fetchers) == 1
    bench.fetchers.stop(followed(0))
    assert bench.channels[2, 0].is_closed and len(bench.fetchers) == 0


def test_partition_without_a_leader_is_not_fetched(bench: Bench) -> None:
    bench.follow(0, leader_id=None)
    assert not bench.channels


def test_error_of_a_partition_is_followed_by_a_fetch_after_the_back_off(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    channel.answer(PartitionData(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert offsets_of(channel.next_fetch()) == {}
    channel.answer(session_id=0)
    bench.timers.pass_time(BACK_OFF_MS - 1)
    assert len(channel.sent) == 2
    bench.timers.pass_time(1)
    assert offsets_of(channel.next_fetch()) == {0: 0}


def test_lost_connection_is_followed_by_a_full_fetch_after_the_back_off(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    channel.sent[-1][2](None)
    bench.timers.pass_time(BACK_OFF_MS - 1)
    assert len(channel.sent) == 1
    bench.timers.pass_time(1)
    assert len(channel.sent) == 2
    assert channel.next_fetch().session_epoch == 0


def test_offset_out_of_range_asks_for_the_ends_of_the_leaders_log(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    channel.answer(PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert channel.sent[-1][0] is LIST_OFFSETS
    channel.sent[-1][2](None)
    bench.timers.pass_time(BACK_OFF_MS)
    assert offsets_of(channel.next_fetch()) == {0: 0}


def test_answer_in_slices_is_followed_by_the_next_fetch_at_its_end(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    bench.slices.is_slow = True
    channel.answer(PartitionData(partition_index=0, high_watermark=1, records=memoryview(stored_batch(b"a"))))
    assert (bench.logs[0].reader.log_end_offset, len(channel.sent)) == (0, 1)
    bench.slices.finish()
    assert bench.logs[0].reader.log_end_offset == 1
    assert offsets_of(channel.next_fetch()) == {0: 1}


def test_fetcher_ends_when_its_last_follower_stops_within_the_slices_of_an_answer(bench: Bench, logged_faults: list[str]) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    bench.slices.is_slow = True
    channel.answer(PartitionData(partition_index=0, error_code=ErrorCode.FENCED_LEADER_EPOCH))
    bench.slices.finish()
    assert (logged_faults, len(bench.fetchers), channel.is_closed) == ([], 0, True)


def test_closed_fetchers_deliver_and_send_nothing(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    bench.slices.is_slow = True
    channel.answer(PartitionData(partition_index=0, high_watermark=1, records=memoryview(stored_batch(b"a"))))
    bench.fetchers.close()
    [(work, _)] = bench.slices.works
    assert list(work) == []
    bench.timers.pass_time(10 * BACK_OFF_MS)
    assert bench.logs[0].reader.log_end_offset == 0
    assert channel.is_closed and len(channel.sent) == 1


def test_defect_of_one_follower_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, logged_faults: list[str]
) -> None:
    bench.follow(0)
    bench.follow(1)
    bench.pass_turn()
    bench.fetchers._replicas[followed(0)].following = None  # type: ignore[assignment]
    data = [PartitionData(partition_index=index, high_watermark=1, records=memoryview(stored_batch(b"a"))) for index in (0, 1)]
    bench.channels[1, 0].answer(*data)
    assert bench.logs[1].reader.log_end_offset == 1
    assert offsets_of(bench.channels[1, 0].next_fetch()) == {1: 1}
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_request_that_cannot_be_written_is_tried_again_after_the_back_off(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, logged_faults: list[str]
) -> None:
    bench.follow(0)
    with monkeypatch.context() as patch:
        patch.setattr(PlayedChannel, "send", lambda *args: 1 / 0)
        bench.pass_turn()
    assert len(logged_faults) == 1
    logged_faults.clear()
    bench.timers.pass_time(BACK_OFF_MS)
    assert offsets_of(bench.channels[1, 0].next_fetch()) == {0: 0}


@pytest.mark.parametrize("is_slow", [False, True], ids=["at once", "in slices"])
def test_defect_of_the_fetcher_itself_does_not_end_it(
    bench: Bench, is_slow: bool, monkeypatch: pytest.MonkeyPatch, logged_faults: list[str]
) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    bench.slices.is_slow = is_slow
    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "_next_fetch", lambda self: 1 / 0)
        channel.answer(PartitionData(partition_index=0, high_watermark=1, records=memoryview(stored_batch(b"a"))))
        bench.slices.finish()
    assert (len(channel.sent), len(logged_faults)) == (1, 1)
    logged_faults.clear()
    bench.timers.pass_time(BACK_OFF_MS)
    bench.timers.pass_time(BACK_OFF_MS)
    assert offsets_of(channel.next_fetch()) == {0: 1}
    assert len(channel.sent) == 2


def crc_of(stored: bytearray) -> bytearray:
    stored[17:21] = crc32c(bytes(stored[21:])).to_bytes(4, "big")
    return stored


def records(*batches: bytearray) -> dict[str, Any]:
    return {"high_watermark": 1, "records": memoryview(bytearray(b"".join(batches)))}


def changed(position: int, value: bytes, offset: int = 0) -> bytearray:
    """Returns a batch with other bytes at a position, and the checksum of them."""
    stored = stored_batch(b"a", offset)
    stored[position : position + len(value)] = value
    return crc_of(stored)


GREATEST = 0x7FFFFFFFFFFFFFFF
HOSTILE: dict[str, dict[str, Any]] = {
    "the bytes are no batch": {"records": memoryview(b"x" * 100)},
    "a batch that does not end": records(stored_batch(b"a")[:-1]),
    "a checksum that is wrong": records(stored_batch(b"a")[:-1] + b"?"),
    "another message format": records(changed(16, b"\x05")),
    "a negative length": records(changed(8, b"\xff\xff\xff\xff")),
    "a negative offset": records(stored_batch(b"a", -1 % (1 << 64))),
    "the greatest offset": records(stored_batch(b"a", GREATEST)),
    "a last offset beyond the greatest": records(changed(23, b"\0\0\0\x05", GREATEST - 1)),
    "the offsets overlap": records(stored_batch(b"a"), stored_batch(b"b")),
    "a batch of a later leader epoch": records(stored_batch(b"a", epoch=99)),
    "a divergence beyond the end": {"diverging_epoch": EpochEndOffset(epoch=99, end_offset=GREATEST)},
    "a divergence without an end": {"diverging_epoch": EpochEndOffset(epoch=1, end_offset=-1)},
    "an error that does not exist": {"error_code": 12_345},
    "a negative error": {"error_code": -9},
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=list(HOSTILE))
def test_nonsense_for_one_partition_delays_only_this_one_and_is_logged_once(
    bench: Bench, hostile: dict[str, Any], logged_faults: list[str]
) -> None:
    bench.follow(0)
    bench.follow(1)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    with capture_logs() as lines:
        for number in range(3):
            good = PartitionData(
                partition_index=1, high_watermark=1, records=memoryview(stored_batch(b"g", number)), log_start_offset=0
            )
            channel.answer(PartitionData(partition_index=0, **hostile), good, session_id=0)
            assert offsets_of(channel.next_fetch()) == {1: number + 1}, "the next fetch of the other partition does not wait"
            channel.answer(PartitionData(partition_index=1), session_id=0)
            bench.timers.pass_time(BACK_OFF_MS)
            channel.answer(PartitionData(partition_index=1), session_id=0)
            assert offsets_of(channel.next_fetch()) == {0: 0, 1: number + 1}
        bench.timers.pass_time(replication_troubles.DELAY_MS)
    assert [log.reader.log_end_offset for log in bench.logs.values()] == [0, 3]
    assert [line["first"] for line in lines if line["event"] == "Partitions are not replicated"] == [["topic-0"]]
    assert logged_faults == []


@pytest.mark.parametrize("watermark", [-1, 0, GREATEST])
@pytest.mark.parametrize("start", [-1, GREATEST])
def test_offsets_beyond_the_own_log_are_not_taken_over(bench: Bench, watermark: int, start: int) -> None:
    bench.follow(0)
    bench.pass_turn()
    stored = memoryview(stored_batch(b"a"))
    data = PartitionData(partition_index=0, high_watermark=watermark, log_start_offset=start, records=stored)
    bench.channels[1, 0].answer(data)
    reader = bench.logs[0].reader
    end = 1 if watermark > 0 else 0
    assert (reader.log_end_offset, reader.high_watermark, reader.log_start_offset) == (1, end, end if start > 0 else 0)


def test_answers_that_cannot_be_used_are_logged_once_for_each_cause(bench: Bench) -> None:
    bench.follow(0)
    bench.pass_turn()
    channel = bench.channels[1, 0]
    with capture_logs() as lines:
        for _ in range(3):
            channel.answer(PartitionData(partition_index=7))
            bench.timers.pass_time(BACK_OFF_MS)
        channel.sent[-1][2](FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        bench.timers.pass_time(BACK_OFF_MS)
        channel.answer(PartitionData(partition_index=0))
    assert [(line["leader"], line["reason"]) for line in lines] == [
        (1, "it names other partitions than the request"),
        (1, "UNKNOWN_SERVER_ERROR"),
    ]
    assert channel.next_fetch().session_epoch == 1


@pytest.mark.parametrize(
    ("topic", "index", "count", "number"),
    [("a", 0, 4, 3), ("a", 1, 4, 0), ("polygenelubricants", 0, 7, 0), ("polygenelubricants", 1, 7, 1), ("a", 5, 1, 0)],
    ids=["31 * 97 % 4", "the partition counts", "the least number is 0", "a number below 0", "one fetcher"],
)
def test_fetcher_of_a_partition_is_kafkas(topic: str, index: int, count: int, number: int) -> None:
    assert fetcher_of(topic, index, count) == number
