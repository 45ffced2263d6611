"""Changes of a lake's files that happen whole or not at all, whenever a process is killed.

Each change is a commit with a number: the batch id of a query, or the next number of the compactions. An attempt at a commit has
a directory of its own, with the files that it adds. The states, and what moves a commit from one to the next:

    begun      ATTEMPT/claim exists                 write the new files below ATTEMPT/data/ (Spark does)
    written    ATTEMPT/manifest.json is complete    `claim` ATTEMPT/claim as COMMITS/NUMBER.json
    decided    COMMITS/NUMBER.json names ATTEMPT    delete the old files, move the new files to their places
    settled    ATTEMPT is deleted

Before `decided`, nothing outside of the attempt's directory has changed, and a new attempt begins from nothing. After it, every
process that opens the lake does the rest, as often as it likes. No other step needs a lock or a lease.

Only one attempt of a number is decided, although a killed driver's JVM may still write for a moment, and although a driver that
was paused may go on much later:

- Two attempts cannot both claim COMMITS/NUMBER.json.
- The newest file of COMMITS/ stays, and `begin` refuses numbers up to it. `begin` looks after it has written its own claim.
- An older file of COMMITS/ is deleted after the claims of all attempts at its number and the numbers before. So an attempt that
  looked before a newer commit was decided has lost its claim by then, and one that looks later is refused.
- A file that is moved or deleted has a name that no other file ever had, so a late process moves and deletes nothing twice.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake.files import Files


@dataclass(slots=True)
class Change:
    """What a commit changes: `removed` files are deleted, then `added` files are moved, from a place below the attempt's data."""

    added: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[str] = ()


@dataclass(slots=True)
class Attempt:
    """One attempt at a commit; files are written below `data`."""

    number: int
    directory: str

    @property
    def data(self) -> str:
        """The directory of the new files."""
        return f"{self.directory}/data"

    @property
    def claim(self) -> str:
        """The file whose existence allows the commit."""
        return f"{self.directory}/claim"

    @property
    def manifest(self) -> str:
        """The file that holds the change."""
        return f"{self.directory}/manifest.json"


class CommitLog:
    """The numbered commits of one writer, for example of one query.

    Args:
        files: the files of the lake.
        name: the name of the writer; no `.` is in it.
        directory: the files that say which attempts are decided.
        staging: the directory of the attempts, which other logs may share.
    """

    def __init__(self, files: Files, name: str, directory: str, staging: str) -> None:
        self._files = files
        self._name = name
        self._directory = directory
        self._staging = staging

    def last(self) -> int | None:
        """Returns the number of the newest commit."""
        return max(self._numbers(), default=None)

    def begin(self, number: int) -> Attempt | None:
        """Begins an attempt at a commit; None if this or a later commit is decided, and settled now."""
        attempt = Attempt(number, f"{self._staging}/{self._name}.{number}.{uuid.uuid4().hex}")
        self._files.write(attempt.claim, json.dumps({"attempt": attempt.directory}).encode())
        last = self.last()
        if last is None or last < number:
            return attempt
        self._files.delete(attempt.directory)
        self.settle()
        return None

    def commit(self, attempt: Attempt, change: Change) -> bool:
        """Makes the change; False if another process has made its own change of this number.

        Raises:
            PipelineError: another process writes to the lake, and has gone on already.
        """
        manifest = {"added": dict(change.added), "removed": list(change.removed)}
        self._files.write(attempt.manifest, json.dumps(manifest).encode())
        try:
            self._files.claim(attempt.claim, self._path(attempt.number))
        except FileExistsError:
            self._files.delete(attempt.directory)
            self.settle()
            return False
        except FileNotFoundError:
            self._files.delete(attempt.directory)
            raise PipelineError("another process writes to this lake: stop one of the two") from None
        self.settle()
        return True

    def settle(self) -> None:
        """Finishes the commits that are decided, and deletes what is needed no longer."""
        numbers = self._numbers()
        for number in numbers:
            self._finish(number)
        if len(numbers) > 1:
            self._prune(numbers[-1], numbers[:-1])

    def is_settled(self) -> bool:
        """Whether the files of every decided commit are in their places."""
        return not any(self._pending(number) for number in self._numbers())

    def clean(self) -> None:
        """Deletes what attempts without a decision have left. A process that still works on one of them fails."""
        for attempt in self._attempts():
            self._files.delete(attempt.claim)
            if self._decided(attempt.number) != attempt.directory:
                self._files.delete(attempt.directory)

    def _finish(self, number: int) -> None:
        directory = self._decided(number)
        if directory is None:
            return
        change = self._pending(number)
        if change is None:
            return
        for path in change.removed:
            self._files.delete(path)
        for source, target in change.added.items():
            self._files.move(source, target)
        self._files.delete(directory)

    def _pending(self, number: int) -> Change | None:
        """Returns the change of a decided commit that is not settled."""
        directory = self._decided(number)
        if directory is None:
            return None
        manifest = self._files.read(Attempt(number, directory).manifest)
        return None if manifest is None else Change(**json.loads(manifest))

    def _decided(self, number: int) -> str | None:
        """Returns the directory of the attempt that has won a number."""
        decision = self._files.read(self._path(number))
        return None if decision is None else str(json.loads(decision)["attempt"])

    def _prune(self, newest: int, settled: Sequence[int]) -> None:
        for attempt in self._attempts():
            if attempt.number < newest:
                self._files.delete(attempt.claim)
        for number in settled:
            self._files.delete(self._path(number))

    def _attempts(self) -> list[Attempt]:
        names = (name.split(".") for name in self._files.names(self._staging))
        return [Attempt(int(name[1]), f"{self._staging}/{'.'.join(name)}") for name in names if name[0] == self._name]

    def _numbers(self) -> list[int]:
        names = self._files.names(self._directory)
        return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number:012d}.json"
