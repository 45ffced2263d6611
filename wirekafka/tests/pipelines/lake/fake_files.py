"""Files in memory whose process dies, or lets another process work, at an operation that the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class Killed(Exception):
    """The process was killed in an operation."""


@dataclass(slots=True)
class FakeFiles:
    """One process's view of files that processes share.

    Attributes:
        content: the files of all processes.
        killed_at: the number of the operation in which the process dies; None: it lives.
        interrupted_at: the operation before which `interruption` runs, as if this process were paused for so long.
        count: the operations up to now.
    """

    content: dict[str, bytes] = field(default_factory=dict)
    killed_at: int | None = None
    interrupted_at: int | None = None
    interruption: Callable[[], None] = lambda: None
    count: int = 0

    def _begin(self) -> bool:
        """Returns whether the process dies in the middle of this operation."""
        self.count += 1
        if self.count == self.interrupted_at:
            self.interruption()
        if self.killed_at is not None and self.count > self.killed_at:
            raise Killed
        return self.count == self.killed_at

    def read(self, path: str) -> bytes | None:
        if self._begin():
            raise Killed
        return self.content.get(path)

    def write(self, path: str, data: bytes) -> None:
        if self._begin():
            self.content[path] = data[: len(data) // 2]
            raise Killed
        self.content[path] = data

    def claim(self, source: str, target: str) -> None:
        dies = self._begin()
        if source not in self.content:
            raise FileNotFoundError(source)
        if target in self.content:
            raise FileExistsError(target)
        self.content[target] = self.content[source]
        if dies:
            raise Killed
        # HDFS renames, a local file system keeps both names; the commits must work with both.
        if self.count % 2:
            del self.content[source]

    def move(self, source: str, target: str) -> None:
        dies = self._begin()
        if source in self.content:
            self.content[target] = self.content.pop(source)
        if dies:
            raise Killed

    def delete(self, path: str) -> None:
        dies = self._begin()
        found = [name for name in self.content if name == path or name.startswith(f"{path}/")]
        for name in found[: len(found) // 2] if dies else found:
            del self.content[name]
        if dies:
            raise Killed

    def names(self, directory: str) -> list[str]:
        if self._begin():
            raise Killed
        prefix = f"{directory}/" if directory else ""
        return sorted({name.removeprefix(prefix).split("/")[0] for name in self.content if name.startswith(prefix)})

    def sizes(self, directory: str) -> dict[str, int]:
        if self._begin():
            raise Killed
        prefix = f"{directory}/" if directory else ""
        found = {name: len(data) for name, data in self.content.items() if name.startswith(prefix)}
        return {name: size for name, size in found.items() if not _is_hidden_below(name.removeprefix(prefix))}


def _is_hidden_below(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))
