from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.leader_replica import IsrChanges, LeaderReplica
from wirekafka.replication.leadership import IsrChange, IsrChanged, PartitionState
from wirekafka.replication.partition import Partition
from wirekafka.tests.log.logs import NOW_MS, World, batch, config_with


@pytest.mark.parametrize(
    "use",
    [
        lambda partition: partition.append(memoryview(batch(b"a")), now_ms=NOW_MS),
        lambda partition: partition.read(0, max_bytes=1, min_one_batch=True),
        lambda partition: partition.delete_records(0),
        lambda partition: partition.on_commit(1, lambda error: None),
        lambda partition: partition.log.high_watermark,
    ],
)
def test_partition_that_is_absent_refuses_every_use_of_its_log(use: Callable[[Partition], object]) -> None:
    with pytest.raises(KafkaError) as raised:
        use(Partition.absent("flights", b"t" * 16, 3))
    assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_partition_that_is_absent_is_neither_offline_nor_led_nor_hosted() -> None:
    partition = Partition.absent("flights", b"t" * 16, 3)
    assert (partition.log.offline_reason, partition.is_offline, partition.leader, partition.is_hosted) == (None, False, -1, False)
    partition.check_online()
    partition.close()
    assert partition.is_gone


class Stage:
    """A leader with one follower, which has everything, and is not in sync before the controller has answered."""

    def __init__(self, path: Path) -> None:
        self.changes: list[IsrChange] = []
        self.isr_changes = IsrChanges()
        self.log = World().open_log(path, config_with(min_insync_replicas=1))
        self.partition = Partition("topic", bytes(16), 0, self.log, leader=1, is_sole_replica=False)
        self.leader = LeaderReplica(
            self.partition,
            replica_lag_time_max_ms=1_000,
            broker_epochs={1: 10, 2: 20},
            propose=lambda leader, change: self.changes.append(change),
            now_ms=lambda: NOW_MS,
            isr_changes=self.isr_changes,
        )
        self.leader.lead(PartitionState(1, 1, (1, 2), (1, 2)))


def test_partition_that_gave_way_ends_its_waits_and_refuses_appends(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    told: list[ErrorCode | None] = []
    stage.partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
    stage.partition.on_commit(1, told.append)
    stage.partition.give_way()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(KafkaError) as raised:
        stage.partition.append(memoryview(batch(b"b")), now_ms=NOW_MS)
    assert raised.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stage.log.reader.log_end_offset == 1


def test_records_of_a_former_leader_are_not_acknowledged_by_the_high_watermark_of_the_next_role(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    told: list[ErrorCode | None] = []
    stage.partition.append(memoryview(batch(b"lost")), now_ms=NOW_MS)
    stage.partition.give_way()
    stage.log.truncate_to(0)
    stage.log.append(memoryview(batch(b"other")), leader_epoch=2, now_ms=NOW_MS)
    stage.log.reader.advance_high_watermark(1)
    stage.partition.on_commit(1, told.append)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_deletion_that_begins_to_wait_after_the_leadership_gets_an_error(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    told: list[ErrorCode | None] = []
    stage.partition.give_way()
    stage.leader.on_deletion(1, told.append)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_deletion_that_begins_to_wait_after_a_disk_error_gets_an_error(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    told: list[ErrorCode | None] = []
    stage.log.reader.offline_reason = "the disk failed"
    stage.leader.on_deletion(1, told.append)
    assert told == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_answer_of_the_controller_that_comes_after_the_leadership_commits_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
    stage.leader._now_ms = lambda: NOW_MS + 2_000
    stage.leader.check_lag()
    [change] = stage.changes
    stage.partition.give_way()
    stage.leader.take_answer(IsrChanged(change, 1, 2, (1,)))
    assert stage.log.reader.high_watermark == 0


def test_changes_of_in_sync_replicas_are_counted_once_the_controller_has_accepted_them(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.leader._now_ms = lambda: NOW_MS + 2_000
    stage.leader.check_lag()
    [change] = stage.changes
    assert (stage.isr_changes.shrinks, stage.isr_changes.expands) == (0, 0)
    stage.leader.take_answer(IsrChanged(change, 1, 2, (1,)))
    assert (stage.isr_changes.shrinks, stage.isr_changes.expands) == (1, 0)


def test_change_that_adds_replicas_is_an_expansion() -> None:
    changes = IsrChanges()
    changes.note(frozenset({1}), frozenset({1, 2, 3}))
    changes.note(frozenset({1}), frozenset({1}))
    assert (changes.shrinks, changes.expands) == (0, 1)
