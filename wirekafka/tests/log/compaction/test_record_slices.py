from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.compaction.record_slices import (
    digest,
    ends_in,
    greatest_timestamp_delta,
    heads_in,
    timestamp_delta,
    with_timestamp_delta,
)
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch, encode_record, varint

RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=2).map(tuple),
        timestamp=st.integers(0, 2**45),
    ),
    min_size=1,
    max_size=200,
)
"""Values of all sizes."""


@st.composite
def runs(draw: st.DrawFn) -> list[Record]:
    """Runs of similar records, with different records inside a run."""
    records: list[Record] = []
    timestamp = draw(st.integers(0, 2**45))
    for _ in range(draw(st.integers(1, 4))):
        key_size, value_size = draw(st.sampled_from([0, 1, 16, 63, 64])), draw(st.sampled_from([0, 1, 30, 200]))
        for number in range(draw(st.integers(1, 300))):
            timestamp += draw(st.sampled_from([0] * 50 + [1, 100]))
            key = (b"%d" % number).ljust(key_size, b".")[:key_size]
            is_tombstone = draw(st.integers(0, 40)) == 0
            records.append(Record(key=key, value=None if is_tombstone else bytes(value_size), timestamp=timestamp))
    return records


@given(RECORDS | runs())
def test_heads_are_what_was_put_in(records: list[Record]) -> None:
    body = bytes(build_batch(records)[HEADER_SIZE:])

    found = list(heads_in(body, len(records)))

    keys = [record.key if record.key is None or len(record.key) < 64 else digest(record.key) for record in records]
    assert [key for heads in found for key in heads.keys] == keys
    assert [delta for heads in found for delta in heads.offset_deltas] == list(range(len(records)))
    assert any(heads.has_null_keys for heads in found) == (None in keys)
    first = 0
    tombstones = []
    for heads in found:
        tombstones += [first + number for number in heads.tombstones]
        first += len(heads.keys)
    assert tombstones == [number for number, record in enumerate(records) if record.value is None]
    ends = [end for stretch in ends_in(body, len(records)) for end in stretch]
    starts = [0, *ends[:-1]]
    for start, end, number in zip(starts, ends, range(len(records)), strict=True):
        assert body[start:end] == encode_record(records[number], records[number].timestamp - records[0].timestamp, number)
    deltas = [record.timestamp - records[0].timestamp for record in records]
    assert [timestamp_delta(body, start) for start in starts] == deltas
    assert greatest_timestamp_delta(body, starts, max(deltas)) == max(deltas)
    assert greatest_timestamp_delta(body, starts[:1], max(deltas)) == 0


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300, unique=True).map(sorted))
def test_heads_of_a_compacted_batch_keep_their_offsets(offsets: list[int]) -> None:
    records = [Record(b"key", b"value", offset=offset) for offset in offsets]
    body = bytes(build_batch(records, keeps_offsets=True)[HEADER_SIZE:])

    assert [delta for heads in heads_in(body, len(records)) for delta in heads.offset_deltas] == offsets


@given(RECORDS, st.data())
def test_heads_of_a_part_are_refused(records: list[Record], data: st.DataObject) -> None:
    body = bytes(build_batch(records)[HEADER_SIZE:])
    size = data.draw(st.integers(0, len(body) - 1))

    for read in (heads_in, ends_in):
        with pytest.raises(KafkaError) as caught:
            list(read(body[:size], len(records)))
        assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [1, 3])
def test_heads_of_another_count_are_refused(count: int) -> None:
    body = bytes(build_batch([Record(b"k", b"v"), Record(b"k", b"v")])[HEADER_SIZE:])

    for read in (heads_in, ends_in):
        with pytest.raises(KafkaError):
            list(read(body, count))


@given(st.binary(max_size=600), st.integers(1, 40))
def test_heads_of_anything_end_or_are_refused(body: bytes, count: int) -> None:
    with suppress(KafkaError):
        assert sum(len(heads.keys) for heads in heads_in(body, count)) == count
    with suppress(KafkaError):
        assert list(ends_in(body, count))[-1][-1] == len(body)


@given(RECORDS, st.integers(-(2**45), 2**45))
def test_a_record_gets_another_timestamp(records: list[Record], delta: int) -> None:
    body = encode_record(records[0], 5, 1)

    assert with_timestamp_delta(body, 0, len(body), varint(delta)) == encode_record(records[0], delta, 1)
