"""The real file system on a disk that a test fills and empties again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wirekafka.log.storage import Bytes, Storage

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class FillableStorage(Storage):
    """The real file system; while it is full, a write stores half of its bytes and fails with ENOSPC."""

    __slots__ = ("_fills",)

    def __init__(self) -> None:
        self._fills = 0

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fills the disk for as long as the block lasts; blocks may overlap."""
        self._fills += 1
        try:
            yield
        finally:
            self._fills -= 1

    def write(self, fd: int, data: Bytes, position: int) -> None:
        """As `Storage.write`, unless the disk is full."""
        if self._fills:
            super().write(fd, memoryview(data)[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, data, position)

    def preallocate(self, fd: int, size: int) -> None:
        """As `Storage.preallocate`, unless the disk is full."""
        if self._fills:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().preallocate(fd, size)


def disk_of(broker: Broker) -> FillableStorage:
    """Returns the disk of a broker.

    Raises:
        ValueError: the broker is on a disk that no test can fill.
    """
    storage = broker.logs.storage
    if not isinstance(storage, FillableStorage):
        raise ValueError("full_disk needs a broker for tests: EmbeddedBroker, EmbeddedCluster, or serve --control-port")
    return storage
