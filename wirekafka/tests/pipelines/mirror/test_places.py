"""Where mapped offsets are: the index of the mapping records, and what of them is kept in memory."""

from __future__ import annotations

import pytest

from wirekafka.pipelines.mirror.chunk_index import Chunk, ChunkIndex, RunCache
from wirekafka.pipelines.transactional_sink.progress import Run

CHUNKS = (Chunk(0, 12, 10, 100), Chunk(20, 29, 20, 101), Chunk(30, 34, 25, 105))


def index(*chunks: Chunk) -> ChunkIndex:
    made = ChunkIndex()
    for chunk in chunks:
        made.put(chunk)
    return made


@pytest.mark.parametrize(("source_offset", "position"), [(0, 0), (11, 0), (12, 1), (28, 1), (29, 2), (33, 2), (34, 2), (999, 2)])
def test_a_source_offset_is_in_the_first_chunk_that_ends_after_it_or_the_last(source_offset: int, position: int) -> None:
    assert index(*CHUNKS).containing(source_offset) == CHUNKS[position]


def test_chunks_in_another_order_and_written_again_are_the_same() -> None:
    made = index(CHUNKS[2], CHUNKS[0], CHUNKS[1], CHUNKS[0]._replace(log_offset=200))
    assert len(made) == 3
    assert made.containing(5) == CHUNKS[0]._replace(log_offset=200)
    assert (made.containing(20), made.target_end()) == (CHUNKS[1], 25)


def test_a_chunk_that_was_removed_is_not_found() -> None:
    made = index(*CHUNKS)
    made.remove(30)
    made.remove(31)
    assert (made.containing(33), made.target_end()) == (CHUNKS[1], 20)


def test_a_mapping_record_is_kept_while_one_of_its_records_is_there() -> None:
    assert index(*CHUNKS).dead(9) == []
    assert index(*CHUNKS).dead(10) == [0]


def test_the_last_mapping_record_is_kept_after_all_records_were_deleted() -> None:
    assert index(*CHUNKS).dead(1000) == [0, 20]


def test_a_partition_without_mapping_records_has_nothing_to_delete() -> None:
    assert index().dead(5) == []
    assert (index().containing(5), index().target_end()) == (None, 0)


def test_the_runs_of_the_chunks_that_were_used_last_are_kept() -> None:
    cache = RunCache(most_runs=4)
    for number in range(3):
        cache.put(b"%d" % number, [Run(number, number, 1)] * 2)
        cache.get(b"0")
    assert [cache.get(b"%d" % number) is not None for number in range(3)] == [True, False, True]


def test_a_chunk_of_more_runs_than_may_be_kept_is_not_kept() -> None:
    cache = RunCache(most_runs=1)
    cache.put(b"a", [Run(0, 0, 1), Run(2, 1, 1)])
    assert cache.get(b"a") is None
    cache.put(b"b", [Run(0, 0, 1)])
    assert cache.get(b"b") is not None
