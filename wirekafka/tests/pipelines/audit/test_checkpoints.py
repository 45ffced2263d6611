from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.pipelines.audit.checkpoints import parse_batch, parse_initial_offsets, query_lags, read_checkpoint
from wirekafka.pipelines.audit.offsets import PartitionOffsets, Place
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake.files import LocalFiles

BATCH = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1700000000123,"conf":{}}
{"orders":{"1":7,"0":12},"refunds":{"0":3}}
-
{"logOffset":4}
{"payments":{"0":1}}"""


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_batch_has_the_offsets_of_all_sources_of_kafka() -> None:
    time_ms, offsets = parse_batch(BATCH)
    assert time_ms == 1_700_000_000_123
    assert offsets == {
        Place("orders", 0): 12,
        Place("orders", 1): 7,
        Place("refunds", 0): 3,
        Place("payments", 0): 1,
    }


def test_initial_offsets_are_read_after_the_zero_byte() -> None:
    assert parse_initial_offsets('\0v1\n{"orders":{"0":5}}') == {Place("orders", 0): 5}
    assert parse_initial_offsets("0") == {}


def test_checkpoint_ends_at_its_last_committed_batch(tmp_path: Path) -> None:
    write(tmp_path, metadata='{"id":"q"}', sources__0__0='\0v1\n{"orders":{"0":5,"2":9}}')
    write(tmp_path, offsets__8=BATCH, offsets__9=BATCH.replace("12", "99"), commits__8="v1\n{}", commits__7="v1\n{}")
    found = read_checkpoint(LocalFiles(tmp_path), "/c")
    assert (found.query_id, found.batch, found.batch_time_ms) == ("q", 8, 1_700_000_000_123)
    assert found.first_offsets == {Place("orders", 0): 5, Place("orders", 2): 9}
    assert found.end_offsets[Place("orders", 0)] == 12
    assert found.end_offsets[Place("orders", 2)] == 9, "no batch has seen this partition"


def test_checkpoint_without_a_completed_batch_ends_where_it_began(tmp_path: Path) -> None:
    write(tmp_path, metadata='{"id":"q"}', sources__0__0='\0v1\n{"orders":{"0":5}}', offsets__0=BATCH)
    found = read_checkpoint(LocalFiles(tmp_path), "/c")
    assert found.batch is None
    assert found.end_offsets == {Place("orders", 0): 5}


def test_directory_without_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="/c is no checkpoint"):
        read_checkpoint(LocalFiles(tmp_path), "/c")


def test_missing_offsets_of_a_committed_batch_are_reported(tmp_path: Path) -> None:
    write(tmp_path, metadata='{"id":"q"}', commits__3="v1\n{}")
    with pytest.raises(PipelineError, match="damaged"):
        read_checkpoint(LocalFiles(tmp_path), "/c")


def test_lag_counts_from_the_log_start_in_a_partition_that_the_query_has_not_seen(tmp_path: Path) -> None:
    write(tmp_path, metadata='{"id":"q"}', offsets__0=BATCH, commits__0="v1\n{}")
    checkpoint = read_checkpoint(LocalFiles(tmp_path), "/c")
    offsets = {
        Place("orders", 0): PartitionOffsets(0, 0, 20, 20),
        Place("orders", 5): PartitionOffsets(30, 30, 42, 42),
        Place("other", 0): PartitionOffsets(0, 0, 9, 9),
    }
    lags = [(lag.topic, lag.partition, lag.end_offset, lag.lag) for lag in query_lags(checkpoint, offsets)]
    assert lags == [("orders", 0, 12, 8), ("orders", 5, None, 12)]
