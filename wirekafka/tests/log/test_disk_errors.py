"""The log lines of the broker when the file system refuses a write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import structlog.testing

from wirekafka.errors import KafkaError
from wirekafka.log.directory import DataDirectory
from wirekafka.log.storage import Bytes, Storage
from wirekafka.tests.log.logs import World, append, batch


class RefusingStorage(Storage):
    """Refuses every write with one error."""

    def __init__(self, number: int) -> None:
        self.number: int | None = None
        self._wanted = number

    def refuse(self) -> None:
        self.number = self._wanted

    def write(self, fd: int, data: Bytes, position: int) -> None:
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))
        super().write(fd, data, position)


@pytest.mark.parametrize(
    ("number", "event"),
    [
        (errno.EBADF, "No permission to write"),
        (errno.EACCES, "No permission to write"),
        (errno.EPERM, "No permission to write"),
        (errno.ENOSPC, "The disk is full"),
        (errno.EDQUOT, "The disk is full"),
        (errno.EIO, "The disk failed"),
    ],
)
def test_append_that_the_file_system_refuses_is_logged_with_path_reason_and_remedy(
    tmp_path: Path, number: int, event: str
) -> None:
    world = World()
    world.storage = storage = RefusingStorage(number)
    log = world.open_log(tmp_path / "topic-0")
    storage.refuse()
    with structlog.testing.capture_logs() as lines, pytest.raises(KafkaError) as caught:
        append(log, batch(b"value"))
    (line,) = [line for line in lines if line["log_level"] == "error"]
    assert (line["event"], line["path"]) == (event, str(tmp_path / "topic-0"))
    assert line["remedy"]
    assert caught.value.message is not None
    assert event.lower() in caught.value.message


@pytest.mark.parametrize("is_clean", [True, False])
def test_directory_that_a_broker_left_uncleanly_is_logged(tmp_path: Path, *, is_clean: bool) -> None:
    first = DataDirectory(str(tmp_path), Storage())
    with structlog.testing.capture_logs() as lines:
        first.load(node_id=1, cluster_id=None)
    assert lines == [], "nothing was there"
    if is_clean:
        first.mark_clean(is_on_disk=True)
    with structlog.testing.capture_logs() as lines:
        DataDirectory(str(tmp_path), Storage()).load(node_id=1, cluster_id=None)
    assert [line["path"] for line in lines if "Unclean stop" in line["event"]] == ([] if is_clean else [str(tmp_path)])
