"""Fetch by consumers in a cluster: from a follower, and from the replica that the leader names (KIP-392)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.config.cluster_table import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.pending import finish
from wirekafka.replication.leader_replica import LeaderReplica, ReplicaFetch
from wirekafka.replication.leadership import PartitionState
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run, wait_for
from wirekafka.tests.api.fetching import at, partitions_of, request_of, values
from wirekafka.tests.api.members import NODE_ID, id_of, join, topic, update
from wirekafka.wire.messages.fetch import FetchPartition

EPOCH, FOLLOWER = 5, 2
RACKS = {NODE_ID: "near the leader", FOLLOWER: "near the follower"}


class Stage:
    """A member that has one partition of two replicas, with three records of which two are committed."""

    def __init__(self, caller: Caller, *, leads: bool) -> None:
        self.caller, self.broker = caller, caller.broker
        member = join(caller)
        leader_id = NODE_ID if leads else FOLLOWER
        finish(member.image.update(update(topic("flights", leader_id), racks=RACKS)))
        config = member.topics.log_config_of("flights")
        log = self.broker.logs.create(TopicPartition("flights", 0), id_of("flights"), config, is_new=True)
        self.partition = Partition("flights", id_of("flights"), 0, log, leader=leader_id, is_sole_replica=False)
        if leads:
            self.lead()
        else:
            self.partition.take_state(leader_epoch=EPOCH, replicas=(NODE_ID, FOLLOWER), in_sync_replicas=())
        member.topics.put_hosted(self.partition)
        for value in (b"a", b"b", b"c"):
            self.partition.append(memoryview(batch(value)), now_ms=NOW_MS)
        if leads:
            self.leader.fetch(ReplicaFetch(FOLLOWER, EPOCH, 2, None, 0), max_bytes=0, min_one_batch=False)
        else:
            self.partition.advance_high_watermark(2)

    def lead(self) -> None:
        self.leader = LeaderReplica(
            self.partition,
            replica_lag_time_max_ms=10_000,
            broker_epochs={NODE_ID: None, FOLLOWER: None},
            propose=lambda leader, change: None,
            now_ms=self.broker.clock.monotonic_ms,
        )
        self.leader.lead(PartitionState(EPOCH, 1, (NODE_ID, FOLLOWER), (NODE_ID, FOLLOWER)))
        self.broker.leader_replicas[self.partition] = self.leader

    def ask(self, *asked: FetchPartition, version: int = 12, **fields: Any) -> Any:
        request = request_of(self.caller, *asked, **fields)
        if not asked:
            request.topics = []
        return self.caller.ask(request, version)

    def fetch(self, asked: FetchPartition, version: int = 12, **fields: Any) -> Any:
        return partitions_of(self.ask(asked, version=version, **fields))[asked.partition]


@pytest.mark.parametrize("version", range(11, 19))
def test_consumer_reads_from_a_follower_up_to_the_high_watermark_that_it_knows(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        data = Stage(caller, leads=False).fetch(at(0, current_leader_epoch=EPOCH), version)
        assert (values(data), data.high_watermark, data.preferred_read_replica) == ([b"a", b"b"], 2, -1)

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("asked", "version", "error"),
    [
        pytest.param(at(0), 10, ErrorCode.NOT_LEADER_OR_FOLLOWER, id="consumer from before KIP-392"),
        pytest.param(at(3), 12, ErrorCode.NONE, id="between the high watermark and the end of the log"),
        pytest.param(at(4), 12, ErrorCode.OFFSET_OUT_OF_RANGE, id="after the end of the log"),
        pytest.param(at(0, current_leader_epoch=EPOCH - 1), 12, ErrorCode.FENCED_LEADER_EPOCH, id="older epoch"),
        pytest.param(at(0, current_leader_epoch=EPOCH + 1), 12, ErrorCode.UNKNOWN_LEADER_EPOCH, id="newer epoch"),
        pytest.param(at(2, last_fetched_epoch=EPOCH + 1), 12, ErrorCode.OFFSET_OUT_OF_RANGE, id="records of a newer epoch"),
        pytest.param(at(0, index=1), 12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, id="no partition"),
    ],
)
def test_follower_refuses_what_apache_kafka_refuses(
    tmp_path: Path, asked: FetchPartition, version: int, error: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        data = Stage(caller, leads=False).fetch(asked, version)
        assert (data.error_code, values(data)) == (error, [])

    run(body, tmp_path)


def test_broker_without_a_replica_refuses_consumers(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        join(caller).tell(topic("flights", FOLLOWER))
        [data] = partitions_of(caller.ask(request_of(caller, at(0)), 12)).values()
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(body, tmp_path)


def test_follower_that_lacks_records_of_the_newest_epoch_calls_no_record_lost(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, leads=False)
        stage.partition.take_state(leader_epoch=EPOCH + 1, replicas=(NODE_ID, FOLLOWER), in_sync_replicas=())
        data = stage.fetch(at(9, current_leader_epoch=EPOCH + 1, last_fetched_epoch=EPOCH + 1))
        assert (data.error_code, data.diverging_epoch) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)

    run(body, tmp_path)


def test_consumer_that_waits_at_a_follower_gets_records_once_they_are_committed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, leads=False)
        pending = stage.ask(at(2), max_wait_ms=60_000)
        stage.partition.advance_high_watermark(3)
        assert values(partitions_of(await wait_for(pending))[0]) == [b"c"]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("selector", "rack", "version", "offset", "preferred"),
    [
        pytest.param(RACK_AWARE_SELECTOR, "near the follower", 12, 1, FOLLOWER, id="in the rack of the follower"),
        pytest.param(RACK_AWARE_SELECTOR, "near the follower", 11, 1, FOLLOWER, id="oldest version with racks"),
        pytest.param(RACK_AWARE_SELECTOR, "near the follower", 12, 3, -1, id="beyond the end of the follower"),
        pytest.param(RACK_AWARE_SELECTOR, "near the leader", 12, 1, -1, id="in the rack of the leader"),
        pytest.param(RACK_AWARE_SELECTOR, "far away", 12, 1, -1, id="in another rack"),
        pytest.param(RACK_AWARE_SELECTOR, "", 12, 1, -1, id="without a rack"),
        pytest.param(LEADER_SELECTOR, "near the follower", 12, 1, -1, id="leader selector"),
        pytest.param("", "near the follower", 12, 1, -1, id="without a selector"),
    ],
)
def test_leader_names_the_replica_in_the_rack_of_the_consumer(
    tmp_path: Path, selector: str, rack: str, version: int, offset: int, preferred: int
) -> None:
    async def body(caller: Caller) -> None:
        data = Stage(caller, leads=True).fetch(at(offset), version, rack_id=rack)
        assert (data.preferred_read_replica, data.error_code, data.high_watermark) == (preferred, 0, 2)
        assert values(data) == ([b"b"] if preferred < 0 and offset == 1 else [])

    run(body, tmp_path, **({"replica_selector_class": selector} if selector else {}))


def test_consumer_in_a_session_is_told_of_the_replica_each_time_and_does_not_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        stage = Stage(caller, leads=True)
        rack: dict[str, Any] = {"rack_id": RACKS[FOLLOWER], "max_wait_ms": 60_000}
        first = stage.ask(at(2), session_epoch=0, **rack)
        told = [first]
        told += [stage.ask(session_id=first.session_id, session_epoch=epoch, **rack) for epoch in (1, 2)]
        assert [partitions_of(each)[0].preferred_read_replica for each in told] == [FOLLOWER] * 3

    run(body, tmp_path, replica_selector_class=RACK_AWARE_SELECTOR)


def test_leader_tells_a_fenced_consumer_so_before_it_names_a_replica(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        asked = at(1, current_leader_epoch=EPOCH - 1)
        data = Stage(caller, leads=True).fetch(asked, rack_id=RACKS[FOLLOWER])
        assert (data.error_code, data.preferred_read_replica) == (ErrorCode.FENCED_LEADER_EPOCH, -1)

    run(body, tmp_path, replica_selector_class=RACK_AWARE_SELECTOR)
