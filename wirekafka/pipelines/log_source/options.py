"""The options of the data source `wirekafka-log`: their names, their values, and the filters of Spark that narrow them.

Rules of this file: pure, except that `check_data` looks at the directory. An unknown option and a value that cannot be used are
refused with what is accepted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from wirekafka.inspection.files import holds_data, partition_folders
from wirekafka.log.directory import partition_of_folder
from wirekafka.names import CLUSTER_METADATA_TOPIC
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.log_source.plan import DEFAULT_SPLIT_BYTES, Selection
from wirekafka.pipelines.log_source.segments import MOST_BATCH_BYTES
from wirekafka.wire.batch import GREATEST_INT64
from wirekafka.wire.compression import MOST_CONTENT_BYTES

OPTIONS = {
    "path": "a data directory of a broker, or the folder of one partition; the argument of load()",
    "topic": "names of topics, separated by commas; all topics by default",
    "topicPattern": "a regular expression that matches whole names of topics",
    "partition": "numbers of partitions, separated by commas; all partitions by default",
    "startingOffset": "the first offset of each partition",
    "endingOffset": "the offset before which each partition ends",
    "startingTimestamp": "the first timestamp: ms since 1970, or ISO 8601 (UTC without an offset)",
    "endingTimestamp": "the timestamp before which records are read: ms since 1970, or ISO 8601",
    "isolation": "all (default): every record; committed: no control records and no records of aborted or open transactions",
    "splitBytes": f"about the bytes of the log that one task reads, 1 or more; {DEFAULT_SPLIT_BYTES} by default",
    "maxBatchBytes": "the most bytes of a batch of the log, stored or uncompressed, from 1 to 1073741824;"
    f" {MOST_BATCH_BYTES} by default. A task takes about as much memory",
    "checkCrcs": "true (default) or false: whether the checksum of each batch is checked",
    "pushFilters": "true or false (default): whether pushed filters narrow the read; each query then needs a load() of its own",
}
_SWITCH = {"true": True, "false": False}
_NAMES = {name.lower(): name for name in OPTIONS}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class OptionError(PipelineError):
    """An option of the data source cannot be used."""


@dataclass(slots=True, frozen=True)
class LogOptions:
    """The options of one read.

    Attributes:
        path: a data directory, or the folder of a partition.
        split_bytes: about the bytes of the log that one task reads.
        most_batch_bytes: a larger batch is refused.
        has_crc_checks: whether the checksum of each batch is checked.
        has_pushed_filters: whether filters that Spark pushes down narrow the read.
    """

    path: str
    selection: Selection = field(default_factory=Selection)
    split_bytes: int = DEFAULT_SPLIT_BYTES
    most_batch_bytes: int = MOST_BATCH_BYTES
    has_crc_checks: bool = True
    has_pushed_filters: bool = False

    def check_data(self) -> None:
        """Raises unless the path is a directory with partitions, and has each topic that is named.

        Raises:
            OptionError: it is not, or a topic is missing.
        """
        if not os.path.isdir(self.path):
            raise OptionError(f"there is no directory {self.path}; the driver and each executor need it at this path")
        if not holds_data(self.path):
            raise OptionError(f"{self.path} is no data directory of a broker (log.dirs), and no folder of a partition")
        names = (partition_of_folder(os.path.basename(os.path.abspath(folder))) for folder in partition_folders(self.path))
        present = {name.topic for name in names if name is not None}
        missing = sorted((self.selection.topics or set()) - present)
        if missing:
            known = ", ".join(sorted(present)) or "none"
            raise OptionError(f"{self.path} has no partition of the topic {', '.join(missing)}; it has the topics: {known}")


def read_options(options: Mapping[str, str]) -> LogOptions:
    """Returns the options of a read; their names are compared without case, as Spark does.

    Raises:
        OptionError: an option is unknown, a value cannot be used, or the path is missing.
    """
    values: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() not in _NAMES:
            accepted = "".join(f"\n  {known}: {meaning}" for known, meaning in OPTIONS.items())
            raise OptionError(f"the data source wirekafka-log has no option {name}; it accepts:{accepted}")
        values[_NAMES[name.lower()]] = value
    if not values.get("path"):
        raise OptionError("the data source wirekafka-log needs a path: load(DATA_DIR), or the option path")
    topics = values.get("topic")
    partitions = values.get("partition")
    return LogOptions(
        path=values["path"],
        selection=Selection(
            topics=frozenset(_words(values, "topic")) if topics is not None else None,
            topic_pattern=_pattern(values),
            partitions=frozenset(_integer(values, "partition", word) for word in _words(values, "partition"))
            if partitions is not None
            else None,
            starting_offset=_optional_integer(values, "startingOffset"),
            ending_offset=_optional_integer(values, "endingOffset"),
            starting_timestamp=_timestamp(values, "startingTimestamp"),
            ending_timestamp=_timestamp(values, "endingTimestamp"),
            is_committed=_choice(values, "isolation", {"all": False, "committed": True}, "all"),
        ),
        split_bytes=_size(values, "splitBytes", DEFAULT_SPLIT_BYTES, GREATEST_INT64),
        most_batch_bytes=_size(values, "maxBatchBytes", MOST_BATCH_BYTES, MOST_CONTENT_BYTES),
        has_crc_checks=_choice(values, "checkCrcs", _SWITCH, "true"),
        has_pushed_filters=_choice(values, "pushFilters", _SWITCH, "false"),
    )


def _refuse(values: Mapping[str, str], name: str) -> OptionError:
    return OptionError(f"the option {name} cannot be {values[name]!r}; it is {OPTIONS[name]}")


def _words(values: Mapping[str, str], name: str) -> list[str]:
    words = [word.strip() for word in values[name].split(",")]
    if not all(words):
        raise _refuse(values, name)
    return words


def _integer(values: Mapping[str, str], name: str, word: str) -> int:
    if re.fullmatch(r"[0-9]{1,19}", word) is None or int(word) > GREATEST_INT64:
        raise _refuse(values, name)
    return int(word)


def _optional_integer(values: Mapping[str, str], name: str) -> int | None:
    return _integer(values, name, values[name].strip()) if name in values else None


def _size(values: Mapping[str, str], name: str, default: int, most: int) -> int:
    size = _optional_integer(values, name)
    if size is not None and not 1 <= size <= most:
        raise _refuse(values, name)
    return default if size is None else size


def _pattern(values: Mapping[str, str]) -> str | None:
    pattern = values.get("topicPattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error:
            raise _refuse(values, "topicPattern") from None
    return pattern


def _choice(values: Mapping[str, str], name: str, choices: Mapping[str, bool], default: str) -> bool:
    value = values.get(name, default).strip().lower()
    if value not in choices:
        raise _refuse(values, name)
    return choices[value]


def _timestamp(values: Mapping[str, str], name: str) -> int | None:
    """Returns a timestamp in ms; a part of a millisecond counts as a whole one."""
    if name not in values:
        return None
    text = values[name].strip()
    if re.fullmatch(r"[0-9]+", text):
        return _integer(values, name, text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _refuse(values, name) from None
    return -((_EPOCH - (time if time.tzinfo else time.replace(tzinfo=UTC))) // _MS)


def narrow(selection: Selection, operator: str, column: str, value: Any) -> Selection:
    """Returns a selection of fewer records, which has all records that a filter of Spark accepts.

    Spark applies its filters again, so a filter of another kind, or on another column, returns the selection as it was.

    Args:
        operator: the name of the filter's class in `pyspark.sql.datasource`.
        column: the name of the column.
        value: the operand of the filter; the operands of `In`.
    """
    values = [value] if operator == "EqualTo" else list(value) if operator == "In" else None
    if column == "topic" and values is not None and _all_are(values, str):
        return replace(selection, topics=_narrowed_topics(selection, values))
    if column == "partition" and values is not None and _all_are(values, int):
        return replace(selection, partitions=_intersection(selection.partitions, values))
    if column == "offset" and _all_are(values or [value], int):
        start, end = _range_of(operator, values or [value])
        return replace(
            selection,
            starting_offset=_later(selection.starting_offset, start),
            ending_offset=_earlier(selection.ending_offset, end),
        )
    if column == "timestamp" and _all_are(values or [value], datetime) and all(time.tzinfo for time in values or [value]):
        # Spark compares microseconds, and records have milliseconds. The operand is rounded down, so only an end needs one more.
        start, end = _range_of(operator, [(time - _EPOCH) // _MS for time in values or [value]])
        end = end + 1 if end is not None and operator == "LessThan" else end
        return replace(
            selection,
            starting_timestamp=_later(selection.starting_timestamp, start),
            ending_timestamp=_earlier(selection.ending_timestamp, end),
        )
    return selection


def _all_are(values: Iterable[Any], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _narrowed_topics(selection: Selection, names: list[str]) -> frozenset[str]:
    if selection.topics is None:
        names = [name for name in names if name != CLUSTER_METADATA_TOPIC]
    return _intersection(selection.topics, names)


def _intersection(chosen: frozenset[Any] | None, values: Iterable[Any]) -> frozenset[Any]:
    return frozenset(values) if chosen is None else chosen & frozenset(values)


def _range_of(operator: str, values: list[int]) -> tuple[int | None, int | None]:
    """Returns the least integer that the filter accepts, and one past the greatest; None for no bound."""
    match operator:
        case "EqualTo" | "In" if values:
            return min(values), max(values) + 1
        case "GreaterThan":
            return values[0] + 1, None
        case "GreaterThanOrEqual":
            return values[0], None
        case "LessThan":
            return None, values[0]
        case "LessThanOrEqual":
            return None, values[0] + 1
        case _:
            return None, None


def _later(one: int | None, other: int | None) -> int | None:
    return max(one, other) if one is not None and other is not None else other if one is None else one


def _earlier(one: int | None, other: int | None) -> int | None:
    return min(one, other) if one is not None and other is not None else other if one is None else one
