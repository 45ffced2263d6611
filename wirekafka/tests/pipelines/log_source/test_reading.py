"""The data source reads what a log holds, whatever happens to its files between the plan and the read."""

from __future__ import annotations

import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from wirekafka.inspection.files import DamageError
from wirekafka.log.checkpoint import LOG_START_OFFSETS, write_offsets
from wirekafka.names import TopicPartition
from wirekafka.pipelines.log_source.columns import Limits
from wirekafka.pipelines.log_source.plan import Selection, plan
from wirekafka.pipelines.log_source.reading import Reading, read_split
from wirekafka.tests.inspection.folders import (
    BATCHES,
    PARTITION,
    SEGMENTS,
    batch_at,
    headers_of,
    make_data,
    overwrite,
    segment_file,
    write_log,
)
from wirekafka.tests.log.logs import NOW_MS, World, append, batch, close, config_with, fill
from wirekafka.tests.pipelines.log_source.rows import offsets_of, rows_in, rows_of
from wirekafka.wire.batch import CRC_OFFSET, Record, build_batch
from wirekafka.wire.compression import Compression
from wirekafka.wire.legacy import down_convert

ALL_OFFSETS = list(range(BATCHES))


def test_a_closed_log_is_read_whole_in_every_codec(tmp_path: Path) -> None:
    make_data(tmp_path)

    rows = rows_of(tmp_path)

    assert offsets_of(rows) == ALL_OFFSETS
    assert {row["compression"] for row in rows} == {"none", "gzip", "snappy", "lz4", "zstd"}


def test_the_folder_of_a_partition_is_read_by_itself(tmp_path: Path) -> None:
    folder = make_data(tmp_path)

    assert offsets_of(rows_of(folder)) == ALL_OFFSETS


@pytest.mark.parametrize("split_bytes", [1, 1500, 5000])
def test_splits_of_any_size_hold_each_record_once(tmp_path: Path, split_bytes: int) -> None:
    make_data(tmp_path)

    splits = plan(str(tmp_path), Selection(), split_bytes)

    assert len(splits) > len(SEGMENTS)
    assert offsets_of(rows_in(splits)) == ALL_OFFSETS


def test_small_segments_share_a_split(tmp_path: Path) -> None:
    make_data(tmp_path)

    (split,) = plan(str(tmp_path), Selection(), 1 << 20)

    assert (split.first_offset, split.end_offset) == (0, BATCHES)
    assert offsets_of(rows_in([split])) == ALL_OFFSETS


def test_a_split_is_pickled_for_its_task(tmp_path: Path) -> None:
    make_data(tmp_path)
    splits = plan(str(tmp_path), Selection(), 1500)

    assert pickle.loads(pickle.dumps(splits)) == splits


def test_an_open_log_is_read_up_to_its_end_at_planning(tmp_path: Path) -> None:
    log = World().open_log(tmp_path / str(PARTITION), config_with(segment_bytes=5000))
    fill(log, 90)
    splits = plan(str(tmp_path), Selection(), 1000)
    fill(log, 90)

    rows = rows_in(splits)

    close(log)
    assert len(splits) > 5
    assert offsets_of(rows) == list(range(90))


def test_the_indexes_that_kafka_preallocates_are_read_up_to_their_zeros(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    for suffix in (".index", ".timeindex"):
        path = segment_file(folder, SEGMENTS[1], suffix)
        path.write_bytes(path.read_bytes() + bytes(960))

    assert offsets_of(rows_of(tmp_path, 500)) == ALL_OFFSETS
    assert offsets_of(rows_of(tmp_path, 500, starting_timestamp=NOW_MS + 110)) == ALL_OFFSETS[110:]


@pytest.mark.parametrize("tail", [b"\0" * 100, bytes(batch_at(BATCHES))[:70], bytes(batch_at(BATCHES))[:20]])
def test_a_torn_tail_is_ignored(tmp_path: Path, tail: bytes) -> None:
    folder = make_data(tmp_path)
    path = segment_file(folder, SEGMENTS[1], ".log")
    path.write_bytes(path.read_bytes() + tail)

    assert offsets_of(rows_of(tmp_path)) == ALL_OFFSETS


def test_a_last_batch_of_which_only_the_header_was_written_is_ignored(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    path = segment_file(folder, SEGMENTS[1], ".log")
    torn = bytes(batch_at(BATCHES))
    path.write_bytes(path.read_bytes() + torn[:61] + bytes(len(torn) - 61))

    assert offsets_of(rows_of(tmp_path)) == ALL_OFFSETS


def test_records_before_the_log_start_offset_are_left_out(tmp_path: Path) -> None:
    make_data(tmp_path)
    (tmp_path / LOG_START_OFFSETS).write_bytes(write_offsets({PARTITION: 17}))

    assert offsets_of(rows_of(tmp_path)) == ALL_OFFSETS[17:]


def test_a_selection_of_topics_and_partitions_leaves_out_the_others(tmp_path: Path) -> None:
    write_log(tmp_path, batch_at(0), topic="orders")
    write_log(tmp_path, batch_at(0), topic="orders.old")
    write_log(tmp_path, batch_at(0), topic="__cluster_metadata")

    def topics(**wanted: Any) -> set[str]:
        return {row["topic"] for row in rows_of(tmp_path, **wanted)}

    assert topics() == {"orders", "orders.old"}
    assert topics(topics=frozenset({"orders", "__cluster_metadata"})) == {"orders", "__cluster_metadata"}
    assert topics(topic_pattern="orders?") == {"orders"}
    assert topics(partitions=frozenset({1})) == set()


# Files that change between the plan and the read


def test_a_deleted_segment_costs_only_its_own_records(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    splits = plan(str(tmp_path), Selection(), 1500)
    os.rename(segment_file(folder, 0, ".log"), segment_file(folder, 0, ".log.deleted"))

    assert offsets_of(rows_in(splits)) == ALL_OFFSETS[SEGMENTS[1] :]


def compacted(folder: Path, *, keeps: int = 3) -> bytes:
    """Returns a segment of both segments' batches, without most of them."""
    kept = b""
    for base_offset in SEGMENTS:
        path = segment_file(folder, base_offset, ".log")
        content = path.read_bytes()
        for position, header in headers_of(path):
            if header.base_offset % keeps == 0:
                kept += content[position : position + header.size_bytes]
    return kept


@pytest.mark.parametrize("split_bytes", [1500, 1 << 20])
def test_segments_that_compaction_merged_are_found_by_their_offsets(tmp_path: Path, split_bytes: int) -> None:
    folder = make_data(tmp_path)
    splits = plan(str(tmp_path), Selection(), split_bytes)
    content = compacted(folder)
    for path in folder.iterdir():
        path.unlink()
    segment_file(folder, 0, ".log").write_bytes(content)

    assert offsets_of(rows_in(splits)) == ALL_OFFSETS[::3]


@pytest.mark.parametrize("has_old_files", [True, False])
def test_a_compacted_segment_is_read_while_it_is_swapped_in(tmp_path: Path, has_old_files: bool) -> None:
    folder = make_data(tmp_path)
    splits = plan(str(tmp_path), Selection(), 1500)
    segment_file(folder, 0, ".log.swap").write_bytes(compacted(folder))
    if not has_old_files:
        for base_offset in SEGMENTS:
            path = segment_file(folder, base_offset, ".log")
            path.rename(f"{path}.deleted")

    offsets = offsets_of(rows_in(splits))

    expected = set(ALL_OFFSETS[::3]) | set(ALL_OFFSETS[SEGMENTS[1] :] if has_old_files else ())
    assert offsets == sorted(expected)


def test_a_deleted_partition_is_an_error_of_its_tasks(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    splits = plan(str(tmp_path), Selection())
    folder.rename(tmp_path / "topic-0.0123-delete")

    with pytest.raises(FileNotFoundError):
        rows_in(splits)
    assert plan(str(tmp_path), Selection()) == []


# Damage


def test_a_wrong_checksum_names_file_position_and_offset(tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    path = segment_file(folder, 0, ".log")
    position, header = headers_of(path)[20]
    overwrite(path, position + CRC_OFFSET, b"\0\0\0\0")
    splits = plan(str(tmp_path), Selection())

    with pytest.raises(DamageError, match=f"{path}, at byte {position}, offset {header.base_offset}: the checksum is wrong"):
        rows_in(splits)
    assert offsets_of(rows_in(splits, has_crc_checks=False)) == ALL_OFFSETS


def test_a_compressed_block_that_is_broken_names_file_position_and_offset(tmp_path: Path) -> None:
    data = batch_at(5, compression=Compression.GZIP)
    data[61:65] = b"\0\0\0\0"
    path = write_log(tmp_path, batch_at(3), data, batch_at(7))
    position = len(batch_at(3))

    with pytest.raises(DamageError, match=f"{path}, at byte {position}, offset 5: broken gzip stream"):
        rows_in(plan(str(tmp_path), Selection()), has_crc_checks=False)


def test_a_torn_sealed_segment_is_damage(tmp_path: Path) -> None:
    path = write_log(tmp_path, batch_at(0), bytes(batch_at(2))[:-1])
    segment_file(path.parent, 4, ".log").write_bytes(bytes(batch_at(4)))

    with pytest.raises(DamageError, match="offset 2: a batch of .* bytes begins where the file has"):
        rows_of(tmp_path)


def test_offsets_that_do_not_ascend_are_damage(tmp_path: Path) -> None:
    write_log(tmp_path, batch_at(0), batch_at(0))

    with pytest.raises(DamageError, match="a batch ends at offset 1, but the next offset is 2"):
        rows_of(tmp_path)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_bytes_that_are_no_batch_inside_a_log_are_damage(tmp_path: Path, is_sealed: bool) -> None:
    path = write_log(tmp_path, batch_at(0), b"\xff" * 90, batch_at(2))
    if is_sealed:
        segment_file(path.parent, 4, ".log").write_bytes(bytes(batch_at(4)))

    with pytest.raises(DamageError, match="offset 2: no batch begins here"):
        rows_of(tmp_path)


# Formats


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4])
def test_messages_of_old_formats_are_rows(tmp_path: Path, magic: int, compression: Compression) -> None:
    records = [Record(b"k%d" % number, b"v" * number, timestamp=NOW_MS + number) for number in range(5)]
    messages = down_convert(build_batch(records, base_offset=10, compression=compression), magic, 0)
    write_log(tmp_path, messages, batch_at(15))

    rows = rows_of(tmp_path, 1)

    assert offsets_of(rows) == list(range(10, 17))
    assert [row["value"] for row in rows[:5]] == [record.value for record in records]
    assert {row["compression"] for row in rows[:5]} == {compression.name.lower()}
    assert {row["timestamp_type"] for row in rows[:5]} == {"CreateTime" if magic else None}
    assert [row["timestamp"] is None for row in rows[:5]] == [not magic] * 5
    assert offsets_of(rows_of(tmp_path, starting_offset=12, ending_offset=14)) == [12, 13]


def test_a_batch_that_compaction_emptied_has_no_rows(tmp_path: Path) -> None:
    empty = build_batch([], base_offset=2, last_offset=4, producer_id=7, producer_epoch=0, base_sequence=0)
    write_log(tmp_path, batch_at(0), empty, batch_at(5))

    assert offsets_of(rows_of(tmp_path)) == [0, 1, 5, 6]


@pytest.mark.parametrize("limit", [{"most_records": 7}, {"most_bytes": 700}])
def test_an_arrow_batch_ends_at_its_limits(tmp_path: Path, limit: dict[str, Any]) -> None:
    make_data(tmp_path)
    (split,) = plan(str(tmp_path), Selection())

    batches = list(read_split(split, Reading(limits=Limits(**limit))))

    assert sum(columns.num_rows for columns in batches) == BATCHES
    assert len(batches) > BATCHES // 20
    assert max(columns.num_rows for columns in batches) <= limit.get("most_records", BATCHES)
    assert max(columns.nbytes for columns in batches) < 5000


# Pruning


def test_the_offset_index_prunes_the_bytes_of_a_split(tmp_path: Path) -> None:
    make_data(tmp_path)
    (whole,) = plan(str(tmp_path), Selection())

    (split,) = plan(str(tmp_path), Selection(starting_offset=60, ending_offset=70))

    assert split.size_bytes < whole.size_bytes / 2
    assert split.hint is not None
    assert split.hint.position > 0


def test_the_time_index_prunes_whole_segments(tmp_path: Path) -> None:
    make_data(tmp_path)

    (split,) = plan(str(tmp_path), Selection(starting_timestamp=NOW_MS + SEGMENTS[1]))

    assert split.first_offset == SEGMENTS[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_selection_has_the_rows_that_a_filter_afterwards_keeps(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = World().open_log(tmp_path / "topic-0", config_with(segment_bytes=3000, index_interval_bytes=chance.choice([1, 500])))
    for _ in range(60):
        times = [NOW_MS + chance.randrange(100) for _ in range(chance.randint(1, 4))]
        append(log, batch(*[b"v" * 40] * len(times), timestamps=times, compression=Compression(chance.randrange(5))))
    if seed % 2:
        close(log)
    every = rows_of(tmp_path)
    for _ in range(12):
        first, end = sorted(chance.randrange(-5, 160) for _ in range(2))
        since, until = sorted(NOW_MS + chance.randrange(-5, 105) for _ in range(2))
        wanted = {
            "starting_offset": max(first, 0),
            "ending_offset": max(end, 0),
            "starting_timestamp": since,
            "ending_timestamp": until,
        }
        chosen = {name: value for name, value in wanted.items() if chance.random() < 0.6}

        rows = rows_of(tmp_path, chance.choice([1, 800, 1 << 20]), **chosen)

        kept = [row for row in every if first <= row["offset"] or "starting_offset" not in chosen]
        kept = [row for row in kept if row["offset"] < end or "ending_offset" not in chosen]
        kept = [row for row in kept if _ms(row) >= since or "starting_timestamp" not in chosen]
        assert rows == [row for row in kept if _ms(row) < until or "ending_timestamp" not in chosen]


def _ms(row: dict[str, object]) -> int:
    return round(row["timestamp"].timestamp() * 1000)  # type: ignore[attr-defined]


def test_a_data_directory_without_partitions_has_no_splits(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    assert plan(str(tmp_path), Selection()) == []


def test_an_empty_segment_ends_the_log_at_its_base_offset(tmp_path: Path) -> None:
    path = write_log(tmp_path, batch_at(0), batch_at(2))
    segment_file(path.parent, 4, ".log").write_bytes(b"")

    assert offsets_of(rows_of(tmp_path)) == [0, 1, 2, 3]
    assert [(split.topic, split.partition) for split in plan(str(tmp_path), Selection())] == [TopicPartition("other", 0)]


@pytest.mark.parametrize("first", [(1, 7), (1, -7), (-8, -7)])
def test_an_index_that_does_not_match_its_log_is_not_used(tmp_path: Path, first: tuple[int, int]) -> None:
    folder = make_data(tmp_path)
    index = segment_file(folder, 0, ".index")
    count = index.stat().st_size // 8
    index.write_bytes(b"".join(struct.pack(">ii", number + first[0], 10 * number + first[1]) for number in range(count)))

    assert offsets_of(rows_of(tmp_path, 1500)) == ALL_OFFSETS
