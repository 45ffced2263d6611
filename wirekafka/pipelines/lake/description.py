"""What a lake holds, as JSON in the lake: who fills it, from which topics and how, and the type of each topic's values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from wirekafka.pipelines.errors import PipelineError

FORMAT_VERSION = 1

Sink = Literal["parquet", "delta"]
RecordFormat = Literal["raw", "json", "avro", "avro-confluent"]


@dataclass(slots=True, frozen=True)
class LakeDescription:
    """What a lake holds.

    Attributes:
        sink: the format of the tables.
        record_format: what the values of the records are; `raw` keeps the bytes.
        topics: the names of the topics, if no pattern is given.
        pattern: a regular expression that matches whole names of topics.
        cluster_id: the id of the Kafka cluster that the records come from.
        has_value_bytes: whether the column `value_bytes` keeps the bytes of values that were parsed.
        dead_letter_topic: the topic of the records that could not be parsed, in the same cluster.
        query_id: the id of the streaming query that fills the lake; None until its first batch.
        schemas: the type of the column `value` for each topic, as the JSON of a StructType.
    """

    sink: Sink
    record_format: RecordFormat = "raw"
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    cluster_id: str | None = None
    has_value_bytes: bool = False
    dead_letter_topic: str | None = None
    query_id: str | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Returns the description as the content of its file."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> LakeDescription:
        """Returns the description that a file holds.

        Raises:
            PipelineError: a later version of wirekafka has written it.
        """
        fields = json.loads(data)
        if fields.pop("format") != FORMAT_VERSION:
            raise PipelineError("the lake was made by a later version of wirekafka: update wirekafka")
        return cls(**{**fields, "topics": tuple(fields["topics"])})

    def with_schema(self, topic: str, schema: Any) -> LakeDescription:
        """Returns the description with another type of a topic's values."""
        return replace(self, schemas={**self.schemas, topic: schema})


FIXED = {
    "sink": "the sink",
    "record_format": "the format of the records",
    "topics": "the topics",
    "pattern": "the pattern of topics",
    "cluster_id": "the Kafka cluster",
    "has_value_bytes": "whether the values' bytes are kept",
    "dead_letter_topic": "the dead-letter topic",
}
"""What stays as it was when the lake was made."""


def refuse_changes(path: str, found: LakeDescription, wanted: LakeDescription) -> None:
    """Refuses a lake that was made for something else.

    Raises:
        PipelineError: a setting differs; the text names the first one.
    """
    for name, words in FIXED.items():
        before, after = getattr(found, name), getattr(wanted, name)
        if before != after:
            raise PipelineError(
                f"{words} of the lake {path} cannot change from {_text(before)} to {_text(after)}: use another directory, or the"
                " settings that the lake was made with"
            )


def refuse_other_cluster(path: str, description: LakeDescription, found: str | None, bootstrap: str) -> None:
    """Refuses to compare a lake with brokers that its records do not come from.

    Args:
        path: the path of the lake.
        description: what the lake holds.
        found: the id of the brokers' cluster.
        bootstrap: the addresses of the brokers.

    Raises:
        PipelineError: the lake was filled from another cluster.
    """
    expected = description.cluster_id
    if expected is not None and found != expected:
        raise PipelineError(
            f"{bootstrap} is the cluster {found}, and the records of the lake {path} came from {expected}: name brokers of that"
            " cluster"
        )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
