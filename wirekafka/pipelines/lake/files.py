"""The few operations on files that the commits of a lake need, on the local file system and on Hadoop's file systems.

Paths are strings with `/`, relative to the root of the lake. The data itself is written by Spark, never here.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wirekafka.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files(Protocol):
    """A file system below one directory. A process may die between any two operations, and inside `write` and `delete`."""

    def read(self, path: str) -> bytes | None:
        """Returns what a file holds, None if the file does not exist."""

    def write(self, path: str, data: bytes) -> None:
        """Writes a file and the directories above it. A process that dies leaves a part of the file."""

    def claim(self, source: str, target: str) -> None:
        """Gives a file another name in one step. Only one of several processes that claim the same name succeeds.

        The name `source` may stay too.

        Raises:
            FileExistsError: the target exists.
            FileNotFoundError: the source does not exist.
        """

    def move(self, source: str, target: str) -> None:
        """Moves a file in one step, unless it was moved already: a missing source, or a target that exists, is no error."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it; a missing path is no error."""

    def names(self, directory: str) -> list[str]:
        """Returns the names of a directory's files and directories, sorted; none if it does not exist."""

    def sizes(self, directory: str) -> dict[str, int]:
        """Returns the bytes of each file below a directory, by path, without names that begin with `_` or `.`."""


class LocalFiles:
    """The files of a directory on a local or mounted file system.

    `claim` is a hard link, because a rename replaces an existing target.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        """Returns what a file holds, None if the file does not exist."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Writes a file and the directories above it."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def claim(self, source: str, target: str) -> None:
        """Gives a file another name in one step, unless that name exists."""
        (self._root / target).parent.mkdir(parents=True, exist_ok=True)
        os.link(self._root / source, self._root / target)

    def move(self, source: str, target: str) -> None:
        """Moves a file in one step, unless it was moved already."""
        path = self._root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self._root / source).rename(path)
        except FileNotFoundError:
            return

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def names(self, directory: str) -> list[str]:
        """Returns the names of a directory's files and directories, sorted; none if it does not exist."""
        try:
            return sorted(os.listdir(self._root / directory))
        except FileNotFoundError:
            return []

    def sizes(self, directory: str) -> dict[str, int]:
        """Returns the bytes of each file below a directory, by path, without names that begin with `_` or `.`."""
        found = {}
        for parent, directories, names in os.walk(self._root / directory):
            directories[:] = [name for name in directories if not is_hidden(name)]
            for name in names:
                if not is_hidden(name):
                    path = Path(parent, name)
                    found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        return found


class HadoopFiles:
    """The files of a directory on a file system of Hadoop, through the JVM of the driver.

    `claim` and `move` are `FileSystem.rename`, which HDFS does in one step and refuses if the target exists. An object store
    copies each object in one step and deletes the source afterwards; it refuses an existing target only by looking first, so
    there the user must not run two writers at once.

    Source: https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-common/filesystem/filesystem.html
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._path: Any = spark._jvm.org.apache.hadoop.fs.Path
        self._root = self._path(root)
        self._system = self._root.getFileSystem(spark._jsc.hadoopConfiguration())

    def _at(self, path: str) -> Any:
        return self._path(self._root, path) if path else self._root

    def read(self, path: str) -> bytes | None:
        """Returns what a file holds, None if the file does not exist."""
        if not self._system.exists(self._at(path)):
            return None
        stream = self._system.open(self._at(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, data: bytes) -> None:
        """Writes a file and the directories above it."""
        stream = self._system.create(self._at(path), True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def claim(self, source: str, target: str) -> None:
        """Gives a file another name in one step, unless that name exists."""
        if not self._system.exists(self._at(source)):
            raise FileNotFoundError(source)
        if not self._system.exists(self._at(target)) and self._rename(source, target):
            return
        if self._system.exists(self._at(target)):
            raise FileExistsError(target)
        raise FileNotFoundError(source)

    def move(self, source: str, target: str) -> None:
        """Moves a file in one step, unless it was moved already."""
        if not self._system.exists(self._at(source)):
            return
        if self._system.exists(self._at(target)):
            self.delete(source)
            return
        if not self._rename(source, target) and self._system.exists(self._at(source)):
            raise PipelineError(f"the file system cannot move {self._at(source)} to {self._at(target)}")

    def _rename(self, source: str, target: str) -> bool:
        from py4j.protocol import Py4JJavaError

        place = self._at(target)
        self._system.mkdirs(place.getParent())
        try:
            return bool(self._system.rename(self._at(source), place))
        except Py4JJavaError as error:
            # Some file systems return false if the source is missing or the target exists, others throw these.
            if error.java_exception.getClass().getSimpleName() in ("FileNotFoundException", "FileAlreadyExistsException"):
                return False
            raise

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it."""
        self._system.delete(self._at(path), True)

    def names(self, directory: str) -> list[str]:
        """Returns the names of a directory's files and directories, sorted; none if it does not exist."""
        if not self._system.exists(self._at(directory)):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(self._at(directory)))

    def sizes(self, directory: str) -> dict[str, int]:
        """Returns the bytes of each file below a directory, by path, without names that begin with `_` or `.`."""
        found: dict[str, int] = {}
        pending = [directory]
        while pending:
            parent = pending.pop()
            if not self._system.exists(self._at(parent)):
                continue
            for status in self._system.listStatus(self._at(parent)):
                path = f"{parent}/{status.getPath().getName()}"
                if is_hidden(status.getPath().getName()):
                    continue
                if status.isDirectory():
                    pending.append(path)
                else:
                    found[path] = status.getLen()
        return found


def is_hidden(name: str) -> bool:
    """Whether Spark, Hive and their like pass over a file or directory of this name."""
    return name.startswith(("_", "."))


def open_files(spark: SparkSession, root: str) -> Files:
    """Returns the files below a path or URI of any file system that Spark reads."""
    path = spark._jvm.org.apache.hadoop.fs.Path(root)
    uri = path.getFileSystem(spark._jsc.hadoopConfiguration()).makeQualified(path).toUri()
    if uri.getScheme() == "file":
        return LocalFiles(Path(uri.getPath()))
    return HadoopFiles(spark, uri.toString())
