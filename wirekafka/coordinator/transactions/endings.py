"""The ends of transactions: writes the markers, repeats failed markers, and completes each transaction after its last marker.

How it works: an `Ending` is a transaction whose end is decided and committed. The first markers of a transaction are
written at once. The others are written in later turns of the loop, a few milliseconds in each, and all endings share these turns.
So neither a transaction of thousands of partitions nor a loaded partition with thousands of transactions holds the loop. A marker
may be appended on another broker, and may fail, so its writer calls back: once the marker is committed, or with an error. A timer
writes the failed markers of all endings again. After the last marker the transaction is completed.

Rules of this file:
    Every callback checks that its ending is still the current one of its transactional id: this broker may have lost the
    coordinator's partition meanwhile.
    An unexpected exception affects only its own transactional id, whose ending is tried again.
    A transaction is completed once each of its markers is committed; a marker that waits for its commit is not written again.
    Invariant: at most one timer is set for the next turn, and one is as long as `_unwritten` is not empty between two turns.

Source: kafka.coordinator.transaction.{TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import log_once
from wirekafka.names import TopicPartition

if TYPE_CHECKING:
    from wirekafka.clock import Clock, Timer
    from wirekafka.coordinator.transactions.requests import Marker

log = structlog.get_logger(__name__)

RETRY_MS = 500
"""The time between a failed marker and the next try."""

SLICE_MS = 5
"""How long one turn of the loop writes markers. A marker takes 0.4 ms in a new log, and later 0.02 ms (2026-11)."""

MARKERS_AT_ONCE = 250
"""How many markers of one transaction are written in one turn at most."""

PAUSE_MS = 1

NOT_TAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""The errors after which a partition may need no marker: it was deleted, another coordinator has ended the transaction, or an old
broker has no transactions in the partition."""

OnWritten = Callable[[ErrorCode | None], object]
"""Called with None once a marker is committed or not needed, or with the error of a failed marker."""


class Markers(Protocol):
    """Writes markers."""

    def write(self, marker: Marker, *, coordinator_epoch: int, now_ms: int, on_written: OnWritten) -> object:
        """Writes a marker, as `MarkerWriter.write`. Errors are passed to `on_written`."""

    def is_needed(self, marker: Marker) -> bool:
        """Whether the transaction of a marker is still open in the marker's partition."""


class Decisions(Protocol):
    """The decisions of the transaction coordinator."""

    def missing_markers(self, transactional_id: str) -> list[Marker]:
        """Returns the missing markers of a decided transaction."""

    def marked(self, transactional_id: str, partition: TopicPartition) -> None:
        """Notes that a partition has its marker, or needs none."""

    def complete(self, index: int, transactional_id: str) -> None:
        """Completes a transaction after all its markers are committed.

        Args:
            index: The partition of __transaction_state that holds the transaction.

        Raises:
            KafkaError: The completion cannot be stored at present.
        """


class Ending:
    """A transaction whose end is decided.

    Attributes:
        index: The partition of __transaction_state that holds the transaction.
        coordinator_epoch: The epoch of the coordinator that decided; a partition refuses epochs lower than its last one.
        to_write: The markers that wait to be written.
        under_way: The markers that wait to be written or committed, by partition.
        failed: The markers that wait for the next try, which begins when `is_stuck` ends.
        is_started: Whether the missing markers are known.
        is_queued: Whether the ending waits for its next turn.
        is_stuck: Whether something failed, so that the timer tries it again.
        has_failed_before: Whether the log has a line about a failure of this ending.
    """

    __slots__ = (
        "coordinator_epoch",
        "failed",
        "has_failed_before",
        "index",
        "is_queued",
        "is_started",
        "is_stuck",
        "to_write",
        "transactional_id",
        "under_way",
    )

    def __init__(self, transactional_id: str, index: int, coordinator_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.index = index
        self.coordinator_epoch = coordinator_epoch
        self.to_write: deque[Marker] = deque()
        self.under_way: dict[TopicPartition, Marker] = {}
        self.failed: list[Marker] = []
        self.is_started = False
        self.is_queued = False
        self.is_stuck = False
        self.has_failed_before = False

    def send(self, markers: Sequence[Marker]) -> None:
        """Adds markers to those that wait to be written."""
        self.to_write.extend(markers)
        for marker in markers:
            self.under_way[marker.topic_partition] = marker


class Endings:
    """The transactions of one broker whose end is decided and which are not completed."""

    def __init__(self, clock: Clock, markers: Markers, decisions: Decisions) -> None:
        self._clock = clock
        self._markers = markers
        self._decisions = decisions
        self._by_id: dict[str, Ending] = {}
        self._unwritten: deque[Ending] = deque()
        """The endings that wait for their next turn."""
        self._is_turn_due = False
        self._retry: Timer | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def put(self, ending: Ending) -> None:
        """Notes a transaction whose decision is appended."""
        self._by_id[ending.transactional_id] = ending

    def begin(self, ending: Ending, error: ErrorCode | None) -> None:
        """Writes the markers after the decision is committed; `error` is not None if the decision is lost."""
        if error is None and self._is_current(ending):
            self._start(ending)

    def begin_all(self, endings: Iterable[Ending], error: ErrorCode | None) -> None:
        """Begins many endings, as `begin` does: the first of them at once, and the others in later turns of the loop."""
        if error is None:
            for ending in endings:
                self._queue(ending)
            self._write_next()

    def drop(self, transactional_ids: Iterable[str]) -> None:
        """Drops these endings, because this broker no longer coordinates their transactions."""
        for transactional_id in transactional_ids:
            self._by_id.pop(transactional_id, None)

    def _is_current(self, ending: Ending) -> bool:
        return self._by_id.get(ending.transactional_id) is ending

    def _start(self, ending: Ending) -> None:
        """Writes the missing markers, in later turns of the loop if they take too long for this turn."""
        if self._advance(ending, self._clock.monotonic_ms() + SLICE_MS):
            self._queue(ending)
            self._call_again()

    def _queue(self, ending: Ending) -> None:
        if not ending.is_queued:
            ending.is_queued = True
            self._unwritten.append(ending)

    def _call_again(self) -> None:
        if self._unwritten and not self._is_turn_due:
            self._is_turn_due = True
            self._clock.call_later(PAUSE_MS, self._on_turn)

    def _on_turn(self) -> None:
        self._is_turn_due = False
        self._write_next()

    def _write_next(self) -> None:
        """Writes markers of the endings in turn, until the time for one turn of the loop is over."""
        stop_ms = self._clock.monotonic_ms() + SLICE_MS
        for _ in range(len(self._unwritten)):
            if not self._unwritten:
                break
            ending = self._unwritten.popleft()
            ending.is_queued = False
            if self._is_current(ending) and self._advance(ending, stop_ms):
                self._queue(ending)
            if self._clock.monotonic_ms() >= stop_ms:
                break
        self._call_again()

    def _advance(self, ending: Ending, stop_ms: int) -> bool:
        """Writes the next markers of an ending; returns whether there are more."""
        if not ending.is_started and not self._look_up_markers(ending):
            return False
        if ending.failed and not ending.is_stuck:
            failed, ending.failed = ending.failed, []
            ending.send(failed)
        if not ending.under_way:
            self._finish_if_marked(ending)
            return False
        markers = ending.to_write
        for _ in range(min(MARKERS_AT_ONCE, len(markers))):
            marker = markers.popleft()
            on_written = partial(self._note, ending, marker.topic_partition)
            try:
                self._markers.write(
                    marker, coordinator_epoch=ending.coordinator_epoch, now_ms=self._clock.now_ms(), on_written=on_written
                )
            except Exception as error:  # noqa: BLE001 - only this marker is affected, and it is tried again
                log_once(error, "A marker cannot be written", transactional_id=ending.transactional_id)
                on_written(ErrorCode.UNKNOWN_SERVER_ERROR)
            if markers and self._clock.monotonic_ms() >= stop_ms:
                break
        return bool(markers)

    def _look_up_markers(self, ending: Ending) -> bool:
        """Looks up the missing markers of an ending; returns whether they are known."""
        try:
            ending.send(self._decisions.missing_markers(ending.transactional_id))
        except Exception as error:  # noqa: BLE001 - only this ending is affected, and it is tried again
            log_once(error, "The markers of a transaction cannot be looked up", transactional_id=ending.transactional_id)
            self._try_later(ending)
            return False
        ending.is_started = True
        return True

    def _note(self, ending: Ending, partition: TopicPartition, error: ErrorCode | None) -> None:
        """Is called when a marker is committed or has failed. A second call for the same try of a marker does nothing.

        A refused marker counts as written if the transaction is no longer open in the partition. If the marker is fenced and the
        transaction is still open there, the transaction stays open, and the last stable offset does not move: another
        coordinator has written a marker of that producer with a higher coordinator epoch.
        """
        if error in NOT_TAKEN and not self._is_needed(ending, partition):
            log.info("A partition needs no marker", partition=str(partition), error=error.name)
            error = None
        marker = ending.under_way.pop(partition, None)
        if marker is None or not self._is_current(ending):
            return
        if error is None and not self._mark(ending, partition):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not None:
            ending.failed.append(marker)
            if error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:  # The partition has another leader now, which gets the marker.
                self._log_failure(ending, f"the marker in {partition}: {error.name}")
            self._try_later(ending)
        elif not ending.under_way:
            self._finish_if_marked(ending)

    def _is_needed(self, ending: Ending, partition: TopicPartition) -> bool:
        marker = ending.under_way.get(partition)
        try:
            return marker is not None and self._markers.is_needed(marker)
        except Exception as error:  # noqa: BLE001 - only this marker is affected, and it is tried again
            log_once(error, "The need of a marker is not known", transactional_id=ending.transactional_id)
            return True

    def _mark(self, ending: Ending, partition: TopicPartition) -> bool:
        """Notes that a partition has its marker; returns whether that succeeded."""
        try:
            self._decisions.marked(ending.transactional_id, partition)
        except Exception as error:  # noqa: BLE001 - the marker is written again, which does no harm
            log_once(error, "A marker cannot be noted", transactional_id=ending.transactional_id)
            return False
        return True

    def _finish_if_marked(self, ending: Ending) -> None:
        """Completes the transaction, unless a marker has failed; tries it again later if it cannot be completed."""
        if ending.failed:
            return
        try:
            # This comes first, because the next transaction of the id may end before `complete` returns.
            del self._by_id[ending.transactional_id]
            self._decisions.complete(ending.index, ending.transactional_id)
            return
        except KafkaError as error:
            self._log_failure(ending, str(error))
        except Exception as error:  # noqa: BLE001 - only this completion is affected, and it is tried again
            log_once(error, "A transaction cannot be completed", transactional_id=ending.transactional_id)
        self._by_id[ending.transactional_id] = ending
        self._try_later(ending)

    def _log_failure(self, ending: Ending, reason: str) -> None:
        if not ending.has_failed_before:
            ending.has_failed_before = True
            log.warning(
                "A transaction is decided, but cannot be ended yet; it is tried again",
                transactional_id=ending.transactional_id,
                error=reason,
            )

    def _try_later(self, ending: Ending) -> None:
        ending.is_stuck = True
        if self._retry is None:
            self._retry = self._clock.call_later(RETRY_MS, self._try_again)

    def _try_again(self) -> None:
        """Tries the failed steps of all endings again. Markers that wait for their commit are not written again."""
        self._retry = None
        for ending in self._by_id.values():
            if ending.is_stuck:
                ending.is_stuck = False
                self._queue(ending)
        self._write_next()
