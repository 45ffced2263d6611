"""The directory of a mirror's checkpoint: a description, and Spark's own checkpoint below it.

Spark's checkpoint belongs to one query, and Spark does not notice that it is started with other topics or another cluster. The
description does. When Spark cannot go on from its checkpoint (a topic was deleted, a partition appeared whose first records were
deleted already), the mirror begins a new one beside it, from the progress that the target has.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake.files import Files

FILE = "mirror.json"
UNFINISHED_FILE = "mirror.json.new"
GENERATION = "generation-"
FORMAT = 1


@dataclass(slots=True)
class Description:
    """What a checkpoint belongs to.

    Attributes:
        source_cluster: the id of the source.
        target_cluster: the id of the target.
        name: the name of the mirror.
        topics: names, sorted, or a pattern of one item that begins with `~`.
        rename: the template of the names.
        isolation: the isolation level of the reads.
    """

    source_cluster: str
    target_cluster: str
    name: str
    topics: list[str]
    rename: str
    isolation: str


WORDS = {
    "source_cluster": "the source cluster",
    "target_cluster": "the target cluster",
    "name": "--name",
    "topics": "the topics",
    "rename": "--rename",
    "isolation": "--isolation",
}
"""What a user calls the fields of a description."""


def check_description(path: str, stored: Description, wanted: Description) -> None:
    """Checks that a checkpoint belongs to the mirror that is started.

    Raises:
        PipelineError: it belongs to another one; the text says in what they differ.
    """
    theirs, ours = asdict(stored), asdict(wanted)
    for name, words in WORDS.items():
        if theirs[name] != ours[name]:
            raise PipelineError(
                f"the checkpoint {path} is of another mirror: {words} was {_text(theirs[name])}, now it is {_text(ours[name])}; "
                "give another --checkpoint. A mirror goes on from the progress that the target has, so nothing is lost or doubled"
            )


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


class Checkpoint:
    """The directory of a checkpoint, in any file system that Spark reads.

    `generation-N` is an empty file; the greatest N is in use, and `spark-N` is its checkpoint of Spark.

    Attributes:
        path: the directory.
        generation: which of Spark's checkpoints is in use.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self.generation = 0
        self._files = files

    @property
    def spark_path(self) -> str:
        """The directory of Spark's checkpoint."""
        return f"{self.path.rstrip('/')}/spark-{self.generation}"

    def open(self, wanted: Description) -> None:
        """Opens the checkpoint, or creates it.

        Raises:
            PipelineError: the directory belongs to another mirror, or to something else.
        """
        names = self._files.names("")
        if FILE not in names:
            if set(names) - {UNFINISHED_FILE}:
                raise PipelineError(
                    f"the directory {self.path} has other files than a mirror's checkpoint: give another --checkpoint"
                )
            self._files.write(UNFINISHED_FILE, json.dumps({"format": FORMAT, **asdict(wanted)}, indent=2).encode())
            self._files.move(UNFINISHED_FILE, FILE)
            return
        stored = json.loads(self._files.read(FILE) or b"{}")
        if stored.pop("format", None) != FORMAT:
            raise PipelineError(f"the checkpoint {self.path} is of another release of wirekafka: give another --checkpoint")
        check_description(self.path, Description(**stored), wanted)
        self.generation = max((int(name.removeprefix(GENERATION)) for name in names if name.startswith(GENERATION)), default=0)

    def has_started(self) -> bool:
        """Whether Spark has planned a batch of the query, so that it begins at its own offsets."""
        return bool(self._files.names(f"spark-{self.generation}/offsets"))

    def begin_generation(self) -> None:
        """Begins a new checkpoint of Spark, and deletes the one before."""
        before = self.generation
        self._files.write(f"{GENERATION}{before + 1}", b"")
        self.generation = before + 1
        for name in (f"spark-{before}", f"{GENERATION}{before}"):
            self._files.delete(name)
