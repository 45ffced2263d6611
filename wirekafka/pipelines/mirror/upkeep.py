"""What a running mirror does beside its batches: it translates groups, and deletes mapping records that nobody needs.

A thread does it, because groups commit offsets while no record comes, and Spark runs no batch then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.mirror.groups import GroupTranslator
from wirekafka.pipelines.mirror.options import MirrorOptions
from wirekafka.pipelines.mirror.places import OffsetMap
from wirekafka.pipelines.mirror.translation import Action

PRUNE_EVERY_S = 600.0
MARKERS_S = 5.0
OUTAGE_S = 60.0
POLL_S = 0.2


class Upkeep:
    """The work beside the batches."""

    def __init__(self, options: MirrorOptions, offsets: OffsetMap) -> None:
        self._options = options
        self._offsets = offsets
        self._groups = GroupTranslator(options, offsets) if options.groups is not None else None
        self._pruned_at_s = 0.0

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds."""
        return self._options.groups_every_s if self._groups is not None else PRUNE_EVERY_S

    def work(self) -> bool:
        """Does one round; returns whether no offset of a group waits for records or for their mapping.

        Raises:
            PipelineError: a cluster does not answer, or refuses.
        """
        table = self._groups.table() if self._groups is not None else []
        if self._groups is not None:
            self._groups.commit(table)
        if time.monotonic() - self._pruned_at_s >= PRUNE_EVERY_S:
            self._offsets.refresh()
            self._offsets.prune()
            self._pruned_at_s = time.monotonic()
        return not any(each.action is Action.WAIT for each in table)

    def finish(self) -> None:
        """Does the last rounds: a broker ends a transaction shortly after it has answered that it will.

        Source: KIP-98, the markers of a transaction follow the answer to EndTxn.

        Raises:
            PipelineError: a cluster does not answer, or refuses.
        """
        started_s = time.monotonic()
        while True:
            try:
                if self.work() or time.monotonic() - started_s > MARKERS_S:
                    return
            except UnreachableError:
                if time.monotonic() - started_s > OUTAGE_S:
                    raise
            time.sleep(POLL_S)


@contextmanager
def kept_up(upkeep: Upkeep, report: Callable[[str], None] | None = None) -> Iterator[None]:
    """Runs rounds of upkeep in a thread while the block runs, and a last one at its end.

    A round that fails is reported and tried again: the records do not wait for the groups.

    Args:
        upkeep: the work.
        report: gets one line for each failure; stderr by default.

    Raises:
        PipelineError: the last round failed.
    """
    stop = threading.Event()
    tell = report or (lambda line: print(line, file=sys.stderr))

    def run() -> None:
        while not stop.wait(upkeep.interval_s):
            try:
                upkeep.work()
            except PipelineError as error:
                tell(f"wirekafka: groups and mapped offsets wait for the next round: {error}")

    thread = threading.Thread(target=run, name="mirror upkeep", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    upkeep.finish()
