"""Each kind of damage is reported at its position; sound files are not reported."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from wirekafka.inspection.verification import Checked, has_broker, verify
from wirekafka.log.checkpoint import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    write_clean_shutdown,
    write_lines,
    write_offsets,
)
from wirekafka.log.epochs import FILE_NAME as EPOCHS_FILE
from wirekafka.log.producer_state import Producers
from wirekafka.metadata.journal import FILE_NAME
from wirekafka.names import TopicPartition
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.tests.inspection.folders import (
    BATCHES,
    PARTITION,
    SEGMENTS,
    batch_at,
    headers_of,
    held_by_a_broker,
    look,
    make_data,
    only_damage,
    overwrite,
    sealed_again,
    segment_file,
    write_log,
)
from wirekafka.tests.log.logs import NOW_MS
from wirekafka.wire.batch import HEADER_SIZE, BatchHeader, Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import down_convert

SEALED, ACTIVE = SEGMENTS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_data(tmp_path)
    (tmp_path / CLEAN_SHUTDOWN).write_bytes(write_clean_shutdown(None))
    return tmp_path


@pytest.fixture
def folder(root: Path) -> Path:
    return root / str(PARTITION)


def test_a_directory_has_a_broker_while_another_process_holds_it(root: Path, folder: Path) -> None:
    assert not has_broker(str(root))
    with held_by_a_broker(root):
        assert has_broker(str(root))
        assert has_broker(str(folder))
    assert not has_broker(str(root))
    assert not has_broker(str(root.parent))


def test_verify_of_a_sound_directory_counts_what_it_saw(root: Path) -> None:
    verification, damages = look(root)
    assert not damages
    size = sum(path.stat().st_size for path in root.rglob("*.log"))
    entries = sum(path.stat().st_size // 8 for path in root.rglob("*.index"))
    entries += sum(path.stat().st_size // 12 for path in root.rglob("*.timeindex"))
    assert verification.checked == Checked(1, 2, BATCHES, BATCHES, size, entries, 5)


def test_verify_of_a_partition_alone_finds_it_sound(folder: Path) -> None:
    verification, damages = look(folder, reads_records=True)
    assert not damages
    assert verification.checked.batches == BATCHES


@pytest.mark.parametrize("at", [HEADER_SIZE, 21, 43, 17])
def test_verify_of_a_flipped_byte_names_the_batch(folder: Path, at: int) -> None:
    log = segment_file(folder, SEALED, ".log")
    position, header = headers_of(log)[50]
    overwrite(log, position + at, bytes([log.read_bytes()[position + at] ^ 0x40]))
    damage = only_damage(folder.parent)
    assert (damage.path, damage.position, damage.offset) == (str(log), position, header.base_offset)
    assert "checksum" in damage.reason


def test_verify_of_a_length_that_lies_names_the_place_behind_which_nothing_follows(folder: Path) -> None:
    log = segment_file(folder, SEALED, ".log")
    position, header = headers_of(log)[50]
    overwrite(log, position + 8, struct.pack(">i", 0x7000_0000))
    damage = only_damage(folder)
    assert (damage.path, damage.position, damage.offset) == (str(log), position, header.base_offset)


def test_verify_of_a_length_that_leads_into_a_batch_names_the_place_it_leads_to_or_the_batch(folder: Path) -> None:
    log = segment_file(folder, SEALED, ".log")
    position, header = headers_of(log)[50]
    overwrite(log, position + 8, struct.pack(">i", header.batch_length + 1))
    damage = only_damage(folder)
    assert (damage.path, damage.position, damage.offset) == (str(log), position, header.base_offset)


@pytest.mark.parametrize(("at", "data"), [(16, b"\x07"), (8, struct.pack(">i", 3)), (8, struct.pack(">i", -5))])
def test_verify_where_no_batch_begins_names_the_place(folder: Path, at: int, data: bytes) -> None:
    log = segment_file(folder, ACTIVE, ".log")
    position, header = headers_of(log)[3]
    overwrite(log, position + at, data)
    damage = only_damage(folder)
    assert (damage.path, damage.position, damage.offset) == (str(log), position, header.base_offset)
    assert "no batch begins here" in damage.reason


@pytest.mark.parametrize("base_offset", SEGMENTS)
@pytest.mark.parametrize("left", [1, 20, HEADER_SIZE, -1])
def test_verify_of_a_torn_tail_without_a_broker_is_damage(folder: Path, base_offset: int, left: int) -> None:
    log = segment_file(folder, base_offset, ".log")
    position, header = headers_of(log)[-1]
    content = log.read_bytes()
    log.write_bytes(content[: position + left] if left > 0 else content[:left])
    damage = only_damage(folder)
    assert (damage.path, damage.position, damage.offset) == (str(log), position, header.base_offset)
    assert damage.is_torn


def test_verify_of_zeros_behind_the_last_batch_without_a_broker_is_damage(folder: Path) -> None:
    log = segment_file(folder, ACTIVE, ".log")
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(5000))
    damage = only_damage(folder)
    assert (damage.path, damage.position, damage.offset) == (str(log), size, BATCHES)


@pytest.mark.parametrize("tail", [bytes(5000), batch_at(BATCHES)[:-1], batch_at(BATCHES)[:15]], ids=["zeros", "batch", "head"])
def test_verify_of_a_torn_tail_under_a_broker_is_a_note(root: Path, folder: Path, tail: bytes) -> None:
    log = segment_file(folder, ACTIVE, ".log")
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + tail)
    with held_by_a_broker(root):
        verification, damages = look(folder)
    assert not damages
    assert [f"at byte {size}" in note for note in verification.notes] == [True]
    assert verification.checked.batches == BATCHES


def test_verify_of_a_torn_sealed_segment_under_a_broker_is_damage(root: Path, folder: Path) -> None:
    log = segment_file(folder, SEALED, ".log")
    log.write_bytes(log.read_bytes()[:-1])
    with held_by_a_broker(root):
        assert only_damage(root).path == str(log)


def test_verify_of_indexes_that_a_broker_has_reserved_room_in_is_sound(root: Path, folder: Path) -> None:
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
        index = segment_file(folder, ACTIVE, suffix)
        index.write_bytes(index.read_bytes() + bytes(entry_bytes * 1000))
    assert not look(root)[1]


def test_verify_of_offsets_that_go_back_names_the_batch(tmp_path: Path) -> None:
    first, second = batch_at(0, 3), batch_at(2, 2)
    log = write_log(tmp_path, first, second)
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), len(first), 2)


def test_verify_of_a_segment_that_begins_before_the_last_one_ends_names_it(tmp_path: Path) -> None:
    write_log(tmp_path, batch_at(0, 5))
    (tmp_path / "other-0" / "00000000000000000000.index").touch()
    (tmp_path / "other-0" / "00000000000000000000.timeindex").write_bytes(struct.pack(">qi", NOW_MS, 4))
    log = write_log(tmp_path, batch_at(5), base_offset=3)
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), 0, 3)


def test_verify_of_a_negative_offset_names_the_batch(folder: Path) -> None:
    log = segment_file(folder, SEALED, ".log")
    position, _ = headers_of(log)[1]
    overwrite(log, position, b"\xff")
    damage = only_damage(folder)
    assert (damage.path, damage.position) == (str(log), position)


def test_verify_of_an_offset_before_the_segments_base_names_the_batch(tmp_path: Path) -> None:
    log = write_log(tmp_path, batch_at(3), base_offset=5)
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), 0, 3)


@pytest.mark.parametrize("compression", list(Compression))
def test_verify_of_a_wrong_count_of_records_names_the_batch(tmp_path: Path, compression: Compression) -> None:
    first, second = batch_at(0, 3), batch_at(3, 3, compression=compression)
    struct.pack_into(">i", second, 57, 4)
    log = write_log(tmp_path, first, sealed_again(second))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), len(first), 3)
    assert damage.reason == "the header counts 4 records, but the batch has 3"


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_verify_of_a_broken_compressed_block_names_the_batch(tmp_path: Path, compression: Compression) -> None:
    second = batch_at(2, 50, compression=compression)
    second[HEADER_SIZE:] = b"\x00" * (len(second) - HEADER_SIZE)
    log = write_log(tmp_path, batch_at(0), sealed_again(second))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), len(batch_at(0)), 2)


def test_verify_of_a_codec_that_there_is_not_names_the_batch(tmp_path: Path) -> None:
    bad = batch_at(0)
    struct.pack_into(">h", bad, 21, 6)
    log = write_log(tmp_path, sealed_again(bad))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), 0, 0)


def test_verify_of_records_whose_offsets_go_back_is_found_by_reading_them(tmp_path: Path) -> None:
    records = [Record(value=b"a", offset=1), Record(value=b"b", offset=0)]
    bad = build_batch(records, base_offset=0, keeps_offsets=True, last_offset=1)
    log = write_log(tmp_path, bad)
    assert not look(tmp_path)[1]
    damage = only_damage(tmp_path, reads_records=True)
    assert (damage.path, damage.position, damage.offset) == (str(log), 0, 0)


def test_verify_of_a_batch_larger_than_a_chunk_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.inspection.batches.CHUNK_BYTES", 100)
    log = write_log(tmp_path, batch_at(0), batch_at(2, 50), batch_at(52))
    verification, damages = look(tmp_path)
    assert not damages
    assert verification.checked.batches == 3
    overwrite(log, len(batch_at(0)) + 200, b"\xff")
    damage = only_damage(tmp_path)
    assert (damage.position, damage.offset) == (len(batch_at(0)), 2)
    assert "checksum" in damage.reason


def test_verify_of_what_compaction_leaves_is_sound(tmp_path: Path) -> None:
    emptied = build_batch([], base_offset=0, last_offset=4, producer_id=3, producer_epoch=0, base_sequence=0)
    gap = build_batch([Record(b"k", b"v", timestamp=NOW_MS, offset=9)], base_offset=7, keeps_offsets=True, last_offset=12)
    write_log(tmp_path, emptied, gap)
    verification, damages = look(tmp_path, reads_records=True)
    assert not damages
    assert (verification.checked.batches, verification.checked.records) == (2, 1)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_verify_of_message_sets_counts_their_messages(tmp_path: Path, magic: int, compression: Compression) -> None:
    log = write_log(tmp_path, down_convert(batch_at(0, 3, compression=compression) + batch_at(3, 4), magic, 0), batch_at(7))
    verification, damages = look(tmp_path, reads_records=True)
    assert not damages
    assert verification.checked.records == 9
    overwrite(log, 25, bytes([log.read_bytes()[25] ^ 1]))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position) == (str(log), 0)


def test_verify_of_a_control_record_without_a_type_names_the_batch(tmp_path: Path) -> None:
    bad = build_batch([Record(b"k", None, timestamp=NOW_MS)], producer_id=7, producer_epoch=0, is_control=True)
    log = write_log(tmp_path, bad)
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), 0, 0)


def test_verify_of_a_snapshot_with_a_wrong_checksum_names_it(folder: Path) -> None:
    snapshot = segment_file(folder, ACTIVE, ".snapshot")
    overwrite(snapshot, 20, b"\xff")
    damage = only_damage(folder)
    assert (damage.path, damage.offset) == (str(snapshot), ACTIVE)
    assert "CRC" in damage.reason


def test_verify_of_a_snapshot_that_knows_later_batches_names_the_offset(folder: Path) -> None:
    snapshot = segment_file(folder, ACTIVE, ".snapshot")
    producers = Producers(ACTIVE)
    producers.replay(BatchHeader(batch_at(ACTIVE + 1, 1, producer_id=7, producer_epoch=0, base_sequence=0)))
    snapshot.write_bytes(producers.write_snapshot())
    damage = only_damage(folder)
    assert (damage.path, damage.offset) == (str(snapshot), ACTIVE + 1)


def test_verify_of_a_snapshot_behind_the_end_of_the_log_names_it(folder: Path) -> None:
    segment_file(folder, BATCHES, ".snapshot").rename(segment_file(folder, BATCHES + 1, ".snapshot"))
    damage = only_damage(folder)
    assert (damage.path, damage.offset) == (str(segment_file(folder, BATCHES + 1, ".snapshot")), BATCHES + 1)


@pytest.mark.parametrize(("last_offset", "is_damage"), [(ACTIVE - 1, False), (ACTIVE, True)])
def test_verify_of_a_snapshot_may_know_batches_up_to_its_own_offset(folder: Path, last_offset: int, *, is_damage: bool) -> None:
    producers = Producers(ACTIVE)
    producers.replay(BatchHeader(batch_at(last_offset, 1, producer_id=7, producer_epoch=0, base_sequence=0)))
    segment_file(folder, ACTIVE, ".snapshot").write_bytes(producers.write_snapshot())
    assert bool(look(folder)[1]) == is_damage


def test_verify_of_a_snapshot_at_the_end_of_the_log_is_sound(folder: Path) -> None:
    snapshot = segment_file(folder, BATCHES, ".snapshot")
    assert snapshot.exists()
    assert not look(folder)[1]


@pytest.mark.parametrize("lines", [["0 0", "0 5"], ["1 5", "2 3"], ["x"]])
def test_verify_of_leader_epochs_that_do_not_ascend_names_the_file(folder: Path, lines: list[str]) -> None:
    (folder / EPOCHS_FILE).write_bytes(write_lines(lines))
    assert only_damage(folder).path == str(folder / EPOCHS_FILE)


def test_verify_of_a_batch_of_another_leader_epoch_names_the_batch(tmp_path: Path) -> None:
    first = batch_at(0, leader_epoch=0)
    log = write_log(tmp_path, first, batch_at(2, leader_epoch=3), batch_at(4, leader_epoch=3))
    (log.parent / EPOCHS_FILE).write_bytes(write_lines(["0 0", "3 2"]))
    assert not look(tmp_path)[1]
    (log.parent / EPOCHS_FILE).write_bytes(write_lines(["0 0", "3 4"]))
    damage = only_damage(tmp_path)
    assert (damage.path, damage.position, damage.offset) == (str(log), len(first), 2)


@pytest.mark.parametrize("name", [META_PROPERTIES, HIGH_WATERMARKS, RECOVERY_POINTS])
def test_verify_of_a_malformed_file_of_the_directory_names_it(root: Path, name: str) -> None:
    (root / name).write_text("nonsense")
    assert only_damage(root).path == str(root / name)


def test_verify_of_checkpoints_that_kafka_has_only_made_yet_is_sound(root: Path, folder: Path) -> None:
    for path in (root / HIGH_WATERMARKS, root / RECOVERY_POINTS, folder / EPOCHS_FILE):
        path.write_bytes(b"")
    assert not look(root)[1]


def test_verify_of_malformed_partition_metadata_names_it(folder: Path) -> None:
    (folder / PARTITION_METADATA).write_text("version: 0\n")
    assert only_damage(folder).path == str(folder / PARTITION_METADATA)


@pytest.mark.parametrize("name", [HIGH_WATERMARKS, RECOVERY_POINTS])
def test_verify_of_a_checkpoint_that_promises_more_than_the_log_has_names_it(root: Path, name: str) -> None:
    (root / name).write_bytes(write_offsets({PARTITION: BATCHES + 1}))
    damage = only_damage(root)
    assert (damage.path, damage.offset) == (str(root / name), BATCHES)


def test_verify_of_a_partition_folder_that_was_emptied_names_the_checkpoint(root: Path, folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    damage = only_damage(root)
    assert (damage.path, damage.offset) == (str(root / RECOVERY_POINTS), 0)
    assert "its log ends at 0" in damage.reason


@pytest.mark.parametrize("name", [HIGH_WATERMARKS, RECOVERY_POINTS])
def test_verify_of_a_partition_folder_that_was_removed_names_the_checkpoint(root: Path, folder: Path, name: str) -> None:
    (root / RECOVERY_POINTS).unlink()
    (root / name).write_bytes(write_offsets({PARTITION: BATCHES, TopicPartition("empty", 0): 0}))
    shutil.rmtree(folder)
    damage = only_damage(root)
    assert (damage.path, damage.offset) == (str(root / name), 0)
    assert "no folder" in damage.reason


def test_verify_of_a_missing_partition_names_it_once_for_all_checkpoints(root: Path, folder: Path) -> None:
    (root / HIGH_WATERMARKS).write_bytes(write_offsets({PARTITION: BATCHES}))
    shutil.rmtree(folder)
    only_damage(root)


def test_verify_of_a_removed_folder_under_a_broker_is_a_note(root: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    with held_by_a_broker(root):
        verification, damages = look(root)
    assert not damages
    assert len(verification.notes) == 1


@pytest.mark.parametrize(
    ("journal", "is_damage"),
    [
        (b'{"topic":"topic"}\n', True),
        (b'{"topic":"topic"}\n{"deleted":"id","topic":"topic"}\n', False),
        (b'{"topic":"other"}\n', False),
        (b"nonsense\n", True),
    ],
)
def test_verify_of_a_removed_folder_is_damage_unless_the_journal_lacks_the_topic(
    root: Path, folder: Path, journal: bytes, *, is_damage: bool
) -> None:
    shutil.rmtree(folder)
    (root / FILE_NAME).write_bytes(journal)
    assert bool(look(root)[1]) == is_damage


@pytest.mark.parametrize("suffix", ["delete", "future"])
@pytest.mark.parametrize(("partition", "is_damage"), [(PARTITION, False), (TopicPartition("topic", 1), True)])
def test_verify_of_a_removed_folder_is_a_note_if_the_partition_was_deleted_or_moved(
    root: Path, folder: Path, suffix: str, partition: TopicPartition, *, is_damage: bool
) -> None:
    folder.rename(root / f"{partition}.{'0' * 32}-{suffix}")
    (root / FILE_NAME).write_bytes(b'{"topic":"topic"}\n')
    verification, damages = look(root)
    assert (bool(damages), bool(verification.notes)) == (is_damage, not is_damage)


@pytest.mark.parametrize("directory_count", [1, 2])
def test_verify_after_a_crash_that_follows_the_deletion_of_a_topic_is_a_note(tmp_path: Path, directory_count: int) -> None:
    paths = [tmp_path / f"directory {number}" for number in range(directory_count)]
    crashed = [tmp_path / f"crashed {number}" for number in range(directory_count)]

    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("flights", 2)
        for partition in topic.partitions:
            partition.append(memoryview(build_batch([Record(b"k", b"v", timestamp=NOW_MS)])), now_ms=NOW_MS)
        catalog = caller.broker.logs.catalog
        for directory in catalog.directories:
            directory.write_checkpoint(HIGH_WATERMARKS, catalog.offsets_of(directory, HIGH_WATERMARKS))
        caller.broker.topics.delete(topic)
        for path, copy in zip(paths, crashed, strict=True):
            shutil.copytree(path, copy)

    run(body, paths[0], log_dirs=",".join(map(str, paths)))
    notes = 0
    for copy in crashed:
        verification, damages = look(copy)
        assert not damages
        notes += len(verification.notes)
    assert notes == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_verify_of_a_directory_without_a_journal_trusts_its_checkpoints_after_a_clean_stop_alone(
    root: Path, folder: Path, *, is_clean: bool
) -> None:
    assert not (root / FILE_NAME).exists()
    if not is_clean:
        (root / CLEAN_SHUTDOWN).unlink()
    shutil.rmtree(folder)
    verification, damages = look(root)
    assert (bool(damages), bool(verification.notes)) == (is_clean, not is_clean)


def test_verify_of_several_partitions_names_the_first_damage_of_each(root: Path, folder: Path) -> None:
    make_data(root / "more")
    second = root / "topic-1"
    (root / "more" / str(PARTITION)).rename(second)
    for partition in (folder, second):
        for base_offset in SEGMENTS:
            overwrite(segment_file(partition, base_offset, ".log"), 100, b"\xff\xff")
    _, damages = look(root)
    assert [damage.path for damage in damages] == [str(segment_file(partition, SEALED, ".log")) for partition in (folder, second)]


def test_verify_of_a_segment_that_a_broker_deletes_meanwhile_begins_again(root: Path, folder: Path) -> None:
    segment_file(folder, SEALED, ".index").unlink()

    def delete(size: int) -> None:
        for suffix in (".log", ".timeindex"):
            segment_file(folder, SEALED, suffix).unlink(missing_ok=True)

    with held_by_a_broker(root):
        verification = verify(str(root), advance=delete)
        assert not list(verification.damages())
    assert not list(verify(str(root), advance=lambda size: None).damages())


def test_verify_of_files_that_are_on_their_way_out_or_in_leaves_them_alone(folder: Path) -> None:
    for suffix in (".log.deleted", ".log.swap", ".log.cleaned", ".index.deleted"):
        (folder / f"00000000000000000500{suffix}").write_bytes(b"nonsense")
    assert not look(folder)[1]
