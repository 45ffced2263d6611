from __future__ import annotations

import pytest

from wirekafka.cluster.partition import Partition
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.cluster.memory_log import append, make_partition


class Witness:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_append(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
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
        def on_append(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
            del partition.watchers[self]

    partition.watchers[Leaver()] = None
    partition.watchers[witness] = None
    append(partition, 1)
    assert witness.seen == [(1, 1)]
    assert list(partition.watchers) == [witness]


def test_partition_close_tells_watchers_once() -> None:
    partition, witness = make_partition(), Witness()
    partition.watchers[witness] = None
    partition.close()
    partition.close()
    assert witness.seen == ["gone"]
    assert partition.is_gone


@pytest.mark.parametrize(
    ("epoch", "code"), [(-1, None), (3, None), (2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)]
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
