"""Mapping records that say nothing of records that the target still has."""

from __future__ import annotations

from wirekafka.pipelines.mirror.places import dead_chunks
from wirekafka.pipelines.transactional_sink.progress import Run

CHUNKS = {b"a": [Run(0, 0, 5), Run(7, 5, 5)], b"b": [Run(20, 11, 9)], b"c": [Run(30, 21, 4)]}


def test_a_mapping_record_is_kept_while_one_of_its_records_is_there() -> None:
    assert dead_chunks(CHUNKS, 9) == []
    assert dead_chunks(CHUNKS, 10) == [b"a"]


def test_the_last_mapping_record_is_kept_after_all_records_were_deleted() -> None:
    assert dead_chunks(CHUNKS, 1000) == [b"a", b"b"]


def test_a_partition_without_mapping_records_has_nothing_to_delete() -> None:
    assert dead_chunks({}, 5) == []
