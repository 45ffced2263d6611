"""Truncation as a follower does it, with a crash at every step; and a follower's append."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.log import Log
from wirekafka.testing.faulty_storage import FaultyStorage
from wirekafka.testing.remembering_storage import Fate, RememberingStorage
from wirekafka.tests.log.logs import (
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    end_transaction,
    idempotent,
    read,
    transactional,
)

CONFIG = config_with(segment_bytes=300, index_interval_bytes=100)


def grown(log: Log, count: int = 12) -> None:
    for number in range(count):
        append(log, idempotent(number), leader_epoch=number // 4)


def test_truncation_within_the_batch_of_the_log_start_offset_keeps_that_offset(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, batch(b"a", b"b", b"c"))
    log.retention.delete_records(2)

    log.truncate(2)

    assert (log.reader.log_start_offset, log.reader.high_watermark, log.reader.log_end_offset) == (2, 2, 2)
    assert append(log, b"d").base_offset == 2


def test_truncation_removes_the_snapshots_of_producers_behind_the_new_end(tmp_path: Path) -> None:
    """Otherwise a snapshot at the former end would be used once the log has grown past it with other records."""
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    close(log)
    log = World().open_log(tmp_path, CONFIG, is_clean=True)
    assert any(int(name[:20]) == 12 for name in os.listdir(tmp_path) if name.endswith(".snapshot"))

    log.truncate(5)

    assert all(int(name[:20]) <= 5 for name in os.listdir(tmp_path) if name.endswith(".snapshot"))


def test_truncation_stores_the_recovery_point_before_it_cuts(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    log.flusher.flush()
    seen: list[tuple[int, int]] = []
    log.reader.services.store_recovery_points = lambda stored: seen.append((log.flusher.recovery_point, len(log.reader.segments)))
    count = len(log.reader.segments)

    log.truncate(5)

    assert seen == [(5, count)]


def test_truncation_that_cannot_store_the_recovery_point_changes_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, CONFIG)
    grown(log)
    log.flusher.flush()

    def fail(stored: object) -> None:
        raise OSError(28, "No space left on device")

    log.reader.services.store_recovery_points = fail
    with pytest.raises(KafkaError):
        log.truncate(5)

    assert [record.offset for record in all_records(log)] == list(range(12))


def test_truncation_that_the_disk_refuses_at_any_call_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    class Refusing(FaultyStorage):
        def _change(self) -> None:
            self.calls += 1
            if self.calls == self.crash_at:
                raise OSError(28, "No space left on device")

    for refused in range(1, 100):
        path = tmp_path / str(refused)
        storage = Refusing()
        log = World(storage=storage).open_log(path, CONFIG)
        grown(log)
        storage.calls, storage.crash_at = 0, refused
        try:
            log.truncate(5)
        except KafkaError:
            assert 5 <= log.reader.log_end_offset <= 12
            log.truncate(5)
        assert log.reader.log_end_offset == 5
        if storage.calls < refused:
            break
        if log.reader.folder.ledger.has_failed:
            continue
        append(log, idempotent(5), leader_epoch=9)
        assert [record.offset for record in all_records(log)] == list(range(6))
        check_indexes(log)
    assert refused > 5


@pytest.mark.parametrize(("contents", "names"), [(Fate.KEPT, Fate.KEPT), (Fate.LOST, Fate.LOST), (Fate.LOST, Fate.KEPT)])
def test_crash_at_any_call_of_a_truncation_leaves_the_beginning_of_the_log(tmp_path: Path, contents: Fate, names: Fate) -> None:
    storage = RememberingStorage(tmp_path)
    log = World(storage=storage).open_log(tmp_path / "topic-0", CONFIG)
    log.reader.folder.ledger.place.written += 1
    grown(log)
    log.flusher.flush()
    stored = [(0, 12)]
    log.reader.services.store_recovery_points = lambda each: stored.append((len(storage.operations), log.flusher.recovery_point))
    began_at = len(storage.operations)

    log.truncate(5)

    for crash_at in range(began_at, len(storage.operations) + 1):
        image = storage.lose_power(crash_at, contents=contents, names=names)
        recovery_point = max(point for point in stored if point[0] <= crash_at)[1]
        with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
            image.put(Path(top) / "disk")
            again = World().open_log(
                Path(top) / "disk" / "topic-0", CONFIG, recovery_point=recovery_point, has_lost_power=contents is Fate.LOST
            )
            assert 5 <= again.reader.log_end_offset <= 12
            assert [record.offset for record in all_records(again)] == list(range(again.reader.log_end_offset))
            assert again.reader.epochs.entries[-1].start_offset < again.reader.log_end_offset


# A follower's append


def replicated(leader: Log, offset: int = 0) -> memoryview:
    return memoryview(read(leader, offset))


def test_follower_gets_the_leaders_bytes_offsets_and_epochs(tmp_path: Path) -> None:
    leader = World().open_log(tmp_path / "leader")
    follower = World().open_log(tmp_path / "follower", CONFIG)
    grown(leader)

    assert follower.append_as_follower(replicated(leader)) == 12

    assert b"".join(follower.reader.batches()) == b"".join(leader.reader.batches())
    assert follower.reader.epochs.entries == leader.reader.epochs.entries
    assert follower.reader.high_watermark == 0
    assert len(follower.reader.segments) > 1
    check_indexes(follower)
    leader.roll()
    assert append(follower, idempotent(11)).is_duplicate


def test_follower_leaves_a_torn_batch_out(tmp_path: Path) -> None:
    leader, follower = (World().open_log(tmp_path / name) for name in ("leader", "follower"))
    grown(leader, 3)

    assert follower.append_as_follower(replicated(leader)[:-1]) == 2


def test_follower_refuses_damage_and_appends_nothing(tmp_path: Path) -> None:
    leader, follower = (World().open_log(tmp_path / name) for name in ("leader", "follower"))
    grown(leader, 3)
    data = bytearray(replicated(leader))
    data[-1] ^= 1

    with pytest.raises(KafkaError) as caught:
        follower.append_as_follower(memoryview(data))

    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert follower.reader.log_end_offset == 0


def test_follower_refuses_offsets_that_it_has(tmp_path: Path) -> None:
    leader, follower = (World().open_log(tmp_path / name) for name in ("leader", "follower"))
    grown(leader, 3)
    follower.append_as_follower(replicated(leader))

    with pytest.raises(KafkaError) as caught:
        follower.append_as_follower(replicated(leader, 2))

    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.reader.log_end_offset == 3


def test_follower_keeps_a_gap_that_compaction_has_made_in_the_leaders_log(tmp_path: Path) -> None:
    leader, follower = (World().open_log(tmp_path / name) for name in ("leader", "follower"))
    grown(leader, 4)
    whole = replicated(leader)
    size = len(whole) // 4

    follower.append_as_follower(memoryview(bytes(whole[:size]) + bytes(whole[3 * size :])))

    assert [record.offset for record in all_records(follower)] == [0, 3]


def test_follower_has_an_aborted_transaction_stable_once_the_high_watermark_passes_its_marker(tmp_path: Path) -> None:
    leader, follower = (World().open_log(tmp_path / name) for name in ("leader", "follower"))
    append(leader, transactional(0))
    end_transaction(leader, is_commit=False)

    follower.append_as_follower(replicated(leader))

    assert follower.reader.last_stable_offset == 0
    follower.reader.advance_high_watermark(1)
    assert follower.reader.last_stable_offset == 0
    follower.reader.advance_high_watermark(2)
    assert follower.reader.last_stable_offset == 2
    assert follower.reader.aborted_transactions(0, 2) == leader.reader.aborted_transactions(0, 2)
