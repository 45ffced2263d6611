from __future__ import annotations

import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import wirekafka
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import AppendInfo
from wirekafka.log.storage import Storage
from wirekafka.replication.partition import Partition
from wirekafka.tests.log.logs import NOW_MS, World, batch, config_with, transactional
from wirekafka.tests.replication.memory_log import append, make_partition


class Witness:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        self.seen.append((partition.log.high_watermark, size_bytes))

    def on_gone(self, partition: Partition) -> None:
        self.seen.append("gone")


def test_partition_append_commits_and_wakes_watchers() -> None:
    partition, witness = make_partition(), Witness()
    partition.watchers[witness] = None
    append(partition, 100)
    assert partition.log.high_watermark == 1
    assert witness.seen == [(1, 100)]


def test_partition_append_of_a_duplicate_wakes_nobody() -> None:
    partition, witness = make_partition(), Witness()
    partition.watchers[witness] = None
    partition.log.appends_again = True  # type: ignore[attr-defined]
    append(partition, 100)
    assert witness.seen == []


def test_partition_append_when_a_watcher_leaves_meanwhile_goes_on() -> None:
    partition, witness = make_partition(), Witness()

    class Leaver(Witness):
        def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
            del partition.watchers[self]

    partition.watchers[Leaver()] = None
    partition.watchers[witness] = None
    append(partition, 1)
    assert witness.seen == [(1, 1)]
    assert list(partition.watchers) == [witness]


class Failing(Witness):
    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        raise ZeroDivisionError

    def on_gone(self, partition: Partition) -> None:
        raise ZeroDivisionError


def test_partition_append_when_a_watcher_fails_is_appended_and_tells_the_others() -> None:
    partition, witness = make_partition(), Witness()
    partition.watchers |= {Failing(): None, witness: None}
    with capture_logs() as lines:
        append(partition, 100)
        partition.close()
    assert witness.seen == [(1, 100), "gone"]
    assert [line["log_level"] for line in lines] == ["error"] * 2


@pytest.mark.parametrize("is_committed", [True, False])
def test_partition_commit_when_a_callback_fails_ends_the_other_waits(is_committed: bool) -> None:
    partition = make_partition()
    partition.set_replicas((1, 2), (1, 2))
    append(partition, 100)
    told: list[ErrorCode | None] = []
    partition.on_commit(1, lambda error: 1 // 0)
    partition.on_commit(1, told.append)
    with capture_logs() as lines:
        if is_committed:
            partition.advance_high_watermark(1)
        else:
            partition.close()
    assert told == [None if is_committed else ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert [line["log_level"] for line in lines] == ["error"]


def test_partition_close_tells_watchers_once() -> None:
    partition, witness = make_partition(), Witness()
    partition.watchers[witness] = None
    partition.close()
    partition.close()
    assert witness.seen == ["gone"]
    assert partition.is_gone


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, None),
        (3, None),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_partition_check_leader_epoch_refuses_other_epochs(epoch: int, code: ErrorCode | None) -> None:
    partition = make_partition()
    partition.leader_epoch = 3
    if code is None:
        partition.check_leader_epoch(epoch)
        return
    with pytest.raises(KafkaError) as error:
        partition.check_leader_epoch(epoch)
    assert error.value.code is code


def test_partition_delete_records_moves_the_start_and_tells_watchers() -> None:
    partition, witness = make_partition(), Witness()
    for _ in range(3):
        append(partition, 10)
    partition.watchers[witness] = None
    assert partition.delete_records(2) == 2
    assert partition.delete_records(1) == 2
    assert partition.delete_records(-1) == 3
    assert witness.seen == [(3, 0), (3, 0)]


@pytest.mark.parametrize("offset", [-2, 4])
def test_partition_delete_records_out_of_range_is_refused(offset: int) -> None:
    partition = make_partition()
    for _ in range(3):
        append(partition, 10)
    with pytest.raises(KafkaError) as error:
        partition.delete_records(offset)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_partition_delete_records_of_a_compacted_topic_is_refused() -> None:
    with pytest.raises(KafkaError) as error:
        make_partition(cleanup_policy="compact").delete_records(0)
    assert error.value.code is ErrorCode.POLICY_VIOLATION


def test_partition_end_of_the_current_epoch_is_the_log_end_even_without_records() -> None:
    partition = make_partition()
    assert partition.end_offset_for_epoch(0) == (0, 0)
    assert partition.end_offset_for_epoch(1) is None
    assert partition.earliest_epoch == 0


def test_partition_divergence_by_the_epoch_alone_is_told() -> None:
    partition = make_partition()
    append(partition, 10)
    append(partition, 10)
    partition.leader_epoch = 2
    append(partition, 10)
    assert partition.find_divergence(1, 1) == (0, 2), "no epoch 1 is in the log, though offset 1 is"
    assert partition.find_divergence(0, 1) is None


# Append and commit


class ReplicaWitness(Witness):
    def on_append(self, partition: Partition, size_bytes: int) -> None:
        self.seen.append(("append", size_bytes))


def make_replicated() -> Partition:
    partition = make_partition()
    partition.set_replicas((1, 2), (1, 2))
    return partition


def test_partition_append_with_a_follower_tells_replicas_and_commits_nothing() -> None:
    partition, consumer, replica = make_replicated(), Witness(), ReplicaWitness()
    partition.watchers[consumer] = None
    partition.replica_watchers[replica] = None
    append(partition, 100)
    assert partition.log.high_watermark == 0
    assert replica.seen == [("append", 100)]
    assert consumer.seen == []


def test_partition_high_watermark_moves_tells_watchers_what_is_committed() -> None:
    partition, consumer = make_replicated(), Witness()
    partition.watchers[consumer] = None
    for size_bytes in (10, 20, 40):
        append(partition, size_bytes)
    partition.advance_high_watermark(2)
    partition.advance_high_watermark(1)
    partition.advance_high_watermark(3)
    assert consumer.seen == [(2, 30), (3, 40)]


def test_partition_read_with_a_follower_ends_at_the_high_watermark() -> None:
    partition = make_replicated()
    append(partition, 10)
    append(partition, 10)
    partition.advance_high_watermark(1)
    assert len(partition.read(0, max_bytes=100, min_one_batch=True)) == 10


def test_partition_on_commit_calls_back_in_the_order_of_offsets() -> None:
    partition = make_replicated()
    told: list[object] = []
    for _ in range(3):
        append(partition, 10)
    for offset in (3, 1, 2, 1):
        partition.on_commit(offset, lambda error, offset=offset: told.append((offset, error)))
    partition.advance_high_watermark(2)
    assert told == [(1, None), (1, None), (2, None)]
    partition.advance_high_watermark(3)
    assert told[3:] == [(3, None)]


def test_partition_on_commit_of_what_is_committed_calls_back_at_once() -> None:
    partition = make_partition()
    append(partition, 10)
    told: list[object] = []
    partition.on_commit(1, told.append)
    assert told == [None]


def test_partition_close_before_the_commit_tells_that_it_leads_no_more() -> None:
    partition = make_replicated()
    append(partition, 10)
    told: list[object] = []
    partition.on_commit(1, told.append)
    partition.close()
    partition.on_commit(1, told.append)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_partition_goes_offline_before_the_commit_tells_a_storage_error() -> None:
    partition = make_replicated()
    append(partition, 10)
    told: list[object] = []
    partition.on_commit(1, told.append)
    partition.log.offline_reason = "the disk failed"
    partition.wake_watchers()
    assert told == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_partition_whose_followers_fall_out_of_sync_commits_everything() -> None:
    partition, consumer = make_replicated(), Witness()
    partition.watchers[consumer] = None
    append(partition, 10)
    partition.set_replicas((1, 2), (1,))
    assert partition.is_sole_replica
    assert consumer.seen == [(1, 10)]


# Transactions, on a real log


class Waiter:
    """Records its calls as (bytes, stable bytes)."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        self.told.append((size_bytes, stable_bytes))

    def on_gone(self, partition: Partition) -> None:
        raise AssertionError("the partition stays")


class FailingSyncs(Storage):
    """The file system, whose syncs fail while `is_failing`."""

    is_failing = False

    def sync(self, fd: int) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "failed")
        super().sync(fd)


def on_disk(path: Path) -> tuple[Partition, Waiter]:
    partition = Partition("flights", bytes(16), 0, World().open_log(path), leader=1)
    waiter = Waiter()
    partition.watchers[waiter] = None
    return partition, waiter


def end(partition: Partition, producer_id: int = 7, *, is_commit: bool = True) -> AppendInfo:
    return partition.write_marker(producer_id, 0, coordinator_epoch=0, is_commit=is_commit, now_ms=NOW_MS, transaction_version=1)


def test_partition_tells_what_became_stable_when_a_transaction_ends(tmp_path: Path) -> None:
    partition, waiter = on_disk(tmp_path)
    sizes = []
    for records in (batch(b"a"), transactional(0, producer_id=1), batch(b"b"), transactional(0, producer_id=2)):
        sizes.append(len(records))
        partition.append(records, now_ms=NOW_MS)
    plain, first, between, second = sizes
    assert waiter.told == [(plain, plain), (first, 0), (between, 0), (second, 0)]
    waiter.told.clear()

    end(partition, 2, is_commit=False)
    end(partition, 1)
    marker = waiter.told[0][0]
    assert waiter.told == [(marker, 0), (marker, first + between + second + 2 * marker)]
    assert partition.log.high_watermark == partition.log.last_stable_offset == 6


def test_partition_tells_what_became_stable_up_to_the_next_open_transaction(tmp_path: Path) -> None:
    partition, waiter = on_disk(tmp_path)
    first, between, second = transactional(0, producer_id=1), batch(b"b"), transactional(0, producer_id=2)
    sizes = [len(records) for records in (first, between)]
    for records in (first, between, second):
        partition.append(records, now_ms=NOW_MS)

    end(partition, 1)

    assert waiter.told[-1][1] == sum(sizes)


def test_partition_tells_what_became_stable_across_segments(tmp_path: Path) -> None:
    partition, waiter = on_disk(tmp_path)
    size = len(transactional(0))
    for sequence in range(5):
        partition.append(transactional(sequence), now_ms=NOW_MS)
        partition.writable_log.roll()

    end(partition)

    marker = waiter.told[-1][0]
    assert waiter.told[-1] == (marker, 5 * size + marker)


def test_partition_read_of_stable_records_ends_where_a_transaction_is_open(tmp_path: Path) -> None:
    partition, _ = on_disk(tmp_path)
    partition.append(batch(b"a"), now_ms=NOW_MS)
    partition.append(transactional(0), now_ms=NOW_MS)

    stable = partition.read(0, max_bytes=1 << 20, min_one_batch=True, only_stable=True)
    committed = partition.read(0, max_bytes=1 << 20, min_one_batch=True)

    assert len(committed) > len(stable) > 0


def test_marker_that_is_not_committed_leaves_its_transaction_unstable(tmp_path: Path) -> None:
    partition, waiter = on_disk(tmp_path)
    partition.set_replicas((1, 2), (1, 2))
    partition.append(transactional(0), now_ms=NOW_MS)
    partition.append(batch(b"a"), now_ms=NOW_MS)
    end(partition)
    partition.advance_high_watermark(2)
    assert partition.log.last_stable_offset == 0
    partition.advance_high_watermark(3)
    assert partition.log.last_stable_offset == 3
    assert waiter.told[0][1] == 0
    assert sum(stable for _, stable in waiter.told) == sum(size for size, _ in waiter.told)


def test_marker_of_a_second_transaction_waits_for_its_own_commit(tmp_path: Path) -> None:
    partition, _ = on_disk(tmp_path)
    partition.set_replicas((1, 2), (1, 2))
    partition.append(transactional(0), now_ms=NOW_MS)
    end(partition)
    partition.append(transactional(1), now_ms=NOW_MS)
    end(partition)
    partition.advance_high_watermark(3)
    assert partition.log.last_stable_offset == 2
    partition.advance_high_watermark(4)
    assert partition.log.last_stable_offset == 4


@pytest.mark.parametrize("is_duplicate", [False, True])
def test_marker_whose_flush_failed_is_committed_with_the_next_append(tmp_path: Path, is_duplicate: bool) -> None:
    storage = FailingSyncs()
    log = World(storage).open_log(tmp_path, config_with(flush_messages=1))
    partition, waiter = Partition("flights", bytes(16), 0, log, leader=1), Waiter()
    partition.watchers[waiter] = None
    partition.append(transactional(0), now_ms=NOW_MS)
    storage.is_failing = True
    with pytest.raises(KafkaError):
        end(partition)
    assert partition.log.last_stable_offset == 0
    log.update_config(config_with())

    last = transactional(0) if is_duplicate else batch(b"a")
    assert partition.append(last, now_ms=NOW_MS).is_duplicate == is_duplicate

    assert partition.log.last_stable_offset == partition.log.high_watermark == partition.log.log_end_offset
    written = partition.log.size_bytes
    assert [sum(told) for told in zip(*waiter.told, strict=True)] == [written, written]


def test_only_the_room_of_partitions_changes_their_logs() -> None:
    """An append that goes around `Partition.append` would not be committed, and nothing that waits would hear of it."""
    root = Path(wirekafka.__file__).parent
    users = {
        str(path.relative_to(root).parent)
        for path in root.rglob("*.py")
        if "tests" not in path.relative_to(root).parts and "writable_log" in path.read_text()
    }
    assert users == {"replication"}
