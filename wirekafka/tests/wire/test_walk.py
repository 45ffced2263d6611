from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch, do_nothing, encode_record, read_varint, varint
from wirekafka.wire.walk import (
    Inspection,
    deltas_in,
    inspect_chunks,
    inspect_records,
    is_first_and_only,
    with_right_offsets,
)

PLENTY = 1 << 30


def count_records(body: bytes | memoryview, expected_count: int) -> int:
    return inspect_records(body, base_timestamp=1_000, most_count=max(expected_count, 1 << 20)).count


def in_chunks(chunks: Iterable[bytes], *, limit_bytes: int = PLENTY, base_timestamp: int = 1_000) -> Inspection:
    return inspect_chunks(chunks, base_timestamp=base_timestamp, most_count=PLENTY, limit_bytes=limit_bytes)


runs_of_sizes = st.lists(
    st.tuples(st.sampled_from([0, 1, 50, 51, 52, 100, 101, 8_170, 8_190, 20_000]), st.integers(1, 40)), min_size=1, max_size=8
)


def body_of(runs: list[tuple[int, int]]) -> tuple[bytes, int]:
    """Builds records in runs of (size of the value, count); returns them and their count."""
    records = [Record(key=b"k", value=bytes(size), timestamp=1_000) for size, times in runs for _ in range(times)]
    return bytes(build_batch(records)[HEADER_SIZE:]), len(records)


def chunks_of(body: bytes, borders: list[int]) -> Iterator[bytes]:
    for start, stop in pairwise([0, *sorted(border % (len(body) + 1) for border in borders), len(body)]):
        yield body[start:stop]


def refusal(body: bytes, expected_count: int = 10) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        count_records(body, expected_count)
    with pytest.raises(KafkaError) as caught_in_chunks:
        in_chunks([body], limit_bytes=PLENTY)
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
    assert in_chunks(chunks_of(body, borders), limit_bytes=len(body)).count == count


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
        b"\x81\x01" + bytes(20),  # a length with a redundant byte
        b"\x0a" + bytes(5),  # five bytes are no record
        b"\x8a\x00" + bytes(5),  # nor are five with a length of two bytes
        b"\x80\x80\x00" + bytes(5),
        b"\x80",  # a length that does not end
        b"\xff" * 30,
        varint(1_000) + bytes(999),  # one byte is missing
        varint(6) + bytes(7),  # one byte is surplus
        varint(1 << 40) + bytes(7),
    ],
)
def test_lengths_that_no_record_has_are_refused(body: bytes) -> None:
    assert refusal(body) == ErrorCode.INVALID_RECORD


def test_record_longer_than_every_chunk_is_skipped_over_them() -> None:
    body = bytes(build_batch([Record(value=bytes(1 << 20)), Record(value=b"next")])[HEADER_SIZE:])
    assert in_chunks((body[pos : pos + 1_000] for pos in range(0, len(body), 1_000)), limit_bytes=PLENTY).count == 2


def test_chunks_above_the_limit_are_refused() -> None:
    body, _ = body_of([(100, 10)])
    with pytest.raises(KafkaError) as caught:
        in_chunks([body, body], limit_bytes=2 * len(body) - 1)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_inspection_finds_the_records_without_a_key() -> None:
    records = [Record(key=b"a"), Record(key=b""), Record(value=b"v"), Record()]
    body = bytes(build_batch(records)[HEADER_SIZE:])
    assert in_chunks([body]).without_key(PLENTY) == [2, 3]
    assert in_chunks([body[: len(body) // 2]]).without_key(PLENTY) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 100)), min_size=1, max_size=6))
def test_inspection_finds_the_records_without_a_key_in_runs(runs: list[tuple[bool, int]]) -> None:
    has_key = [is_keyed for is_keyed, times in runs for _ in range(times)]
    body = bytes(build_batch([Record(key=b"k" if is_keyed else None, value=b"v") for is_keyed in has_key])[HEADER_SIZE:])
    found = inspect_records(body, base_timestamp=-1, most_count=len(has_key))
    assert found.without_key(PLENTY) == [number for number, is_keyed in enumerate(has_key) if not is_keyed]
    assert found.without_key(3) == found.without_key(PLENTY)[:3]


runs_of_times = st.lists(
    st.tuples(
        st.one_of(st.integers(-70, 70), st.integers(-10_000, 10_000), st.integers(-(1 << 62), 1 << 62)), st.integers(1, 40)
    ),
    min_size=1,
    max_size=10,
)


@given(runs_of_times, st.integers(-1, 1 << 61), st.lists(st.integers(0, 1 << 20), max_size=5))
def test_inspection_finds_the_latest_and_the_earliest_timestamp(
    runs: list[tuple[int, int]], first: int, borders: list[int]
) -> None:
    times = [first, *(first + delta for delta, count in runs for _ in range(count))]
    body = bytes(build_batch([Record(timestamp=time, value=b"v") for time in times])[HEADER_SIZE:])
    for found in (
        inspect_records(body, base_timestamp=first, most_count=len(times)),
        in_chunks(chunks_of(body, borders), base_timestamp=first),
    ):
        assert found.greatest_delta == max(times) - first
        real = [time - first for time in times if time != -1]
        assert found.least_delta == min(real, default=None)
        assert not found.has_wrong_offsets
    expected = [(time - first, number) for number, time in enumerate(times)]
    assert list(deltas_in(chunks_of(body, borders))) == expected


times_of_one_size = st.one_of(*(st.lists(st.integers(64, most), min_size=4, max_size=40) for most in (130, 200, 8_191)))
times_of_any_size = st.lists(st.integers(-9_000, 9_000), min_size=4, max_size=40)


@given(
    st.one_of(times_of_one_size, times_of_one_size.map(sorted), times_of_any_size, times_of_any_size.map(sorted)),
    st.sampled_from(["none", "least", "any"]),
    st.data(),
)
@settings(max_examples=300)
def test_inspection_finds_the_extremes_of_timestamps_in_a_run(deltas: list[int], without: str, data: st.DataObject) -> None:
    first, second = (data.draw(st.integers(0, len(deltas) - 1)) for _ in range(2))
    deltas[first], deltas[second] = deltas[second], deltas[first]
    base_timestamp = {"none": 1 << 60, "least": -1 - min(deltas), "any": -1 - deltas[first]}[without]
    heads = [varint(delta) for delta in deltas]
    values = [bytes(150 - len(varint(number) + head)) for number, head in enumerate(heads)]
    bodies = [
        b"\0" + head + varint(number) + b"\1" + varint(len(value)) + value
        for number, (head, value) in enumerate(zip(heads, values, strict=True))
    ]
    assert len({len(body) for body in bodies}) == 1, "the records have one size"
    body = b"".join(varint(len(body)) + body for body in bodies)
    found = inspect_records(body, base_timestamp=base_timestamp, most_count=PLENTY)
    assert found.greatest_delta == max(deltas)
    assert found.least_delta == min((delta for delta in deltas if base_timestamp + delta != -1), default=None)


def test_walk_refuses_a_short_length_of_two_bytes_among_records_of_any_size() -> None:
    def record(number: int, size: int) -> bytes:
        body = b"\0\0" + varint(number) + b"\1" + varint(size) + bytes(size) + b"\0"
        return varint(len(body)) + body

    before = [record(number, number % 3) for number in range(20)]
    after = [record(21, 14), *(record(number, number % 3) for number in range(22, 60))]
    assert after[0][0] == 20 << 1, "what follows the short record looks like the rest of its head"
    assert refusal(b"".join([*before, b"\x84\0\0\0", *after]), 60) == ErrorCode.INVALID_RECORD


@given(st.integers(1, 3_000), st.integers(0, 3_000), st.integers(0, 200))
def test_inspection_of_a_long_run_finds_a_record_of_another_size(before: int, after: int, size: int) -> None:
    body, count = body_of([(20, before), (size, 1), (20, after)])
    for found in (inspect_records(memoryview(bytearray(body)), base_timestamp=1_000, most_count=count), in_chunks([body])):
        assert (found.count, found.greatest_delta, found.least_delta, found.has_wrong_offsets) == (count, 0, 0, False)


def test_inspection_keeps_the_extremes_of_many_stretches_of_timestamps() -> None:
    times = [7_000, *([8_000, 8_001] * 400), 9_000_000_000, 5, *([8_000, 8_001] * 400)]
    records = [Record(timestamp=time, value=bytes(20 * (number // 5 % 2))) for number, time in enumerate(times)]
    body = bytes(build_batch(records)[HEADER_SIZE:])
    found = in_chunks([body[pos : pos + 100] for pos in range(0, len(body), 100)], base_timestamp=7_000)
    assert (found.greatest_delta, found.least_delta) == (9_000_000_000 - 7_000, 5 - 7_000)


@pytest.mark.parametrize("count", [63, 64, 65, 8_191, 8_192, 8_193, 16_500])
def test_inspection_of_right_offsets_of_any_length_finds_nothing_wrong(count: int) -> None:
    body, _ = body_of([(20, count)])
    assert not inspect_records(body, base_timestamp=1_000, most_count=count).has_wrong_offsets


@given(st.integers(1, 20_000), st.integers(0, 20_000), st.integers(-3, 20_000))
@settings(max_examples=40)
def test_inspection_notices_a_wrong_offset_wherever_it_is(count: int, at: int, offset: int) -> None:
    at %= count
    records = [Record(value=bytes(20), offset=number) for number in range(count)]
    records[at].offset = offset
    body = bytes(build_batch(records, keeps_offsets=True)[HEADER_SIZE:])
    found = inspect_records(body, base_timestamp=-1, most_count=count)
    assert found.has_wrong_offsets == (offset != at)
    expected = bytes(build_batch([Record(value=bytes(20))] * count)[HEADER_SIZE:])
    assert with_right_offsets(body, do_nothing) == expected


def read_heads(body: bytes) -> tuple[list[int], list[bool], bool]:
    """Returns the timestamp deltas, which keys are null, and whether an offset is wrong, by one record after the other."""
    times: list[int] = []
    is_without_key: list[bool] = []
    has_wrong_offset, pos = False, 0
    while pos < len(body):
        size, at = read_varint(body, pos)
        pos = at + size
        time, at = read_varint(body, at + 1)
        offset, at = read_varint(body, at)
        key_size, at = read_varint(body, at)
        if size < 6 or at + max(key_size, 0) > pos - 2:
            raise KafkaError(ErrorCode.INVALID_RECORD)
        has_wrong_offset |= offset != len(times)
        times.append(time)
        is_without_key.append(key_size < 0)
    return times, is_without_key, has_wrong_offset


def varied_records(random: Random) -> Iterator[bytes]:
    """Makes records whose sizes, timestamps and keys differ as those of producers do, and some that no producer sends."""
    count, first = random.randrange(1, 400), random.choice([0, 0, 8_100])
    least, most = random.choice([(0, 40), (40, 200), (0, 9_000)])
    step = random.choice([0, 1, 70, 9_000, 3_000_000])
    is_ascending, flaw = random.random() < 0.7, random.choice(["", "", "offset", "key"])
    flawed = random.randrange(count)
    for number in range(first + count):
        time = number * step if is_ascending else random.randrange(-step - 1, step * 100 + 1)
        offset = number + (flaw == "offset" and number == first + flawed)
        key = random.choice([b"", b"key", b"a longer key", None])
        key_head = varint(-1) if key is None else varint(len(key) + (flaw == "key" and number == first + flawed) * 50) + key
        value = bytes(5 if number < first else random.randrange(least, most))
        record = b"\0" + varint(time) + varint(offset) + key_head + varint(len(value)) + value + b"\0"
        yield varint(len(record)) + record


@pytest.mark.parametrize("base_timestamp", [-3, -1, 0])
def test_least_timestamp_of_a_run_is_not_hidden_by_a_record_without_timestamp(base_timestamp: int) -> None:
    """The delta that means no timestamp, -1 - base_timestamp, is the first of the run, and less than all others."""
    times = list(range(-1 - base_timestamp, 60))
    body = b"".join(encode_record(Record(key=b"k", value=b"v"), time, number) for number, time in enumerate(times))
    found = inspect_records(body, base_timestamp=base_timestamp, most_count=len(times))
    assert (found.least_delta, found.greatest_delta) == (-base_timestamp, 59)


@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 1 << 20), max_size=3), st.integers(-2, 1_000))
@settings(max_examples=150)
def test_inspection_of_varied_records_agrees_with_reading_one_after_the_other(
    random: Random, borders: list[int], base_timestamp: int
) -> None:
    records = list(varied_records(random))
    body = b"".join(records)
    ways: list[Callable[[], Inspection]] = [
        lambda: inspect_records(body, base_timestamp=base_timestamp, most_count=len(records)),
        lambda: inspect_records(memoryview(bytearray(body)), base_timestamp=base_timestamp, most_count=len(records)),
        lambda: in_chunks(chunks_of(body, borders), base_timestamp=base_timestamp),
    ]
    try:
        times, is_without_key, has_wrong_offset = read_heads(body)
    except KafkaError:
        for inspect in ways:
            with pytest.raises(KafkaError):
                inspect()
        return
    for found in [inspect() for inspect in ways]:
        assert found.count == len(records)
        assert found.greatest_delta == max(times)
        assert found.least_delta == min((time for time in times if base_timestamp + time != -1), default=None)
        assert found.has_wrong_offsets == has_wrong_offset
        assert found.without_key(PLENTY) == [number for number, is_null in enumerate(is_without_key) if is_null]


def test_inspection_of_more_records_than_announced_is_refused() -> None:
    body, _ = body_of([(10, 100)])
    with pytest.raises(KafkaError) as caught:
        inspect_records(body, base_timestamp=0, most_count=99)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("key_size", [1, 2, 3, 31, 40, 2_000])
@pytest.mark.parametrize("count", [1, 50])
def test_inspection_refuses_a_key_that_ends_behind_its_record(key_size: int, count: int) -> None:
    record = b"\0\0\0" + varint(key_size) + b"\0\0"
    body = (varint(len(record)) + record) * count
    with pytest.raises(KafkaError) as caught:
        inspect_records(body + bytes(50), base_timestamp=0, most_count=PLENTY)
    assert caught.value.code == ErrorCode.INVALID_RECORD


@given(st.one_of(st.none(), st.binary(max_size=100)), st.binary(max_size=200), st.integers(-1, 1), st.booleans())
def test_record_that_is_first_and_only_is_found_so_only_if_it_is_plain(
    key: bytes | None, value: bytes, extra: int, needs_key: bool
) -> None:
    body = bytes(build_batch([Record(key=key, value=value)])[HEADER_SIZE:])
    is_plain = (key is not None or not needs_key) and len(key or b"") < 64 and not extra
    changed = body + b"\0" if extra > 0 else body[: len(body) + extra]
    assert is_first_and_only(memoryview(b"head" + changed), 4, needs_key) == is_plain


@given(
    st.one_of(st.none(), st.binary(max_size=70)),
    st.sampled_from([0, 1, 50, 60, 127, 8_000, 8_180, 8_190, 9_000, 16_380, 20_000]),
    st.integers(-20, 20),
    st.sampled_from([-8_192, -128, -64, -1, 0, 0, 0, 1, 64, 128, 8_192, 16_384, 1 << 20]),
    st.sampled_from([-1, 0, 0, 0, 1]),
)
def test_record_that_is_first_and_only_by_a_glance_is_so_by_reading(
    key: bytes | None, value_size: int, more_bytes: int, wrong_length: int, torn_bytes: int
) -> None:
    record = encode_record(Record(key=key, value=bytes(max(0, value_size + more_bytes))), 0, 0)
    size, start = read_varint(record, 0)
    body = (varint(size + wrong_length) + record[start:] + bytes(1))[: len(record) + torn_bytes]
    if is_first_and_only(memoryview(body), 0, needs_key=False):
        found = inspect_records(body, base_timestamp=0, most_count=1)
        assert (found.count, found.greatest_delta, found.least_delta, found.has_wrong_offsets) == (1, 0, 0, False)


@pytest.mark.parametrize("length", [(0x80, 0x80, 0x01), (0x90, 0xFF, 0x01), (0x80, 0x80, 0x03)])
def test_record_whose_length_takes_three_bytes_is_not_first_and_only_by_a_glance(length: tuple[int, int, int]) -> None:
    """The third byte of a length is not the record's attributes."""
    end = (length[1] << 6) + (length[0] >> 1) - 62
    body = bytes((*length, 0, 0, 0, 0)).ljust(end, b"\0")
    assert not is_first_and_only(memoryview(body), 0, needs_key=False)
