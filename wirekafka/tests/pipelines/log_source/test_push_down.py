"""A query with filters has the rows that filtering afterwards keeps: filters as options, and filters that Spark pushes down."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.pipelines.log_source.source import LogDataSource, LogReader, PushDownLogReader
from wirekafka.tests.log.logs import NOW_MS, World, append, batch, close, config_with
from wirekafka.tests.pipelines.log_source.rows import Row
from wirekafka.wire.compression import Compression

TOPICS = ("orders", "stock")
PARTITIONS = 2
RECORDS = 60
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COMPARISONS: dict[str, Callable[[Any, Any], object]] = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda one, others: one in others,
}


@dataclass
class Filter:
    """A filter of PySpark 4.1 in the shape that `pushFilters` reads; `kinds` gives each its class."""

    attribute: tuple[str, ...]
    value: Any

    def keeps(self, row: Row) -> bool:
        """Whether Spark keeps the row; a comparison with null is not true."""
        value = row[self.attribute[0]]
        compare = COMPARISONS[type(self).__name__]
        return value is not None and bool(compare(value, self.value))


KINDS: dict[str, type[Filter]] = {name: type(name, (Filter,), {}) for name in COMPARISONS}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a data directory with logs of several segments, and timestamps that rise and fall; one log is still open."""
    directory = tmp_path_factory.mktemp("push-down")
    chance = random.Random(7)
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            config = config_with(segment_bytes=1500, index_interval_bytes=200)
            log = World().open_log(directory / f"{topic}-{partition}", config)
            while log.reader.log_end_offset < RECORDS:
                times = [NOW_MS + log.reader.log_end_offset + chance.randrange(-9, 9) for _ in range(chance.randint(1, 5))]
                codec = Compression(chance.randrange(5))
                append(log, batch(*[b"v" * 30] * len(times), timestamps=times, compression=codec))
            if (topic, partition) != ("stock", 1):
                close(log)
    return directory


def rows_of(reader: LogReader) -> list[Row]:
    """Returns the rows of a query without Spark."""
    return [row for each in reader.partitions() for columns in reader.read(each) for row in columns.to_pylist()]


@cache
def all_rows(root: Path) -> list[Row]:
    return rows_of(LogDataSource({"path": str(root)}).reader(None))


def filters_on(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    comparisons = st.sampled_from([name for name in COMPARISONS if name != "In"])
    single = st.builds(lambda name, value: KINDS[name]((column,), value), comparisons, values)
    return single | st.builds(lambda some: KINDS["In"]((column,), tuple(some)), st.lists(values, max_size=3))


def time_of(microseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=NOW_MS, microseconds=microseconds)


offsets = st.integers(-3, RECORDS + 9)
times = st.builds(lambda ms, us: time_of(1000 * ms + us), offsets, st.sampled_from([0, 1, 500, 999]))
filters_on_timestamps = filters_on("timestamp", times)
any_filters = st.lists(
    filters_on("topic", st.sampled_from([*TOPICS, "other"]))
    | filters_on("partition", st.integers(-1, PARTITIONS))
    | filters_on("offset", offsets)
    | filters_on_timestamps,
    max_size=4,
)
split_bytes = st.sampled_from(["1", "700", "67108864"])


def check_pushed(root: Path, filters: list[Filter], **options: str) -> None:
    reader = LogDataSource({"path": str(root), "pushFilters": "true", **options}).reader(None)
    assert isinstance(reader, PushDownLogReader)

    left = list(reader.pushFilters(filters))

    assert left == filters, "Spark applies all of them again"
    rows = rows_of(reader)
    kept = [row for row in rows if all(each.keeps(row) for each in filters)]
    assert kept == [row for row in all_rows(root) if all(each.keeps(row) for each in filters)]


@settings(max_examples=120, deadline=None)
@given(filters=any_filters, split_bytes=split_bytes)
def test_pushed_filters_leave_the_rows_that_filtering_afterwards_keeps(
    root: Path, filters: list[Filter], split_bytes: str
) -> None:
    check_pushed(root, filters, splitBytes=split_bytes)


@settings(max_examples=80, deadline=None)
@given(pushed=filters_on_timestamps)
def test_a_pushed_filter_on_timestamps_leaves_the_rows_that_filtering_afterwards_keeps(root: Path, pushed: Filter) -> None:
    check_pushed(root, [pushed])


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from([name for name in COMPARISONS if name != "In"]), offset=offsets)
def test_a_pushed_filter_on_offsets_reads_no_other_rows(root: Path, name: str, offset: int) -> None:
    pushed = KINDS[name](("offset",), offset)
    reader = LogDataSource({"path": str(root), "pushFilters": "true"}).reader(None)
    assert isinstance(reader, PushDownLogReader)
    list(reader.pushFilters([pushed]))

    assert all(pushed.keeps(row) for row in rows_of(reader))


@settings(max_examples=100, deadline=None)
@given(
    topics=st.none() | st.sets(st.sampled_from(TOPICS), min_size=1),
    partitions=st.none() | st.sets(st.integers(0, PARTITIONS), min_size=1),
    starting=st.none() | offsets.filter(lambda offset: offset >= 0),
    ending=st.none() | offsets.filter(lambda offset: offset >= 0),
    since=st.none() | offsets,
    until=st.none() | offsets,
    split_bytes=split_bytes,
)
def test_options_leave_the_rows_that_filtering_afterwards_keeps(
    root: Path,
    topics: set[str] | None,
    partitions: set[int] | None,
    starting: int | None,
    ending: int | None,
    since: int | None,
    until: int | None,
    split_bytes: str,
) -> None:
    options = {
        "topic": ",".join(topics) if topics else None,
        "partition": ",".join(map(str, partitions)) if partitions else None,
        "startingOffset": starting,
        "endingOffset": ending,
        "startingTimestamp": None if since is None else NOW_MS + since,
        "endingTimestamp": None if until is None else time_of(until * 1000).isoformat(),
    }
    given_ones = {name: str(value) for name, value in options.items() if value is not None}

    rows = rows_of(LogDataSource({"path": str(root), "splitBytes": split_bytes, **given_ones}).reader(None))

    assert rows == [
        row
        for row in all_rows(root)
        if (topics is None or row["topic"] in topics)
        and (partitions is None or row["partition"] in partitions)
        and (starting is None or row["offset"] >= starting)
        and (ending is None or row["offset"] < ending)
        and (since is None or row["timestamp"] >= time_of(since * 1000))
        and (until is None or row["timestamp"] < time_of(until * 1000))
    ]
