"""`wirekafka log dump` and Kafka's own tool print the same for the records of internal topics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness import tools
from compat_tests.harness.tools import Tools
from wirekafka.coordinator.groups.records import versioned
from wirekafka.coordinator.transactions.transaction import STATES_BY_TITLE
from wirekafka.inspection.record_decoders import INTERNAL_TOPICS, RecordKind
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.tests.api.test_messages import full_message
from wirekafka.wire.batch import Record, build_batch

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("the records are made, and no broker has a part in it"),
]

OPTIONS = {
    GROUP_METADATA_TOPIC: "--offsets-decoder",
    TRANSACTION_STATE_TOPIC: "--transaction-log-decoder",
    SHARE_STATE_TOPIC: "--share-group-state-decoder",
}


def versions_of(kind: RecordKind) -> range:
    """The versions of the value that Kafka 4.3 reads; of values from before 0.9, Kafka reads only the first."""
    return range(1 if kind.name.startswith("legacy") else kind.newest + 1)


def records_of(kinds: dict[int, RecordKind]) -> Iterator[Record]:
    """Records of each kind in each version, with a value in every field, and a tombstone of each kind."""
    for number, kind in kinds.items():
        key = versioned(full_message(kind.key, 0, False), number)
        yield Record(key, None)
        for version in versions_of(kind):
            is_flexible = version >= kind.flexible_since
            value = full_message(kind.value, version, is_flexible)
            yield Record(key, versioned(value, version, is_flexible=is_flexible))


@pytest.mark.parametrize("topic", OPTIONS)
def test_dump_shows_each_record_as_kafka_does(topic: str, tools_jvm: Tools, tmp_path: Path) -> None:
    name, kinds = INTERNAL_TOPICS[topic]
    records = list(records_of(dict(kinds)))
    segment = tmp_path / f"{topic}-0" / f"{0:020}.log"
    segment.parent.mkdir()
    segment.write_bytes(build_batch(records))
    shown = list(shown_by_kafka(tools_jvm.check(tools.DUMP_LOG, OPTIONS[topic], "--files", str(segment)).out))
    assert len(shown) == len(records)
    for row, (key, value) in zip(dumped(segment), shown, strict=True):
        mine = row[name]
        group = {"group": key["data"].pop("group_id")} if "group_id" in key["data"] else {}
        said = mine.pop("value")
        assert mine == {"type": kinds[int(key["type"])].name, **group, **key["data"]}
        theirs = None if value is None else value["data"]
        assert as_far_as(theirs, said) == theirs


def as_far_as(theirs: Any, ours: Any) -> Any:
    """Returns the fields of our output that Kafka's tool prints too; the tool leaves out fields that a version does not have."""
    if isinstance(theirs, list):
        return [as_far_as(*items) for items in zip(theirs, ours, strict=True)]
    if not isinstance(theirs, dict):
        return ours
    return {name: as_far_as(field, ours[name]) for name, field in theirs.items()}


def dumped(segment: Path) -> list[dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "wirekafka",
        "log",
        "dump",
        str(segment),
        "--records",
        "--format",
        "jsonl",
        "--bytes",
        "base64",
    ]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [row for row in map(json.loads, outcome.stdout.splitlines()) if row["type"] == "record"]


def shown_by_kafka(text: str) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Returns keys and values, with the fields under our names."""
    decoder = json.JSONDecoder()
    for line in text.splitlines():
        if not line.startswith("| offset:"):
            continue
        head, _, rest = line.partition(" key: ")
        assert head, line
        key, end = decoder.raw_decode(rest)
        payload = rest[end:].removeprefix(" payload: ")
        yield in_our_words(key), None if payload == "<DELETE>" else in_our_words(decoder.raw_decode(payload)[0])


def in_our_words(field: Any) -> Any:
    if isinstance(field, list):
        return [in_our_words(item) for item in field]
    if not isinstance(field, dict):
        return field
    words = {re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower(): in_our_words(value) for name, value in field.items()}
    if "transaction_status" in words:
        titles = {state.value: title for title, state in STATES_BY_TITLE.items()}
        words["transaction_status"] = titles.get(words["transaction_status"], words["transaction_status"])
    return words
