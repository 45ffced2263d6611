"""How the values of one batch are decoded: decided before the batch is written, and stored, so that a repeated batch is the same.

A batch is repeated if the driver was killed before Spark noted its end. By then its records may be in the lake, its dead letters
may be in their topic, and meanwhile the user may have changed a schema file or the registry may know more schemas. A record that
changed sides would be lost or in both places. So the plan of a batch is written once, and the repeated batch follows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import StructType

from wirekafka.pipelines.ingest.newest_notes import delete_old_notes, note_path, write_note
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.files import Files


@dataclass(slots=True, frozen=True)
class TopicPlan:
    """How the values of one topic are decoded in one batch.

    Attributes:
        schema: the type of the decoded values; it has no field if no record had a field yet.
        all_fit: for JSON, whether no record has a field or a type that the schema refuses.
        writers: for Avro with framing, the schema of each id.
        refused: for Avro with framing, why the records of an id do not fit.
    """

    schema: StructType
    all_fit: bool = True
    writers: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, object]:
        """Returns what JSON can hold."""
        return {
            "schema": self.schema.jsonValue(),
            "all_fit": self.all_fit,
            "writers": {str(number): text for number, text in self.writers.items()},
            "refused": {str(number): reason for number, reason in self.refused.items()},
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> TopicPlan:
        """Reads what `to_fields` returned."""
        by_id = {name: {int(number): str(text) for number, text in fields[name].items()} for name in ("writers", "refused")}  # type: ignore[attr-defined]
        return cls(StructType.fromJson(fields["schema"]), bool(fields["all_fit"]), **by_id)


BatchPlan = Mapping[str, TopicPlan]
"""The plan of each topic that has records in the batch."""


def stored_plan(files: Files, query_id: str, batch_id: int, make: Callable[[], BatchPlan]) -> BatchPlan:
    """Returns the plan of a batch: the stored one, or what `make` returns, which is stored then.

    A query with another checkpoint has other records in the batch of the same number, so it has plans of its own.
    """
    path = note_path(layout.PLANS, query_id, batch_id)
    stored = files.read(path)
    if stored is None:
        plan = make()
        data = json.dumps({topic: each.to_fields() for topic, each in plan.items()}).encode()
        write_note(files, layout.PLANS, query_id, batch_id, data)
        stored = files.read(path)
        assert stored is not None
    delete_old_notes(files, layout.PLANS, query_id, batch_id)
    return {topic: TopicPlan.from_fields(fields) for topic, fields in json.loads(stored).items()}
