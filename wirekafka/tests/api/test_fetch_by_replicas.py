"""Fetch by other replicas: up to the end of the log, in sessions and without, with waits that appends end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from wirekafka.errors import ErrorCode
from wirekafka.metadata.image import ClusterImage
from wirekafka.replication.leader_replica import LeaderReplica
from wirekafka.replication.leadership import IsrChange, IsrChanged, IsrChangeFailed, PartitionState
from wirekafka.replication.partition import Partition
from wirekafka.replication.throttle import Rate, ReplicationThrottle
from wirekafka.tests.api.data_plane import Caller, batch, run, wait_for
from wirekafka.tests.api.fetching import append, at, partitions_of, request_of, values
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, ReplicaState
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

FOLLOWER, EPOCH, LAG_MS = 77, 5, 10_000


class Stage:
    """A broker that leads partitions with one follower each, which it thinks is alive.

    Attributes:
        proposals: the changes of the in-sync replicas that the leaders propose.
    """

    def __init__(self, caller: Caller, count: int = 1, *, in_sync: bool = True) -> None:
        self.caller = caller
        self.broker = caller.broker
        self.node_id = caller.broker.node_id
        self.proposals: list[IsrChange] = []
        self.broker_epochs: dict[int, int | None] = {self.node_id: 1, FOLLOWER: 20}
        self.partitions: list[Partition] = self.broker.topics.create("flights", count).partitions
        self.leaders = [self.lead(partition, in_sync) for partition in self.partitions]

    def lead(self, partition: Partition, in_sync: bool) -> LeaderReplica:
        leader = LeaderReplica(
            partition,
            replica_lag_time_max_ms=LAG_MS,
            broker_epochs=self.broker_epochs,
            propose=lambda leader, change: self.proposals.append(change),
            now_ms=self.broker.clock.monotonic_ms,
        )
        in_sync_replicas = (self.node_id, FOLLOWER) if in_sync else (self.node_id,)
        leader.lead(PartitionState(EPOCH, 1, (self.node_id, FOLLOWER), in_sync_replicas))
        self.broker.leader_replicas[partition] = leader
        return leader

    def request(self, *asked: FetchPartition, version: int = 17, broker_epoch: int = 20, **fields: Any) -> FetchRequest:
        if version >= 15:
            fields["replica_state"] = ReplicaState(replica_id=FOLLOWER, replica_epoch=broker_epoch)
        else:
            fields["replica_id"] = FOLLOWER
        request = request_of(self.caller, *asked, **fields)
        if not asked:
            request.topics = []
        return request

    def fetch(self, *asked: FetchPartition, version: int = 17, **fields: Any) -> Any:
        return self.caller.ask(self.request(*asked, version=version, **fields), version)

    def consume(self, offset: int, index: int = 0) -> list[bytes | None]:
        return values(partitions_of(self.caller.ask(request_of(self.caller, at(offset, index)), 12))[index])


class Session:
    """A follower's fetch session."""

    def __init__(self, stage: Stage, *asked: FetchPartition, **fields: Any) -> None:
        self.stage = stage
        self.first = stage.fetch(*asked, session_epoch=0, **fields)
        self.session_id, self.epoch = self.first.session_id, 0

    def fetch(self, *asked: FetchPartition, **fields: Any) -> Any:
        self.epoch += 1
        return self.stage.fetch(*asked, session_id=self.session_id, session_epoch=self.epoch, **fields)


def at_end(offset: int, index: int = 0, **fields: Any) -> FetchPartition:
    return at(offset, index, current_leader_epoch=EPOCH, **fields)


@pytest.mark.parametrize("version", range(4, 19))
def test_follower_reads_what_is_not_committed_and_commits_it_by_its_next_fetch(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a", b"b"))
        assert stage.consume(0) == []
        data = partitions_of(stage.fetch(at_end(0), version=version))[0]
        assert (values(data), data.high_watermark) == ([b"a", b"b"], 0)
        data = partitions_of(stage.fetch(at_end(2), version=version))[0]
        assert (values(data), data.high_watermark) == ([], 2)
        assert stage.consume(0) == [b"a", b"b"]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (at(0, current_leader_epoch=EPOCH - 1), ErrorCode.FENCED_LEADER_EPOCH),
        (at(0, current_leader_epoch=EPOCH + 1), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (at_end(9), ErrorCode.OFFSET_OUT_OF_RANGE),
        (at_end(0, index=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_fetch_that_the_leader_refuses_gets_kafkas_error(tmp_path: Path, asked: FetchPartition, error: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        data = partitions_of(stage.fetch(asked))[asked.partition]
        assert data.error_code == error
        leader = data.current_leader
        assert (leader is not None) == (error == ErrorCode.FENCED_LEADER_EPOCH)
        assert leader is None or (leader.leader_id, leader.leader_epoch) == (stage.node_id, EPOCH)

    run(body, tmp_path)


def test_partition_that_another_broker_leads_names_it(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        stage.partitions[0].leader = 5
        response = stage.fetch(at_end(0))
        data = partitions_of(response)[0]
        assert (data.error_code, data.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 5)
        assert response.node_endpoints == []

    run(body, tmp_path)


def test_partition_without_other_replicas_refuses_a_follower(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, 2)
        del stage.broker.leader_replicas[stage.partitions[1]]
        found = partitions_of(stage.fetch(at_end(0, 0), at_end(0, 1)))
        assert [found[index].error_code for index in (0, 1)] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]

    run(body, tmp_path)


def test_follower_of_a_former_registration_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        assert partitions_of(stage.fetch(at_end(0), broker_epoch=19))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert partitions_of(stage.fetch(at_end(0), broker_epoch=-1))[0].error_code == 0

    run(body, tmp_path)


def test_log_that_diverges_is_told_where_and_does_not_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a"))
        data = partitions_of(stage.fetch(at_end(3, last_fetched_epoch=EPOCH), max_wait_ms=1_000))[0]
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (EPOCH, 1)
        assert data.records == b""

    run(body, tmp_path)


def test_limits_hold_over_all_partitions_after_the_first_batch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, 2)
        for index in (0, 1):
            append(caller, batch(b"a" * 1_000), index=index)
            append(caller, batch(b"b" * 1_000), index=index)
        found = partitions_of(stage.fetch(at_end(0, 0), at_end(0, 1), max_bytes=10))
        assert [len(values(found[index])) for index in (0, 1)] == [1, 0]

    run(body, tmp_path)


@pytest.mark.parametrize("is_in_session", [False, True], ids=["full", "in a session"])
def test_follower_that_waits_is_woken_by_an_append_and_not_by_a_commit(tmp_path: Path, is_in_session: bool) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a"))
        if is_in_session:
            pending = Session(stage, at_end(0)).fetch(at_end(1), max_wait_ms=1_000)
        else:
            pending = stage.fetch(at_end(1), max_wait_ms=1_000)
        assert stage.consume(0) == [b"a"], "the fetch has committed what it waits behind"
        assert not pending.is_done
        stage.partitions[0].tell_replicas(0)
        assert not pending.is_done
        append(caller, batch(b"b"))
        assert pending.is_done
        assert values(partitions_of(await wait_for(pending))[0]) == [b"b"]
        assert stage.consume(0) == [b"a"]

    run(body, tmp_path)


def test_follower_that_waits_gets_the_high_watermark_at_the_end_of_its_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        session = Session(stage, at_end(0))
        append(caller, batch(b"a"))
        session.fetch()
        began = trio.current_time()
        [data] = partitions_of(await wait_for(session.fetch(at_end(1), max_wait_ms=1_000))).values()
        assert (trio.current_time() - began, data.high_watermark) == (1, 1)
        assert (await wait_for(session.fetch(max_wait_ms=1_000))).responses == []

    run(body, tmp_path)


def test_idle_session_reads_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, 3)
        session = Session(stage, *(at_end(0, index) for index in range(3)))
        read: list[str] = []
        original = LeaderReplica.fetch

        def fetch(self: LeaderReplica, *args: Any, **fields: Any) -> Any:
            read.append(str(self.partition.topic_partition))
            return original(self, *args, **fields)

        monkeypatch.setattr(LeaderReplica, "fetch", fetch)
        assert session.fetch().responses == []
        assert read == []
        append(caller, batch(b"a"), index=1)
        assert {index: values(data) for index, data in partitions_of(session.fetch()).items()} == {1: [b"a"]}
        assert read == ["flights-1"]

    run(body, tmp_path)


def test_high_watermark_that_another_follower_has_moved_is_told(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        session = Session(stage, at_end(0))
        append(caller, batch(b"a"))
        session.fetch()
        assert [data.high_watermark for data in partitions_of(session.fetch(at_end(1))).values()] == [1]
        assert session.fetch().responses == []
        stage.partitions[0].delete_records(1)
        assert [data.log_start_offset for data in partitions_of(session.fetch()).values()] == [1]

    run(body, tmp_path)


def test_idle_follower_does_not_lag_when_records_come(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        session = Session(stage, at_end(0))
        for _ in range(5):
            await trio.sleep(LAG_MS / 2_000)
            session.fetch()
        append(caller, batch(b"a"))
        stage.leaders[0].check_lag()
        assert stage.proposals == []
        await trio.sleep(LAG_MS / 1_000 + 0.1)
        stage.leaders[0].check_lag()
        assert [change.proposed for change in stage.proposals] == [{stage.node_id}]

    run(body, tmp_path)


def test_follower_whose_session_is_no_longer_used_lags_when_records_come(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        Session(stage, at_end(0)).fetch()
        await trio.sleep(LAG_MS / 1_000 + 0.1)
        append(caller, batch(b"a"))
        stage.leaders[0].check_lag()
        assert [change.proposed for change in stage.proposals] == [{stage.node_id}]

    run(body, tmp_path)


def test_follower_that_is_out_of_sync_joins_although_it_is_idle(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        leader = stage.leaders[0]
        session = Session(stage, at_end(0))
        session.fetch()
        leader.lead(PartitionState(EPOCH, 2, (stage.node_id, FOLLOWER), (stage.node_id,)))
        session.fetch()
        [change] = stage.proposals
        assert change.proposed == {stage.node_id, FOLLOWER}
        leader.take_answer(IsrChanged(change, EPOCH, 3, (stage.node_id, FOLLOWER)))
        session.fetch()
        assert len(stage.proposals) == 1

    run(body, tmp_path)


def test_follower_whose_joining_was_refused_is_proposed_again(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        session = Session(stage, at_end(0))
        [change] = stage.proposals
        stage.leaders[0].take_answer(IsrChangeFailed(change, ErrorCode.INELIGIBLE_REPLICA))
        session.fetch()
        session.fetch()
        assert len(stage.proposals) == 2

    run(body, tmp_path)


def test_idle_follower_joins_once_its_broker_is_known_to_be_alive(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        del stage.broker_epochs[FOLLOWER]
        session = Session(stage, at_end(0))
        session.fetch()
        assert stage.proposals == []
        stage.broker_epochs[FOLLOWER] = 20
        session.fetch()
        assert len(stage.proposals) == 1

    run(body, tmp_path)


def test_partition_that_a_limit_has_left_out_is_read_by_the_next_fetch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, 2)
        for index in (0, 1):
            append(caller, batch(b"a" * 1_000), index=index)
        session = Session(stage, at_end(0, 0), at_end(0, 1), max_bytes=10)
        assert {index: len(values(data)) for index, data in partitions_of(session.first).items()} == {0: 1, 1: 0}
        found = partitions_of(session.fetch(at_end(1, 0), max_bytes=10))
        assert {index: len(values(data)) for index, data in found.items()} == {0: 0, 1: 1}

    run(body, tmp_path)


def test_high_watermark_that_moves_while_the_response_is_made_is_told_by_the_next(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        append(caller, batch(b"a"))
        session = Session(stage, at_end(1))
        kept = stage.broker.fetch_sessions.get(session.session_id)
        assert kept is not None and not kept.dirty
        [entry] = kept.partitions.values()
        kept.dirty[entry] = None
        entry.told(0, 0, 0, 0)
        assert [data.high_watermark for data in partitions_of(session.fetch()).values()] == [1]

    run(body, tmp_path)


def test_fetch_that_reads_again_after_its_wait_is_noted_once(tmp_path: Path) -> None:
    """Compared with the log end of then, the follower would not have caught up at the time of its fetch."""

    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        pending = stage.fetch(at_end(0), max_wait_ms=1_000)
        follower = stage.leaders[0].leadership.followers[FOLLOWER]
        append(caller, batch(b"a"))
        await wait_for(pending)
        assert follower.last_fetch_end_offset == 0

    run(body, tmp_path)


def test_session_serves_either_a_follower_or_a_consumer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        session = Session(stage, at_end(0))
        request = request_of(caller, session_id=session.session_id, session_epoch=1)
        assert caller.ask(request, 12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        consumer = caller.ask(request_of(caller, at(0), session_epoch=0), 17)
        response = stage.fetch(session_id=consumer.session_id, session_epoch=1)
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(body, tmp_path)


def test_session_of_a_follower_that_ends_watches_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        session = Session(stage, at_end(0))
        partition = stage.partitions[0]
        assert (len(partition.watchers), len(partition.replica_watchers)) == (1, 2)
        stage.fetch(session_id=session.session_id, session_epoch=-1)
        assert (len(partition.watchers), len(partition.replica_watchers)) == (0, 1)

    run(body, tmp_path)


def test_partition_that_is_closed_ends_the_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        pending = stage.fetch(at_end(0), max_wait_ms=1_000)
        stage.partitions[0].wake_watchers()
        assert pending.is_done

    run(body, tmp_path)


def test_latest_offset_of_a_replica_is_the_end_of_the_log(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        Stage(caller)
        append(caller, batch(b"a"))
        topics = [ListOffsetsTopic(name="flights", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        found = [
            caller.ask(ListOffsetsRequest(replica_id=replica_id, topics=topics), 9).topics[0].partitions[0].offset
            for replica_id in (-1, FOLLOWER)
        ]
        assert found == [0, 1]

    run(body, tmp_path)


def throttle(stage: Stage, limit: int, *indexes: int) -> ReplicationThrottle:
    """Throttles partitions of a stage to `limit` bytes in a window of a second, which the first fetch of 1,000 bytes exceeds."""
    made = ReplicationThrottle(lambda: limit, lambda topic, index: index in indexes, Rate(1, 1_000))
    stage.broker.member = cast(Any, SimpleNamespace(leader_throttle=made, image=ClusterImage()))
    return made


@pytest.mark.parametrize(
    ("in_sync", "limit", "found"),
    [
        pytest.param(False, 1_000, [[], [b"b"]], id="over the rate"),
        pytest.param(True, 1_000, [[b"a"], [b"b"]], id="in sync"),
        pytest.param(False, 1_000_000, [[b"a"], [b"b"]], id="below the rate"),
    ],
)
def test_throttled_partition_is_left_out_of_a_fetch(tmp_path: Path, in_sync: bool, limit: int, found: list[list[bytes]]) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, 2, in_sync=in_sync)
        throttle(stage, limit, 0).record("flights", 0, 1_001, caller.broker.clock.monotonic_ms())
        append(caller, batch(b"a"), 0)
        append(caller, batch(b"b"), 1)
        answered = partitions_of(stage.fetch(at_end(0, 0), at_end(0, 1)))
        assert [values(answered[index]) for index in (0, 1)] == found
        assert stage.leaders[0].leadership.followers[FOLLOWER].log_end_offset == 0

    run(body, tmp_path)


def test_what_a_throttled_partition_sends_counts_for_the_rate(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, 2, in_sync=False)
        throttle(stage, 50, 0)
        for index in (1, 0):
            append(caller, batch(b"a"), index)
            append(caller, batch(b"b"), index)
            limited = at_end(0, index, max_bytes=1)
            assert values(partitions_of(stage.fetch(limited))[index]) == [b"a"]
        assert values(partitions_of(stage.fetch(at_end(1, 1)))[1]) == [b"b"]
        assert values(partitions_of(stage.fetch(at_end(1, 0)))[0]) == []
        await trio.sleep(1)
        assert values(partitions_of(stage.fetch(at_end(1, 0)))[0]) == [b"b"]

    run(body, tmp_path)


def test_appends_to_a_throttled_partition_do_not_end_the_wait_of_a_fetch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, in_sync=False)
        throttle(stage, 1_000, 0).record("flights", 0, 1_001, caller.broker.clock.monotonic_ms())
        append(caller, batch(b"a"))
        session = Session(stage, at_end(0))
        pending = session.fetch(max_wait_ms=5_000)
        began = trio.current_time()
        append(caller, batch(b"b"))
        assert values(partitions_of(await wait_for(pending))[0]) == [b"a", b"b"]
        assert trio.current_time() - began == 5

    run(body, tmp_path)


def test_fetch_that_waits_counts_its_records_once(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller)
        made = throttle(stage, 100, 0)
        append(caller, batch(b"a"))
        size_bytes = len(batch(b"a"))
        pending = stage.fetch(at_end(0), max_wait_ms=60_000, min_bytes=size_bytes + 1)
        assert not made.is_exceeded(caller.broker.clock.monotonic_ms())
        append(caller, batch(b"b"))
        assert values(partitions_of(await wait_for(pending))[0]) == [b"a", b"b"]
        assert made.is_exceeded(caller.broker.clock.monotonic_ms()) == (2 * size_bytes > 100)

    run(body, tmp_path)
