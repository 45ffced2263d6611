"""Compaction of transactions: aborted records are dropped, later their markers, and read_committed readers see no change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from wirekafka.log.log import Log
from wirekafka.log.segment_files import CLEANED_SUFFIX
from wirekafka.log.transaction_index import SUFFIX
from wirekafka.log.validation import Origin
from wirekafka.pending import finish
from wirekafka.testing.faulty_storage import Crash, FaultyStorage
from wirekafka.tests.log.compaction.test_compaction import COMPACT, compact, put
from wirekafka.tests.log.logs import NOW_MS, World, check_indexes, close, end_transaction
from wirekafka.wire.batch import BatchHeader, Record, build_batch, check_crc, iterate_records
from wirekafka.wire.control import read_end_marker

DAY_MS = 86_400_000


class Writer:
    """A transactional producer; it counts its sequence numbers itself."""

    def __init__(self, log: Log, producer_id: int) -> None:
        self.log = log
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0

    def put(self, *pairs: tuple[str, str | None]) -> int:
        fields = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "base_sequence": self.sequence}
        offset = put(self.log, *pairs, is_transactional=True, **fields)
        self.sequence += len(pairs)
        return offset

    def end(self, *, is_commit: bool, bumps_epoch: bool = False) -> None:
        if bumps_epoch:
            self.epoch += 1
            self.sequence = 0
        end_transaction(self.log, self.producer_id, self.epoch, is_commit=is_commit)


def shape(log: Log) -> list[tuple[int, int, str]]:
    """Returns base offset, last offset and kind of each batch."""
    return [(header.base_offset, header.last_offset, _kind(header, data)) for data, header in _batches(log)]


def _batches(log: Log) -> list[tuple[memoryview, BatchHeader]]:
    return [(data, BatchHeader(data)) for data in log.reader.batches()]


def _kind(header: BatchHeader, data: memoryview) -> str:
    if not header.record_count:
        return "empty marker" if header.is_control else "empty"
    if not header.is_control:
        return ",".join((record.key or b"").decode() for record in iterate_records(data))
    marker = read_end_marker(data)
    assert marker is not None
    return ("commit" if marker.is_commit else "abort") + (" dated" if header.delete_horizon_ms is not None else "")


def committed(log: Log) -> dict[str, tuple[int, str]]:
    """Returns the last value of each key that a read_committed consumer finds."""
    waiting = sorted(log.reader.aborted_transactions(0, log.reader.log_end_offset), key=lambda entry: entry.first_offset)
    aborted: set[int] = set()
    found: dict[str, tuple[int, str]] = {}
    for data, header in _batches(log):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = read_end_marker(data)
            if marker is not None and not marker.is_commit:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            for record in iterate_records(data):
                key = (record.key or b"").decode()
                if record.value is None:
                    found.pop(key, None)
                else:
                    found[key] = (record.offset, record.value.decode())
    return found


def test_records_of_aborted_transactions_go_and_supersede_nothing(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"))
    writer = Writer(log, 5)
    writer.put(("a", "2"))
    writer.put(("c", "2"))
    writer.end(is_commit=False)
    writer.put(("b", "3"))
    writer.end(is_commit=True)
    log.roll()

    compact(log)

    assert shape(log) == [(0, 1, "a"), (4, 4, "abort"), (5, 5, "b"), (6, 6, "commit")]
    assert committed(log) == {"a": (0, "1"), "b": (5, "3")}


def test_records_of_committed_transactions_are_compacted_as_others(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"), ("b", "1"))
    writer.end(is_commit=True)
    put(log, ("a", "2"))
    log.roll()

    compact(log)

    assert shape(log) == [(0, 1, "b"), (2, 2, "commit"), (3, 3, "a")]
    header = _batches(log)[0][1]
    assert (header.is_transactional, header.producer_id, header.base_sequence, header.last_sequence) == (True, 5, 0, 1)


def test_marker_of_an_aborted_transaction_gets_a_date_once_its_records_are_gone_and_goes_then(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"))
    writer.end(is_commit=False)
    writer.put(("z", "1"))
    writer.end(is_commit=True)
    put(log, ("y", "1"))
    log.roll()

    compact(log)
    assert [kind for _, _, kind in shape(log)] == ["abort", "z", "commit", "y"]
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 9)] == [(0, 5, 0, 1, 2)]

    compact(log, now_ms=NOW_MS + 1)
    assert [kind for _, _, kind in shape(log)] == ["abort dated", "z", "commit", "y"]
    assert not log.reader.aborted_transactions(0, 9)
    assert _batches(log)[0][1].delete_horizon_ms == NOW_MS + 1 + 1000

    compact(log, now_ms=NOW_MS + 1000)
    assert [kind for _, _, kind in shape(log)] == ["abort dated", "z", "commit", "y"]
    compact(log, now_ms=NOW_MS + 1001)
    assert [kind for _, _, kind in shape(log)] == ["z", "commit", "y"]


def test_marker_of_a_committed_transaction_goes_after_its_records(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"))
    writer.end(is_commit=True)
    writer.put(("a", "2"))
    writer.end(is_commit=True)
    put(log, ("y", "1"))
    log.roll()

    compact(log)
    assert [kind for _, _, kind in shape(log)] == ["commit", "a", "commit", "y"]
    compact(log)
    assert [kind for _, _, kind in shape(log)] == ["commit dated", "a", "commit", "y"]
    compact(log, now_ms=NOW_MS + 1000)
    assert [kind for _, _, kind in shape(log)] == ["a", "commit", "y"]


def test_marker_with_a_date_says_the_same(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"))
    writer.end(is_commit=True)
    writer.put(("a", "2"))
    log.roll()
    before = next(data for data in log.reader.batches() if BatchHeader(data).is_control)

    for _ in range(2):
        compact(log, end_offset=2)

    after = next(data for data in log.reader.batches() if BatchHeader(data).is_control)
    header = BatchHeader(after)
    assert header.delete_horizon_ms == NOW_MS + 1000
    assert (header.is_transactional, header.producer_id, header.last_offset) == (True, 5, 1)
    assert read_end_marker(after) == read_end_marker(before)
    assert list(iterate_records(after)) == list(iterate_records(before))
    assert check_crc(after, 0, header)


def test_last_batch_of_a_producer_stays_empty_though_it_was_aborted(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"))
    writer.put(("b", "1"))
    writer.end(is_commit=False)
    put(log, ("c", "1"))
    log.roll()

    for _ in range(3):
        compact(log)
        assert shape(log) == [(1, 1, "empty"), (2, 2, "abort"), (3, 3, "c")]

    header = _batches(log)[0][1]
    assert (header.is_transactional, header.base_sequence, header.producer_epoch, header.size_bytes) == (True, 1, 0, 61)
    again = world.open_log(tmp_path, COMPACT)
    found = again.reader.producers.find(5)
    assert found is not None
    assert (found.epoch, found.last_sequence, found.transaction_first_offset) == (0, 1, None)
    assert again.reader.aborted_transactions(0, 9) == log.reader.aborted_transactions(0, 9)


def test_marker_stays_that_alone_has_its_producers_epoch(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"))
    writer.end(is_commit=False, bumps_epoch=True)
    put(log, ("c", "1"))
    log.roll()

    for passed_ms in (0, 0, DAY_MS, DAY_MS):
        compact(log, now_ms=NOW_MS + passed_ms)

    assert shape(log) == [(1, 1, "empty marker"), (2, 2, "c")]
    header = _batches(log)[0][1]
    assert (header.is_transactional, header.producer_epoch) == (True, 1)


def test_marker_of_an_earlier_epoch_goes_with_the_records_of_its_producer(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    writer = Writer(log, 5)
    writer.put(("a", "1"))
    writer.end(is_commit=False, bumps_epoch=True)
    writer.put(("b", "1"))
    writer.end(is_commit=False, bumps_epoch=True)
    put(log, ("c", "1"))
    log.roll()

    for passed_ms in (0, 0, DAY_MS, DAY_MS):
        compact(log, now_ms=NOW_MS + passed_ms)

    assert shape(log) == [(3, 3, "empty marker"), (4, 4, "c")]


def test_marker_of_an_unknown_kind_stays(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    batch = build_batch([Record(b"\0\0\0\x05", b"later")], is_control=True)
    log.append(memoryview(batch), leader_epoch=0, now_ms=NOW_MS, origin=Origin.COORDINATOR)
    put(log, ("a", "1"))
    log.roll()
    before = bytes(b"".join(log.reader.batches()))

    compact(log)
    compact(log, now_ms=NOW_MS + DAY_MS)

    assert b"".join(log.reader.batches()) == before


def test_transaction_that_is_aborted_behind_the_compacted_part_is_known(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"))
    writer = Writer(log, 5)
    writer.put(("a", "2"))
    log.roll()
    writer.end(is_commit=False)

    compact(log)

    assert shape(log) == [(0, 0, "a"), (1, 1, "empty"), (2, 2, "abort")]
    assert committed(log) == {"a": (0, "1")}


def test_second_compaction_knows_transactions_that_begin_before_its_dirty_part(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, COMPACT)
    put(log, ("a", "1"), ("b", "1"))
    writer = Writer(log, 5)
    writer.put(("x", "1"))
    log.roll()
    dirty_offset = log.reader.log_end_offset
    writer.put(("a", "2"))
    writer.end(is_commit=False)
    put(log, ("b", "2"))
    log.roll()

    compact(log, dirty_offset=dirty_offset)

    assert committed(log) == {"a": (0, "1"), "b": (5, "2")}
    assert [kind for _, _, kind in shape(log)] == ["a", "empty", "abort", "b"]


def test_index_of_a_compacted_segment_has_what_is_left(tmp_path: Path) -> None:
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    for producer_id in (5, 6):
        writer = Writer(log, producer_id)
        writer.put(("a", "1"))
        writer.end(is_commit=False)
        log.roll()
    put(log, ("b", "1"))
    log.roll()
    before = log.reader.aborted_transactions(0, 9)
    assert len(before) == 2

    compact(log)
    assert log.reader.aborted_transactions(0, 9) == before
    assert [path.name for path in sorted(tmp_path.glob(f"*{SUFFIX}"))] == ["00000000000000000000" + SUFFIX]
    close(log)
    assert world.open_log(tmp_path, COMPACT, is_clean=True).reader.aborted_transactions(0, 9) == before

    again = world.open_log(tmp_path, COMPACT)
    finish(again.reader.producers.expire(NOW_MS + DAY_MS, 1))
    compact(again)
    compact(again)
    world.pass_delays()
    assert not again.reader.aborted_transactions(0, 9)
    assert not list(tmp_path.glob(f"*{SUFFIX}*"))


@pytest.mark.parametrize("seed", range(12))
def test_readers_of_committed_records_see_the_same_before_and_after(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    writers = [Writer(log, producer_id) for producer_id in range(4)]
    now_ms = NOW_MS
    dirty_offset = 0
    for number in range(400):
        step = chance.random()
        pairs = [
            (f"{chance.randrange(12)}", None if chance.random() < 0.2 else f"{number}") for _ in range(chance.randrange(1, 4))
        ]
        writer = chance.choice(writers)
        if step < 0.3:
            put(log, *pairs)
        elif step < 0.7:
            writer.put(*pairs)
        elif step < 0.85:
            writer.end(is_commit=chance.random() < 0.5, bumps_epoch=chance.random() < 0.3)
        elif step < 0.95:
            log.roll()
        else:
            now_ms += chance.choice((0, 500, 2000))
            dirty_offset = _compact_stable(log, dirty_offset, now_ms, chance.choice((3, 1000)))
    for writer in writers:
        writer.end(is_commit=False)
    log.roll()
    for _ in range(4):
        now_ms += 2000
        _compact_stable(log, 0, now_ms, 1000)
    expected = committed(log)
    markers = ("empty", "commit", "abort")
    kinds = [kind for _, _, kind in shape(log) if not kind.startswith(markers)]
    assert sorted(key for kind in kinds for key in kind.split(",")) == sorted(expected)
    check_indexes(log)
    again = World().open_log(tmp_path, COMPACT)
    assert committed(again) == expected
    for writer in writers:
        found = again.reader.producers.find(writer.producer_id)
        assert found is not None
        assert found.epoch == writer.epoch
        assert found.last_sequence == (writer.sequence - 1 if writer.sequence else -1)


def _compact_stable(log: Log, dirty_offset: int, now_ms: int, most_keys: int) -> int:
    """Compacts the stable part as the cleaner does, and checks that readers get the same records as before."""
    before = committed(log)
    bases = [segment.base_offset for segment in log.reader.segments if segment.base_offset <= log.reader.last_stable_offset]
    if bases[-1] <= dirty_offset:
        return dirty_offset
    work = compact(log, dirty_offset=dirty_offset, end_offset=bases[-1], now_ms=now_ms, most_keys=most_keys)
    assert committed(log) == before
    return work.clean_offset


def test_crash_at_any_call_leaves_readers_of_committed_records_with_the_same(tmp_path: Path) -> None:
    for crash_at in range(1, 300):
        path = tmp_path / str(crash_at)
        storage = FaultyStorage()
        log = World(storage=storage).open_log(path, COMPACT)
        for number in range(4):
            writer = Writer(log, number)
            writer.put((f"{number % 2}", f"{number}"))
            writer.end(is_commit=number % 2 == 0)
            log.roll()
        expected = committed(log)
        log.flusher.flush()
        end_offset = log.reader.log_end_offset
        storage.crash_at = storage.calls + crash_at
        try:
            compact(log)
            compact(log)
            is_over = True
        except Crash:
            is_over = False
        log.reader.close()
        again = World().open_log(path, COMPACT, recovery_point=end_offset)
        assert committed(again) == expected
        assert not [name for name in path.iterdir() if name.name.endswith((CLEANED_SUFFIX, ".swap", ".deleted"))]
        if is_over:
            return
    raise AssertionError("the compaction does not end")
