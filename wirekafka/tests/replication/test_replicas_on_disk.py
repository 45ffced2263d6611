"""A leader and a follower with logs on disk: bytes of the leader's file in the follower's log, commits, and truncation."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.log import Log
from wirekafka.log.storage import Bytes, Storage
from wirekafka.pending import Pending, Work, finish
from wirekafka.replication.follower_replica import FollowerReplica, Request
from wirekafka.replication.following import (
    Answered,
    AskEarliestOffset,
    AskLatestOffset,
    BackOff,
    BackOffEnded,
    Fetch,
    OffsetAnswered,
    Refused,
    StopFetching,
)
from wirekafka.replication.leader_replica import LeaderReplica, ReplicaFetch, ReplicaRead
from wirekafka.replication.leadership import IsrChange, IsrChanged, PartitionState
from wirekafka.replication.partition import Partition
from wirekafka.replication.replication_troubles import ReplicationTroubles
from wirekafka.tests.controller.played_brokers import PlayedTimers
from wirekafka.tests.log.logs import NOW_MS, World, batch, config_with

LEADER, FOLLOWER = 1, 2
LAG_MS = 1_000


class Pair:
    """Two brokers with a replica each, of which one leads. Requests arrive at once.

    Attributes:
        requests: what the follower asks its fetcher for.
        proposals: the changes that the leader proposes.
        errors: the requests that wait for a commit, as they end.
    """

    def __init__(self, path: Path, min_insync_replicas: int = 1) -> None:
        self.now_ms = NOW_MS
        self.world = World()
        self.config = config_with(min_insync_replicas=min_insync_replicas)
        self.logs = {broker: self.world.open_log(path / str(broker), self.config) for broker in (LEADER, FOLLOWER)}
        self.requests: deque[Request] = deque()
        self.proposals: list[IsrChange] = []
        self.errors: list[ErrorCode | None] = []
        self.leader: LeaderReplica
        self.follower: FollowerReplica

    def elect(self, broker: int, epoch: int, isr: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        other = FOLLOWER if broker == LEADER else LEADER
        partition = Partition("topic", bytes(16), 0, self.logs[broker], leader=broker, is_sole_replica=False)
        self.leader = LeaderReplica(
            partition,
            replica_lag_time_max_ms=LAG_MS,
            broker_epochs={LEADER: 10, FOLLOWER: 20},
            propose=lambda leader, change: self.proposals.append(change),
            now_ms=lambda: self.now_ms,
        )
        self.leader.lead(PartitionState(epoch, epoch, (LEADER, FOLLOWER), isr))
        self.requests.clear()
        self.follower = self.new_follower(self.logs[other], finish)
        self.follower.follow(broker, epoch)

    def new_follower(self, log: Log, run: Callable[[Work[int]], Any]) -> FollowerReplica:
        return FollowerReplica(
            log,
            back_off_ms=300,
            run=run,
            request=self.requests.append,
            now_ms=lambda: self.now_ms,
            troubles=ReplicationTroubles(PlayedTimers()),
        )

    def produce(self, *values: bytes) -> None:
        partition = self.leader.partition
        for value in values:
            info = partition.append(memoryview(batch(value)), now_ms=self.now_ms)
            partition.on_commit(info.last_offset + 1, self.errors.append)

    def pass_request(self) -> ReplicaRead | None:
        """Passes the follower's request to the leader, and the answer back."""
        request = self.requests.popleft()
        match request:
            case Fetch(_, epoch, offset, last_epoch):
                follower_id = FOLLOWER if self.leader.partition.leader == LEADER else LEADER
                start = self.follower.log.reader.log_start_offset
                try:
                    read = self.leader.fetch(
                        ReplicaFetch(follower_id, epoch, offset, last_epoch, start, follower_id * 10),
                        max_bytes=1 << 20,
                        min_one_batch=True,
                    )
                except KafkaError as error:
                    self.follower.handle(Refused(epoch, ErrorCode(error.code)))
                    return None
                records = memoryview(bytearray(as_bytes(read.records)))
                answer = Answered(epoch, offset, records, read.high_watermark, read.log_start_offset, read.diverging_epoch)
                self.follower.handle(answer)
                return read
            case AskLatestOffset(_, epoch):
                self.follower.handle(OffsetAnswered(epoch, self.leader.partition.log.log_end_offset))
            case AskEarliestOffset(_, epoch):
                self.follower.handle(OffsetAnswered(epoch, self.leader.partition.log.log_start_offset))
            case _:
                raise AssertionError(f"the follower waits: {request}")
        return None

    def replicate(self, times: int = 4) -> None:
        for _ in range(times):
            self.pass_request()

    def bytes_of(self, broker: int) -> bytes:
        reader = self.logs[broker].reader
        return as_bytes(
            reader.read(reader.log_start_offset, max_bytes=1 << 20, end_offset=reader.log_end_offset, min_one_batch=True)
        )


def as_bytes(records: Any) -> bytes:
    return records if isinstance(records, bytes) else records.read()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_follower_has_the_leaders_bytes_and_the_records_are_committed(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a", b"b", b"c")
    assert pair.errors == []
    pair.pass_request()
    assert pair.errors == [], "the leader does not know that the follower has the records"
    pair.pass_request()
    assert pair.errors == [None, None, None]
    pair.pass_request()
    assert pair.bytes_of(FOLLOWER) == pair.bytes_of(LEADER) != b""
    assert [log.reader.high_watermark for log in pair.logs.values()] == [3, 3]


def test_uncommitted_records_of_a_deposed_leader_are_truncated(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pair.replicate()
    pair.produce(b"lost")
    pair.elect(FOLLOWER, 2)
    pair.produce(b"b", b"c")
    pair.replicate(6)
    assert pair.bytes_of(FOLLOWER) == pair.bytes_of(LEADER)
    assert b"lost" not in pair.bytes_of(LEADER)
    assert [log.reader.high_watermark for log in pair.logs.values()] == [3, 3]


def test_leader_epoch_without_records_is_found_by_a_follower_with_records_of_an_epoch_between(pair: Pair) -> None:
    """The new leader's last record is older than the follower's; the entry of its own epoch lets it name their common epoch."""
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pair.replicate()
    pair.elect(FOLLOWER, 2)
    pair.produce(b"lost")
    pair.elect(LEADER, 3)
    pair.pass_request()
    assert list(pair.requests) == [Fetch(LEADER, 3, 1, 1)]
    pair.replicate()
    assert pair.bytes_of(FOLLOWER) == pair.bytes_of(LEADER)
    assert pair.logs[FOLLOWER].reader.log_end_offset == 1


def test_follower_whose_log_the_leader_has_outrun_begins_anew(pair: Pair) -> None:
    pair.elect(LEADER, 1, isr=(LEADER,))
    pair.produce(b"a", b"b", b"c")
    pair.leader.partition.delete_records(2)
    pair.replicate(6)
    reader = pair.logs[FOLLOWER].reader
    assert (reader.log_start_offset, reader.log_end_offset, reader.high_watermark) == (2, 3, 3)
    assert pair.bytes_of(FOLLOWER) == pair.bytes_of(LEADER)


def test_records_that_the_leader_deletes_are_deleted(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a", b"b", b"c")
    pair.replicate()
    pair.leader.partition.delete_records(2)
    pair.replicate(1)
    assert pair.logs[FOLLOWER].reader.log_start_offset == 2


def test_replica_that_lags_leaves_and_the_rest_is_committed(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pair.now_ms += LAG_MS + 1
    pair.leader.check_lag()
    (change,) = pair.proposals
    assert change.proposed == {LEADER}
    assert pair.leader.partition.in_sync_replicas == (LEADER, FOLLOWER)
    pair.leader.take_answer(IsrChanged(change, 1, 2, (LEADER,)))
    assert pair.errors == [None]
    assert pair.leader.partition.in_sync_replicas == (LEADER,)


def test_replica_that_has_caught_up_joins(pair: Pair) -> None:
    pair.elect(LEADER, 1, isr=(LEADER,))
    pair.produce(b"a")
    pair.replicate()
    assert [change.in_sync_replicas for change in pair.proposals] == [((LEADER, 10), (FOLLOWER, 20))]


def test_setting_of_min_insync_replicas_counts_when_it_changes(tmp_path: Path) -> None:
    pair = Pair(tmp_path, min_insync_replicas=2)
    pair.elect(LEADER, 1, isr=(LEADER,))
    pair.produce(b"a")
    assert pair.errors == []
    pair.leader.partition.writable_log.update_config(config_with(min_insync_replicas=1))
    pair.produce(b"b")
    assert pair.errors == [None, None]


def test_damaged_records_are_not_appended_and_fetched_again(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    request = pair.requests.popleft()
    assert isinstance(request, Fetch)
    damaged = bytearray(pair.bytes_of(LEADER))
    damaged[-1] ^= 1
    pair.follower.handle(Answered(1, 0, memoryview(damaged), 0, 0))
    assert pair.logs[FOLLOWER].reader.log_end_offset == 0
    assert list(pair.requests) == [BackOff(NOW_MS + 300)]


def test_log_that_fails_stops_the_follower(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pair.logs[FOLLOWER].reader.take_offline("the disk is broken")
    pair.replicate(1)
    assert list(pair.requests) == [StopFetching()]


class FillingStorage(Storage):
    """A disk that is full as long as a test says so."""

    is_full = False

    def write(self, fd: int, data: Bytes, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(fd, data, position)


def test_follower_goes_on_when_its_full_disk_has_space_again(tmp_path: Path) -> None:
    pair, storage = Pair(tmp_path), FillingStorage()
    pair.logs[FOLLOWER] = World(storage=storage).open_log(tmp_path / "full")
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    storage.is_full = True
    with capture_logs() as lines:
        for _ in range(3):
            pair.pass_request()
            assert list(pair.requests) == [BackOff(pair.now_ms + 300)]
            pair.requests.clear()
            pair.now_ms += 300
            pair.follower.handle(BackOffEnded())
    assert [line["event"] for line in lines] == ["The disk is full"]

    storage.is_full = False
    pair.replicate(1)
    assert pair.bytes_of(FOLLOWER) == pair.bytes_of(LEADER) != b""


def test_append_in_slices_ends_when_the_leader_changes(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    works: list[Work[int]] = []

    def run_later(work: Work[int]) -> Pending[Any]:
        works.append(work)
        return Pending(on_abandon=work.close)

    pair.follower = pair.new_follower(pair.logs[FOLLOWER], run_later)
    pair.requests.clear()
    pair.follower.follow(LEADER, 1)
    pair.pass_request()
    assert pair.follower.following.pending_append is not None
    pair.follower.follow(LEADER, 2)
    with pytest.raises(StopIteration):
        next(works[0])
    assert pair.logs[FOLLOWER].reader.log_end_offset == 0


def test_append_in_slices_is_reported_at_its_end(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pending: list[Pending[Any]] = []

    def run_later(work: Work[int]) -> Pending[Any]:
        finish(work)
        pending.append(Pending())
        return pending[0]

    pair.follower = pair.new_follower(pair.logs[FOLLOWER], run_later)
    pair.requests.clear()
    pair.follower.follow(LEADER, 1)
    pair.pass_request()
    assert list(pair.requests) == []
    pending[0].complete(1)
    assert list(pair.requests) == [Fetch(LEADER, 1, 1, 1)]


@pytest.mark.parametrize(
    ("failure", "is_defect", "outcome"),
    [(KafkaError(ErrorCode.CORRUPT_MESSAGE), False, BackOff(NOW_MS + 300)), (RuntimeError("a defect"), True, StopFetching())],
    ids=["damaged records", "a defect"],
)
def test_append_in_slices_that_fails_is_reported(
    pair: Pair, logged_faults: list[str], failure: Exception, is_defect: bool, outcome: Request
) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pending: Pending[Any] = Pending()
    pair.follower = pair.new_follower(pair.logs[FOLLOWER], lambda work: pending)
    pair.requests.clear()
    pair.follower.follow(LEADER, 1)
    pair.pass_request()
    pending.complete(failure)
    assert list(pair.requests) == [outcome]
    assert len(logged_faults) == is_defect
    logged_faults.clear()


def test_defect_of_an_append_stops_the_follower(pair: Pair, logged_faults: list[str]) -> None:
    def fail(work: Work[int]) -> int:
        raise RuntimeError("a defect")

    pair.elect(LEADER, 1)
    pair.produce(b"a")
    pair.follower = pair.new_follower(pair.logs[FOLLOWER], fail)
    pair.requests.clear()
    pair.follower.follow(LEADER, 1)
    pair.pass_request()
    assert list(pair.requests) == [StopFetching()]
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_stopped_replica_ends_its_append(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    works: list[Work[int]] = []

    def run_later(work: Work[int]) -> Pending[Any]:
        works.append(work)
        return Pending(on_abandon=work.close)

    pair.follower = pair.new_follower(pair.logs[FOLLOWER], run_later)
    pair.requests.clear()
    pair.follower.follow(LEADER, 1)
    pair.pass_request()
    pair.follower.close()
    assert list(works[0]) == []


@pytest.mark.parametrize(("epoch", "error"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_fetch_with_another_leader_epoch_is_refused(pair: Pair, epoch: int, error: ErrorCode) -> None:
    pair.elect(LEADER, 1)
    with pytest.raises(KafkaError) as caught:
        pair.leader.fetch(ReplicaFetch(FOLLOWER, epoch, 0, None, 0, 20), max_bytes=100, min_one_batch=True)
    assert caught.value.code == error
    assert pair.leader.leadership.followers[FOLLOWER].log_end_offset is None


def test_fetch_from_a_log_that_diverges_does_not_count(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    read = pair.leader.fetch(ReplicaFetch(FOLLOWER, 1, 5, 1, 0, 20), max_bytes=100, min_one_batch=True)
    assert (read.diverging_epoch, read.records) == ((1, 1), b"")
    assert pair.leader.leadership.followers[FOLLOWER].log_end_offset is None


def test_partition_with_replicas_does_not_commit_what_it_finds_in_its_log(pair: Pair) -> None:
    pair.elect(LEADER, 1)
    pair.produce(b"a")
    again = Partition("topic", bytes(16), 0, pair.logs[LEADER], leader=LEADER, is_sole_replica=False)
    assert again.log.high_watermark == 0
    assert Partition("topic", bytes(16), 0, pair.logs[LEADER], leader=LEADER).log.high_watermark == 1
