"""Opens all logs at the start: finds the folders, runs recovery in threads, and chooses between two copies of a partition.

How it works: logs that were closed cleanly are opened on the loop, with a few small reads each. Logs that need recovery
are read in threads, `num.recovery.threads.per.data.dir` for each directory, in all directories at once; a log line every few
seconds reports the progress. A partition whose folder cannot be opened is offline, and the other partitions are not affected.

Rules of this file: after a crash during a move a partition may be in two directories. Both copies then belong to the same topic,
and one copy contains the other: the longer copy is kept; if both have the same length, the copy that was found last is kept.

"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog
import trio

from wirekafka.config import LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.log.directory import DataDirectory
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.producer_state import Producers
from wirekafka.log.recovery import Loaded, Loader
from wirekafka.names import TopicPartition

log = structlog.get_logger(__name__)

_LOADS_A_TURN = 50
"""The number of logs that are opened without recovery between two checkpoints of the loop."""
_PROGRESS_SECONDS = 5
_NOT_OPENED = "A partition is offline: its log cannot be opened"
_REMEDY = "The next start opens the partition again. If that fails too, restore its folder from a backup"


@dataclass(eq=False, slots=True)
class Opened:
    """One folder, and the result of opening it.

    Attributes:
        loaded: the content of the folder; for a folder that cannot be opened, the offsets from the checkpoints.
        error: why the folder cannot be opened.
    """

    name: TopicPartition
    directory: DataDirectory
    config: LogConfig
    loader: Loader
    loaded: Loaded | None = None
    error: Exception | None = None

    @property
    def log_end_offset(self) -> int:
        """The log end offset; -1 if the folder cannot be opened."""
        return -1 if self.loaded is None or self.error is not None else self.loaded.log_end_offset

    def load(self) -> None:
        """Opens the folder. Runs in any thread."""
        with isolate(_NOT_OPENED, remedy=_REMEDY, partition=str(self.name)) as fault:
            try:
                self.loaded = self.loader.load()
            except OSError as error:
                log.error(_NOT_OPENED, partition=str(self.name), error=str(error))
                self.error = error
        self.error = self.error or fault.error
        if self.error is not None:
            self.loaded = self._left()

    def _left(self) -> Loaded:
        loader = self.loader
        end_offset = max(loader.recovery_point, loader.log_start_offset)
        topic_id = None
        with suppress(Exception):  # the error that took the partition offline may occur again
            topic_id = loader.read_topic_id()
        return Loaded(
            [], LeaderEpochs(), Producers(0), loader.log_start_offset, end_offset, end_offset, loader.recovery_point, topic_id
        )


async def open_all(found: list[Opened], threads_per_directory: int) -> None:
    """Opens all folders.

    Cancellation: some folders are open, and their logs hold no files.
    """
    by_directory: defaultdict[DataDirectory, list[Opened]] = defaultdict(list)
    for number, each in enumerate(found):
        if not each.loader.is_clean:
            by_directory[each.directory].append(each)
            continue
        if number % _LOADS_A_TURN == 0:
            await trio.lowlevel.checkpoint()
        each.load()
    if not by_directory:
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_say_how_far, [each for part in by_directory.values() for each in part])
        async with trio.open_nursery() as recoveries:
            for part in by_directory.values():
                limiter = trio.CapacityLimiter(threads_per_directory)
                for each in part:
                    recoveries.start_soon(_recover, each, limiter)
        nursery.cancel_scope.cancel()


async def _recover(each: Opened, limiter: trio.CapacityLimiter) -> None:
    await trio.to_thread.run_sync(each.load, limiter=limiter)


async def _say_how_far(recovering: list[Opened]) -> None:
    while True:
        await trio.sleep(_PROGRESS_SECONDS)
        log.info(
            "Recovering the logs",
            partitions=len(recovering),
            done=sum(each.loaded is not None for each in recovering),
            bytes_read=sum(each.loader.bytes_read for each in recovering),
        )


def choose_copies(opened: Iterable[Opened]) -> tuple[list[Opened], list[Opened]]:
    """Returns the copy of each partition that is used, and the copies that are not used.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR, two folders of one name are not copies of the same partition.
    """
    chosen: dict[TopicPartition, Opened] = {}
    spare = []
    for each in opened:
        other = chosen.get(each.name)
        if other is None:
            chosen[each.name] = each
            continue
        topic_ids = [copy.loaded.topic_id if copy.loaded is not None else None for copy in (other, each)]
        if None in topic_ids or topic_ids[0] != topic_ids[1] or each.error or other.error:
            paths = f"{each.loader.folder.path} and in {other.loader.folder.path}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{each.name} is in {paths} too; move one of them away")
        kept, left = (other, each) if other.log_end_offset > each.log_end_offset else (each, other)
        chosen[each.name] = kept
        spare.append(left)
        log.warning(
            "A partition was in two directories",
            kept=kept.loader.folder.path,
            log_end_offset=kept.log_end_offset,
            deleted=left.loader.folder.path,
            its_log_end_offset=left.log_end_offset,
        )
    return list(chosen.values()), spare
