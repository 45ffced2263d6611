"""Where the newest batch of a lake ends. The lake notes it too, so that an older or a newer checkpoint is refused.

Spark takes the offsets of a batch from the checkpoint, and the lake skips a batch whose number it has. With a checkpoint from an
older backup, Spark gives such numbers to batches of other offsets, whose records would be lost or doubled without an error. So a
batch is written only if it is the newest one of the lake again, or the next one, and if checkpoint and lake have the same end of
the newest one. The note is written before the batch, because a batch that was killed is repeated with the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from wirekafka.pipelines.audit.checkpoints import parse_batch
from wirekafka.pipelines.audit.offsets import Place
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.newest_notes import delete_old_notes, newest_note, note_path, write_note
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.files import Files

REMEDY = (
    "if another ingest fills this lake now, stop one of the two; otherwise restore the whole directory of the lake from one"
    " backup, or fill another directory"
)

Ends = Mapping[Place, int]
"""One past the last offset of each partition."""


def note_batch(files: Files, query_id: str, batch_id: int) -> None:
    """Notes where a batch ends, before it is written.

    Raises:
        PipelineError: the checkpoint is older or newer than the records of the lake, or damaged, or another process fills
            the lake.
    """
    newest = newest_note(files, layout.ENDS, query_id)
    noted = None if newest is None else _noted(files, query_id, newest)
    if newest is not None and noted is not None:
        refuse_other_checkpoint(newest, noted, batch_id, _planned(files, newest))
        if newest == batch_id:
            return
    ends = _planned(files, batch_id)
    if ends is None:
        raise PipelineError(f"the checkpoint of the lake is damaged: it has no offsets/{batch_id}: {REMEDY}")
    data = json.dumps([[*place, offset] for place, offset in sorted(ends.items())]).encode()
    write_note(files, layout.ENDS, query_id, batch_id, data)
    delete_old_notes(files, layout.ENDS, query_id, batch_id)


def refuse_other_checkpoint(newest: int, noted: Ends, batch_id: int, planned: Ends | None) -> None:
    """Refuses a checkpoint that does not belong to the records of a lake.

    Args:
        newest: the newest batch of the lake.
        noted: where it ends, by the lake.
        batch_id: the batch that Spark wants to write.
        planned: where the batch `newest` ends, by the checkpoint; None if the checkpoint does not have it.

    Raises:
        PipelineError: the checkpoint is older or newer than the records of the lake.
    """
    if batch_id not in (newest, newest + 1):
        age = "older" if batch_id < newest else "newer"
        raise PipelineError(
            f"the checkpoint is {age} than the records of the lake: Spark's next batch is {batch_id}, and the lake has the"
            f" batches up to {newest}: {REMEDY}"
        )
    if planned != noted:
        place = min(place for place in {*noted, *(planned or {})} if noted.get(place) != (planned or {}).get(place))
        raise PipelineError(
            f"the checkpoint is not the one of the lake's records: batch {newest} ends at offset {noted.get(place)} of the topic"
            f" {place.topic} partition {place.partition}, in the checkpoint at {(planned or {}).get(place)}: {REMEDY}"
        )


def _noted(files: Files, query_id: str, batch_id: int) -> Ends | None:
    """Returns where a batch ends; None if the machine stopped before the note was on the disk."""
    data = files.read(note_path(layout.ENDS, query_id, batch_id))
    if data is None:
        raise PipelineError("another process writes to this lake: stop one of the two")
    return {Place(topic, partition): offset for topic, partition, offset in json.loads(data)} if data else None


def _planned(files: Files, batch_id: int) -> Ends | None:
    text = files.read(f"{layout.CHECKPOINT}/offsets/{batch_id}")
    return None if text is None else parse_batch(text.decode())[1]
