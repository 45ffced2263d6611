from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.record_slices import slices_of
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch

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


@given(RECORDS)
def test_slices_are_what_was_put_in(records: list[Record]) -> None:
    body = bytes(build_batch(records)[HEADER_SIZE:])

    found = list(slices_of(body, len(records)))

    assert [record.key for record in found] == [record.key for record in records]
    assert [record.is_tombstone for record in found] == [record.value is None for record in records]
    assert [record.offset_delta for record in found] == list(range(len(records)))
    assert [record.timestamp_delta + records[0].timestamp for record in found] == [record.timestamp for record in records]
    assert b"".join(body[record.start : record.end] for record in found) == body


@given(RECORDS, st.data())
def test_slices_of_a_part_are_refused(records: list[Record], data: st.DataObject) -> None:
    body = bytes(build_batch(records)[HEADER_SIZE:])
    size = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises(KafkaError) as caught:
        list(slices_of(body[:size], len(records)))

    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("count", [1, 3])
def test_slices_of_another_count_are_refused(count: int) -> None:
    body = bytes(build_batch([Record(b"k", b"v"), Record(b"k", b"v")])[HEADER_SIZE:])

    with pytest.raises(KafkaError):
        list(slices_of(body, count))


@given(st.binary(max_size=60), st.integers(1, 5))
def test_slices_of_anything_end_or_are_refused(body: bytes, count: int) -> None:
    with suppress(KafkaError):
        assert list(slices_of(body, count))[-1].end == len(body)
