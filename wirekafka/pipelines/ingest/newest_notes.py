"""Notes of a lake about its newest batch, one file for each batch: written in one step, and deleted once they are old."""

from __future__ import annotations

import uuid

from wirekafka.pipelines.lake.files import Files


def note_path(directory: str, query_id: str, batch_id: int) -> str:
    """Returns the path of the note about a batch."""
    return f"{directory}/{query_id}.{batch_id}.json"


def write_note(files: Files, directory: str, query_id: str, batch_id: int, data: bytes) -> None:
    """Writes the note about a batch in one step."""
    draft = f"{directory}/.{uuid.uuid4().hex}"
    files.write(draft, data)
    files.move(draft, note_path(directory, query_id, batch_id))


def delete_old_notes(files: Files, directory: str, query_id: str, batch_id: int) -> None:
    """Deletes the notes about earlier batches and those of other queries.

    Newer notes stay: a driver that was paused may come here after another one has gone on.
    """
    for name in files.names(directory):
        writer, number = name.split(".")[:2]
        if writer != query_id or int(number) < batch_id:
            files.delete(f"{directory}/{name}")


def newest_note(files: Files, directory: str, query_id: str) -> int | None:
    """Returns the newest batch of a query that has a note; None if there is none.

    The names of unfinished notes begin with a dot.
    """
    names = (name.split(".") for name in files.names(directory))
    return max((int(name[1]) for name in names if name[0] == query_id), default=None)
