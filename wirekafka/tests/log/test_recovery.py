from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import structlog.testing

from wirekafka.log.log import Log
from wirekafka.log.storage import Storage
from wirekafka.tests.log.logs import NOW_MS, World, all_records, append, check_indexes, close, config_with, fill, idempotent, read

SMALL = config_with(segment_bytes=2000, index_interval_bytes=300)
FIRST = "00000000000000000000"


def lived(path: Path, count: int = 40, *, is_closed: bool = False) -> Log:
    """Makes a log of some segments with records of an idempotent producer, closed or left open."""
    log = World().open_log(path, SMALL)
    for sequence in range(count):
        append(log, idempotent(sequence, timestamp=NOW_MS + sequence), leader_epoch=sequence // 15)
        if sequence % 10 == 9:
            log.roll()
    if is_closed:
        close(log)
    return log


def test_torn_tail_is_cut_at_the_last_whole_batch_and_the_log_says_how_much(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a")
    append(log, b"b")
    log.reader.close()
    file = tmp_path / f"{FIRST}.log"
    file.write_bytes(file.read_bytes()[:-3])

    with structlog.testing.capture_logs() as lines:
        log = World().open_log(tmp_path)

    assert log.reader.log_end_offset == 1
    cut = next(line for line in lines if line["event"] == "Cut a torn tail")
    assert (cut["bytes"], cut["records"], cut["log_end_offset"]) == (67, 1, 1)
    assert len(read(log, 0)) == file.stat().st_size


@pytest.mark.parametrize("place", [16, 30, 60, 65])
def test_damaged_batch_at_the_end_is_cut(tmp_path: Path, place: int) -> None:
    log = World().open_log(tmp_path)
    append(log, b"a")
    size = log.reader.size_bytes
    append(log, b"b")
    log.reader.close()
    file = tmp_path / f"{FIRST}.log"
    data = bytearray(file.read_bytes())
    data[size + place] ^= 1
    file.write_bytes(data)

    assert [record.value for record in all_records(World().open_log(tmp_path))] == [b"a"]


def test_reserved_room_of_a_killed_broker_is_cut(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=4096, preallocate=True))
    append(log, b"a")
    log.roll()
    append(log, b"b")
    log.reader.close()

    log = World().open_log(tmp_path)

    assert log.reader.log_end_offset == 2
    assert (tmp_path / "00000000000000000001.log").stat().st_size == log.reader.segments.active.size


def test_clean_start_reads_headers_behind_the_last_index_entry_only(tmp_path: Path) -> None:
    class Counting(Storage):
        bytes_read = 0

        def read(self, fd: int, size: int, position: int) -> bytes:
            self.bytes_read += size
            return super().read(fd, size, position)

    config = config_with(index_interval_bytes=4096)
    log = World().open_log(tmp_path, config)
    fill(log, 3000)
    close(log)
    storage = Counting()

    log = World(storage=storage).open_log(tmp_path, config, is_clean=True)

    assert log.reader.log_end_offset == 3000
    assert log.reader.size_bytes > 400_000
    assert storage.bytes_read < 20_000


def test_everything_comes_back_after_a_crash(tmp_path: Path) -> None:
    before = lived(tmp_path)
    before.reader.close()

    log = World().open_log(tmp_path, SMALL)

    assert [record.offset for record in all_records(log)] == list(range(40))
    assert log.reader.epochs.entries == ((0, 0), (1, 15), (2, 30))
    assert append(log, idempotent(39)).is_duplicate
    assert log.reader.offset_for_timestamp(None) == (39, NOW_MS + 39, 2)
    check_indexes(log)


def test_what_is_before_the_recovery_point_is_not_read_again(tmp_path: Path) -> None:
    lived(tmp_path).reader.close()
    file = tmp_path / f"{FIRST}.log"
    damaged = bytearray(file.read_bytes())
    damaged[70] ^= 1
    file.write_bytes(damaged)

    log = World().open_log(tmp_path, SMALL, recovery_point=25)

    assert log.reader.log_end_offset == 40


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_index_is_made_anew(tmp_path: Path, suffix: str, is_clean: bool) -> None:
    lived(tmp_path, is_closed=True)
    expected = (tmp_path / f"{FIRST}{suffix}").read_bytes()
    for path in tmp_path.glob(f"*{suffix}"):
        path.unlink()

    log = World().open_log(tmp_path, SMALL, is_clean=is_clean, recovery_point=30)

    assert (tmp_path / f"{FIRST}{suffix}").read_bytes() == expected
    assert len(all_records(log)) == 40
    check_indexes(log)


def test_index_with_a_part_of_an_entry_is_made_anew(tmp_path: Path) -> None:
    lived(tmp_path, is_closed=True)
    file = tmp_path / f"{FIRST}.index"
    expected = file.read_bytes()
    file.write_bytes(expected[:-3])

    World().open_log(tmp_path, SMALL, is_clean=True)

    assert file.read_bytes() == expected


def test_active_indexes_of_apache_kafka_that_end_in_zeros_are_made_anew(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(index_interval_bytes=300))
    fill(log, 30)
    close(log)
    for suffix in (".index", ".timeindex"):
        with (tmp_path / f"{FIRST}{suffix}").open("ab") as file:
            file.write(bytes(24 * 100))

    log = World().open_log(tmp_path, config_with(index_interval_bytes=300), is_clean=True)

    assert log.reader.log_end_offset == 30
    assert log.reader.segments.active.offset_index.count < 30
    check_indexes(log)


def test_index_without_its_log_is_removed(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000007.index").write_bytes(b"")

    World().open_log(tmp_path)

    assert not (tmp_path / "00000000000000000007.index").exists()


def test_files_that_were_on_their_way_out_are_removed(tmp_path: Path) -> None:
    names = [f"{FIRST}.log.deleted", "00000000000000000003.log.cleaned", "leader-epoch-checkpoint.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")

    World().open_log(tmp_path)

    assert not any((tmp_path / name).exists() for name in names)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "remote_log_snapshot").write_bytes(b"x")

    World().open_log(tmp_path)

    assert (tmp_path / "remote_log_snapshot").exists()


def test_log_that_ends_before_its_start_begins_anew_there(tmp_path: Path) -> None:
    lived(tmp_path, 5)

    log = World().open_log(tmp_path, SMALL, log_start_offset=100)

    assert (log.reader.log_start_offset, log.reader.log_end_offset) == (100, 100)
    assert append(log, b"a").base_offset == 100


def test_damaged_snapshot_is_done_without(tmp_path: Path) -> None:
    lived(tmp_path).reader.close()
    snapshot = tmp_path / "00000000000000000040.snapshot"
    data = bytearray(snapshot.read_bytes())
    data[20] ^= 1
    snapshot.write_bytes(data)

    log = World().open_log(tmp_path, SMALL)

    assert append(log, idempotent(39)).is_duplicate


def test_snapshots_of_no_segment_are_removed_but_for_the_last(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL)
    for sequence in range(3):
        append(log, idempotent(sequence))
        close(log)
        log = World().open_log(tmp_path, SMALL, is_clean=True)

    assert [path.name for path in tmp_path.glob("*.snapshot")] == ["00000000000000000003.snapshot"]


def test_damaged_epochs_come_back_from_the_batches(tmp_path: Path) -> None:
    lived(tmp_path).reader.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"")

    log = World().open_log(tmp_path, SMALL)

    assert log.reader.epochs.entries == ((0, 0), (1, 15), (2, 30))


def test_epochs_that_come_back_from_the_batches_are_there_for_a_later_recovery_that_does_not_read_these(tmp_path: Path) -> None:
    lived(tmp_path).reader.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(b"")
    World().open_log(tmp_path, SMALL).reader.close()

    log = World().open_log(tmp_path, SMALL, recovery_point=30)

    assert log.reader.epochs.entries == ((0, 0), (1, 15), (2, 30))


@pytest.mark.parametrize("torn", [b"", b"0\n1\n0 30\n", b"0\n3\n0 0\n1 15\n2 3"])
@pytest.mark.parametrize("recovery_point", [0, 15, 35, 40])
def test_checkpoint_of_epochs_that_a_power_loss_has_torn_is_not_trusted(tmp_path: Path, recovery_point: int, torn: bytes) -> None:
    lived(tmp_path).reader.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(torn)

    log = World().open_log(tmp_path, SMALL, recovery_point=recovery_point, has_lost_power=True)

    assert log.reader.epochs.entries == ((0, 0), (1, 15), (2, 30))


@pytest.mark.parametrize("torn", [b"0\n", b"0\n1\n", b"0\n1\n0 3"])
def test_torn_epochs_of_a_log_without_records_are_written_again(tmp_path: Path, torn: bytes) -> None:
    World().open_log(tmp_path, SMALL).reader.close()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(torn)

    log = World().open_log(tmp_path, SMALL, has_lost_power=True)

    assert log.reader.epochs.entries == ()
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n0\n"


def test_message_sets_of_old_brokers_are_kept_and_found(tmp_path: Path) -> None:
    def message(offset: int, magic: int, value: bytes) -> bytes:
        timestamp = struct.pack(">q", NOW_MS + offset) if magic else b""
        body = struct.pack(">bb", magic, 0) + timestamp + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
        body = struct.pack(">I", zlib.crc32(body)) + body
        return struct.pack(">qi", offset, len(body)) + body

    old = b"".join(message(offset, offset % 2, b"v" * offset) for offset in range(6))
    (tmp_path / f"{FIRST}.log").write_bytes(old + message(6, 1, b"torn")[:-2])

    log = World().open_log(tmp_path, SMALL)
    append(log, b"new")

    assert log.reader.log_end_offset == 7
    assert read(log, 0, end_offset=6) == old
    assert read(log, 4, end_offset=5) == message(4, 0, b"v" * 4)
    found = log.reader.offset_for_timestamp(NOW_MS + 4)
    assert found is not None
    assert found.offset == 5
