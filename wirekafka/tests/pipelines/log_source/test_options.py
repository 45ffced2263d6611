"""The options of the data source, and the filters of Spark that narrow them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from wirekafka.pipelines.log_source.options import OPTIONS, OptionError, narrow, read_options
from wirekafka.pipelines.log_source.plan import Selection
from wirekafka.tests.inspection.folders import batch_at, write_log

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_options_are_read_without_regard_to_case() -> None:
    options = read_options(
        {
            "PATH": "/data",
            "topic": "orders, stock",
            "TOPICPATTERN": "o.*",
            "partition": "0,12",
            "startingoffset": "5",
            "EndingOffset": "9",
            "startingTimestamp": "1700000000000",
            "endingTimestamp": "2023-11-14T22:13:21Z",
            "isolation": "COMMITTED",
            "splitBytes": "1000",
            "checkCrcs": "false",
            "pushFilters": "TRUE",
        }
    )

    assert options.path == "/data"
    assert options.split_bytes == 1000
    assert not options.has_crc_checks
    assert options.has_pushed_filters
    assert options.selection == Selection(
        topics=frozenset({"orders", "stock"}),
        topic_pattern="o.*",
        partitions=frozenset({0, 12}),
        starting_offset=5,
        ending_offset=9,
        starting_timestamp=1_700_000_000_000,
        ending_timestamp=1_700_000_001_000,
        is_committed=True,
    )


def test_a_time_without_an_offset_is_utc_and_is_rounded_up_to_milliseconds() -> None:
    options = read_options({"path": "/data", "startingTimestamp": "1970-01-01T00:00:01.0001"})

    assert options.selection.starting_timestamp == 1001


def test_an_unknown_option_is_refused_with_the_accepted_ones() -> None:
    with pytest.raises(OptionError) as caught:
        read_options({"path": "/data", "startingOffsets": "earliest"})

    assert "no option startingOffsets" in str(caught.value)
    assert all(name in str(caught.value) for name in OPTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "a,,b"),
        ("topicPattern", "("),
        ("partition", "one"),
        ("partition", "-1"),
        ("startingOffset", "earliest"),
        ("endingOffset", str(1 << 63)),
        ("startingTimestamp", "yesterday"),
        ("isolation", "read_committed"),
        ("splitBytes", "0"),
        ("checkCrcs", "maybe"),
        ("pushFilters", "1"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_its_meaning(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({"path": "/data", name: value})

    assert f"the option {name} cannot be {value!r}" in str(caught.value)
    assert OPTIONS[name] in str(caught.value)


def test_a_read_without_a_path_is_refused() -> None:
    with pytest.raises(OptionError, match="needs a path"):
        read_options({})


def test_a_path_that_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no directory"):
        read_options({"path": str(tmp_path / "none")}).check_data()
    with pytest.raises(OptionError, match="is no data directory"):
        read_options({"path": str(tmp_path)}).check_data()


def test_a_topic_that_the_directory_does_not_have_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path, batch_at(0), topic="orders")

    read_options({"path": str(tmp_path), "topic": "orders"}).check_data()
    with pytest.raises(OptionError, match="no partition of the topic order; it has the topics: orders"):
        read_options({"path": str(tmp_path), "topic": "order"}).check_data()


def test_filters_narrow_topics_and_partitions() -> None:
    assert narrow(Selection(), "EqualTo", "topic", "a").topics == {"a"}
    assert narrow(Selection(topics=frozenset("ab")), "In", "topic", ("b", "c")).topics == {"b"}
    assert narrow(Selection(), "In", "partition", (1, 2)).partitions == {1, 2}
    assert narrow(Selection(), "EqualTo", "topic", "__cluster_metadata").topics == frozenset()


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("EqualTo", 20, (20, 21)),
        ("GreaterThan", 20, (21, 50)),
        ("GreaterThanOrEqual", 20, (20, 50)),
        ("LessThan", 20, (10, 20)),
        ("LessThanOrEqual", 20, (10, 21)),
        ("LessThan", 99, (10, 50)),
        ("In", (20, 30), (20, 31)),
        ("Not", 20, (10, 50)),
    ],
)
def test_filters_narrow_offsets(operator: str, value: object, expected: tuple[int, int]) -> None:
    narrowed = narrow(Selection(starting_offset=10, ending_offset=50), operator, "offset", value)

    assert (narrowed.starting_offset, narrowed.ending_offset) == expected


@pytest.mark.parametrize("operator", ["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"])
@pytest.mark.parametrize("microseconds", [0, 1, 999, 1000, 5500])
def test_filters_on_timestamps_leave_out_no_record_that_spark_keeps(operator: str, microseconds: int) -> None:
    operand = EPOCH + timedelta(microseconds=microseconds)
    keeps = {
        "EqualTo": operand.__eq__,
        "GreaterThan": operand.__lt__,
        "GreaterThanOrEqual": operand.__le__,
        "LessThan": operand.__gt__,
        "LessThanOrEqual": operand.__ge__,
    }[operator]

    narrowed = narrow(Selection(), operator, "timestamp", operand)

    for timestamp_ms in range(20):
        if keeps(EPOCH + timedelta(milliseconds=timestamp_ms)):
            assert narrowed.starting_timestamp is None or timestamp_ms >= narrowed.starting_timestamp
            assert narrowed.ending_timestamp is None or timestamp_ms < narrowed.ending_timestamp


def test_filters_that_cannot_be_used_change_nothing() -> None:
    plain = Selection()

    assert narrow(plain, "EqualTo", "key", b"k") == plain
    assert narrow(plain, "EqualTo", "offset", None) == plain
    assert narrow(plain, "StringStartsWith", "topic", "a") == plain
    assert narrow(plain, "GreaterThan", "timestamp", datetime(2020, 1, 1)) == plain  # noqa: DTZ001 - a time without a zone
