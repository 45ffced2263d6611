"""Where the newest batch of a lake ends, by the lake and by the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest import batch_offsets
from wirekafka.pipelines.ingest.batch_offsets import note_batch
from wirekafka.pipelines.ingest.newest_notes import write_note
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.files import LocalFiles


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def plan(files: LocalFiles, batch: int, end: int) -> None:
    """Writes what Spark writes into the checkpoint when it plans a batch."""
    text = f"v1\n{json.dumps({'batchTimestampMs': 1})}\n{json.dumps({'t': {'0': end}})}"
    files.write(f"{layout.CHECKPOINT}/offsets/{batch}", text.encode())


def test_note_batch_takes_the_next_batch_and_the_newest_one_again(files: LocalFiles) -> None:
    for batch in (0, 0, 1, 2, 2):
        plan(files, batch, 10 * batch)
        note_batch(files, "q", batch)
    assert files.names(layout.ENDS) == ["q.2.json"]


@pytest.mark.parametrize(
    ("batch", "end", "words"),
    [
        (1, 10, "the checkpoint is older .* next batch is 1, .* batches up to 2"),
        (4, 40, "the checkpoint is newer .* next batch is 4, .* batches up to 2"),
        (2, 21, "batch 2 ends at offset 20 of the topic t partition 0, in the checkpoint at 21: if another ingest"),
    ],
)
def test_note_batch_with_a_checkpoint_of_another_time_is_refused(files: LocalFiles, batch: int, end: int, words: str) -> None:
    for number in range(3):
        plan(files, number, 10 * number)
        note_batch(files, "q", number)
    plan(files, batch, end)
    with pytest.raises(PipelineError, match=words):
        note_batch(files, "q", batch)


def test_note_batch_after_a_batch_that_the_checkpoint_has_elsewhere_is_refused(files: LocalFiles) -> None:
    plan(files, 0, 10)
    note_batch(files, "q", 0)
    plan(files, 0, 5)
    plan(files, 1, 15)
    with pytest.raises(PipelineError, match="batch 0 ends at offset 10 .* in the checkpoint at 5"):
        note_batch(files, "q", 1)


def test_note_batch_that_was_half_written_is_written_again(files: LocalFiles) -> None:
    files.write(f"{layout.ENDS}/.draft", b"[")
    plan(files, 0, 10)
    note_batch(files, "q", 0)
    assert files.names(layout.ENDS) == ["q.0.json"]


def test_note_batch_without_the_offsets_of_spark_is_refused(files: LocalFiles) -> None:
    with pytest.raises(PipelineError, match="the checkpoint of the lake is damaged: it has no offsets/3"):
        note_batch(files, "q", 3)


def test_note_batch_of_a_driver_that_was_paused_keeps_the_newer_note(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        plan(files, number, 10 * number)
    note_batch(files, "q", 0)
    paused = write_note

    def pause(*note: Any) -> None:
        monkeypatch.undo()
        for number in (1, 2, 3):
            note_batch(files, "q", number)
        paused(*note)

    monkeypatch.setattr(batch_offsets, "write_note", pause)
    note_batch(files, "q", 1)
    plan(files, 4, 40)
    note_batch(files, "q", 4)
    assert files.names(layout.ENDS) == ["q.4.json"]


def test_note_batch_whose_note_another_driver_deletes_names_the_other_process(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(files, 1, 10)
    monkeypatch.setattr(batch_offsets, "newest_note", lambda *_: 0)
    with pytest.raises(PipelineError, match="another process writes to this lake: stop one of the two"):
        note_batch(files, "q", 1)


def test_note_batch_after_an_empty_note_of_a_power_loss_is_written(files: LocalFiles) -> None:
    files.write(f"{layout.ENDS}/q.0.json", b"")
    plan(files, 1, 10)
    note_batch(files, "q", 1)
    assert files.names(layout.ENDS) == ["q.1.json"]
