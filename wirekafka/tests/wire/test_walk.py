from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch, varint
from wirekafka.wire.walk import count_records, count_records_in, inspect_records

PLENTY = 1 << 30

runs_of_sizes = st.lists(
    st.tuples(st.sampled_from([0, 1, 50, 51, 52, 100, 101, 8_170, 8_190, 20_000]), st.integers(1, 40)), min_size=1, max_size=8
)


def body_of(runs: list[tuple[int, int]]) -> tuple[bytes, int]:
    """Records in runs of (size of the value, how many), and their count."""
    records = [Record(key=b"k", value=bytes(size), timestamp=1_000) for size, times in runs for _ in range(times)]
    return bytes(build_batch(records)[HEADER_SIZE:]), len(records)


def chunks_of(body: bytes, borders: list[int]) -> Iterator[bytes]:
    for start, stop in pairwise([0, *sorted(border % (len(body) + 1) for border in borders), len(body)]):
        yield body[start:stop]


def refusal(body: bytes, expected_count: int = 10) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        count_records(body, expected_count)
    with pytest.raises(KafkaError) as caught_in_chunks:
        count_records_in([body], limit_bytes=PLENTY)
    assert caught.value.code == caught_in_chunks.value.code
    return caught.value.code


@given(runs_of_sizes)
def test_walk_counts_records_of_any_sizes(runs: list[tuple[int, int]]) -> None:
    body, count = body_of(runs)
    assert count_records(memoryview(body), count) == count
    assert count_records(memoryview(body), 1) == count


@given(runs_of_sizes, st.lists(st.integers(0, 1 << 20), max_size=20))
def test_walk_over_chunks_counts_the_same(runs: list[tuple[int, int]], borders: list[int]) -> None:
    body, count = body_of(runs)
    assert count_records_in(chunks_of(body, borders), limit_bytes=len(body)) == count
    assert inspect_records(chunks_of(body, borders), base_timestamp=0, limit_bytes=len(body)).count == count


@pytest.mark.parametrize("count", [1, 5, 6, 64, 69, 70, 71, 600, 5_000])
def test_walk_counts_runs_of_any_length(count: int) -> None:
    body, _ = body_of([(100, count)])
    assert count_records(body, count) == count


@given(runs_of_sizes, st.integers(0, 300), st.binary(max_size=300))
def test_walk_of_a_view_keeps_to_the_view(runs: list[tuple[int, int]], before: int, behind: bytes) -> None:
    body, count = body_of(runs)
    frame = memoryview(bytearray(bytes(before) + body + behind))
    assert count_records(frame[before : before + len(body)], count) == count
    frame.release()


@given(runs_of_sizes, st.integers(0, 1 << 20))
def test_torn_records_are_refused_wherever_they_lie(runs: list[tuple[int, int]], cut: int) -> None:
    body, count = body_of(runs)
    cut %= len(body)
    whole = bytearray(body)
    for buf in (memoryview(whole)[:cut], memoryview(body)[:cut]):
        try:
            found = count_records(buf, count)
        except KafkaError as error:
            assert error.code == ErrorCode.INVALID_RECORD  # noqa: PT017
        else:
            assert found < count, "cut between two records"
        buf.release()
    whole += b"nobody holds it any more, or this would fail"


@given(runs_of_sizes, st.integers(0, 1 << 20))
def test_torn_records_are_refused(runs: list[tuple[int, int]], cut: int) -> None:
    body, count = body_of(runs)
    cut %= len(body)
    try:
        found = count_records(body[:cut], count)
    except KafkaError as error:
        assert error.code == ErrorCode.INVALID_RECORD  # noqa: PT017
    else:
        assert found < count, "cut between two records"


@pytest.mark.parametrize(
    "body",
    [
        b"\x01" + bytes(20),  # a negative length
        b"\x81\x01" + bytes(20),  # another, of two bytes
        b"\x0a" + bytes(5),  # five bytes are no record
        b"\x8a\x00" + bytes(5),  # nor are five that are said in two bytes
        b"\x80\x80\x00" + bytes(5),
        b"\x80",  # a length that does not end
        b"\xff" * 30,
        varint(1_000) + bytes(999),  # one byte is missing
        varint(6) + bytes(7),  # one is too many
        varint(1 << 40) + bytes(7),
    ],
)
def test_lengths_that_no_record_has_are_refused(body: bytes) -> None:
    assert refusal(body) == ErrorCode.INVALID_RECORD


def test_record_longer_than_every_chunk_is_skipped_over_them() -> None:
    body = bytes(build_batch([Record(value=bytes(1 << 20)), Record(value=b"next")])[HEADER_SIZE:])
    assert count_records_in((body[pos : pos + 1_000] for pos in range(0, len(body), 1_000)), limit_bytes=PLENTY) == 2


def test_chunks_above_the_limit_are_refused() -> None:
    body, _ = body_of([(100, 10)])
    with pytest.raises(KafkaError) as caught:
        count_records_in([body, body], limit_bytes=2 * len(body) - 1)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_inspection_finds_the_records_without_a_key() -> None:
    records = [Record(key=b"a"), Record(key=b""), Record(value=b"v"), Record()]
    body = bytes(build_batch(records)[HEADER_SIZE:])
    assert inspect_records([body], base_timestamp=0, limit_bytes=PLENTY).without_key == [2, 3]
    assert inspect_records([body[: len(body) // 2]], base_timestamp=0, limit_bytes=PLENTY).without_key == []


def test_inspection_finds_the_earliest_timestamp_that_is_one() -> None:
    records = [Record(timestamp=time) for time in (500, 700, -1, 300, 900)]
    body = bytes(build_batch(records)[HEADER_SIZE:])
    assert inspect_records([body], base_timestamp=500, limit_bytes=PLENTY).earliest_timestamp == 300
    body = bytes(build_batch([Record(), Record()])[HEADER_SIZE:])
    assert inspect_records([body], base_timestamp=-1, limit_bytes=PLENTY).earliest_timestamp is None


def test_inspection_refuses_a_key_that_ends_behind_its_record() -> None:
    with pytest.raises(KafkaError) as caught:
        inspect_records([varint(6) + b"\0\0\0\x20\0\0" + bytes(50)], base_timestamp=0, limit_bytes=PLENTY)
    assert caught.value.code == ErrorCode.INVALID_RECORD
