"""The ends of transactions: writes the markers, repeats failed markers, and completes each transaction after its last marker.

Theory of operation: an `Ending` is a transaction whose end is decided and committed. The first markers of a transaction are
written at once. The others are written in later turns of the loop, a few milliseconds in each, and all endings share these turns.
So neither a transaction of thousands of partitions nor a loaded partition with thousands of transactions holds the loop. A marker
may be appended on another broker, and may fail, so its writer calls back: once the marker is committed, or with an error. A timer
repeats the failed markers of an ending. After the last marker the transaction is completed.

Rules of this file:
    Every callback checks that its ending is still the current one of its transactional id: this broker may have lost the
    coordinator's partition meanwhile.
    An unexpected exception affects only its own transactional id, whose ending is tried again.
    Invariant: at most one timer is set for the next turn, and one is as long as `_unwritten` is not empty between two turns.

Source: kafka.coordinator.transaction.{TransactionMarkerChannelManager, TransactionMarkerRequestCompletionHandler}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
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

OnWritten = Callable[[ErrorCode | None], object]
"""Called with None once a marker is committed or not needed, or with the error of a failed marker."""


class Markers(Protocol):
    """Writes markers."""

    def write(self, marker: Marker, *, coordinator_epoch: int, now_ms: int, on_written: OnWritten) -> None:
        """Writes a marker, as `MarkerWriter.write`. Errors are passed to `on_written`."""


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
        under_way: The number of markers that wait to be written or committed.
        is_started: Whether this try has looked up the missing markers.
        failure: The error of a failed marker; None if no marker has failed since the last try.
    """

    __slots__ = (
        "coordinator_epoch",
        "failure",
        "has_failed_before",
        "index",
        "is_started",
        "to_write",
        "transactional_id",
        "under_way",
    )

    def __init__(self, transactional_id: str, index: int, coordinator_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.index = index
        self.coordinator_epoch = coordinator_epoch
        self.to_write: deque[Marker] = deque()
        self.under_way = 0
        self.is_started = False
        self.failure: ErrorCode | None = None
        self.has_failed_before = False


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
                ending.failure = None
                ending.is_started = False
                self._unwritten.append(ending)
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
            self._unwritten.append(ending)
            self._call_again()

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
            if self._is_current(ending) and self._advance(ending, stop_ms):
                self._unwritten.append(ending)
            if self._clock.monotonic_ms() >= stop_ms:
                break
        self._call_again()

    def _advance(self, ending: Ending, stop_ms: int) -> bool:
        """Writes the next markers of an ending; returns whether there are more."""
        if not ending.is_started:
            ending.is_started = True
            ending.failure = None
            ending.to_write = deque(self._decisions.missing_markers(ending.transactional_id))
            ending.under_way = len(ending.to_write)
            if not ending.under_way:
                self._finish(ending)
                return False
        markers = ending.to_write
        for _ in range(min(MARKERS_AT_ONCE, len(markers))):
            marker = markers.popleft()
            on_written = partial(self._note, ending, marker.topic_partition)
            try:
                self._markers.write(
                    marker, coordinator_epoch=ending.coordinator_epoch, now_ms=self._clock.now_ms(), on_written=on_written
                )
            except Exception as error:  # noqa: BLE001 - the marker is tried again, and everything else goes on
                log_once(error, "A marker cannot be written", transactional_id=ending.transactional_id)
                self._note(ending, marker.topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if markers and self._clock.monotonic_ms() >= stop_ms:
                break
        return bool(markers)

    def _note(self, ending: Ending, partition: TopicPartition, error: ErrorCode | None) -> None:
        """Is called when a marker is committed or has failed."""
        if not self._is_current(ending):
            return
        if error is None:
            self._decisions.marked(ending.transactional_id, partition)
        else:
            ending.failure = error
            self._log_failure(ending, f"the marker in {partition}: {error.name}")
        ending.under_way -= 1
        if not ending.under_way:
            self._finish(ending)

    def _finish(self, ending: Ending) -> None:
        """Completes the transaction if all markers of this try are committed, and otherwise sets the timer for the next try."""
        if ending.failure is None:
            try:
                # This comes first, because the next transaction of the id may end before `complete` returns.
                del self._by_id[ending.transactional_id]
                self._decisions.complete(ending.index, ending.transactional_id)
                return
            except KafkaError as error:
                self._log_failure(ending, str(error))
            except Exception as error:  # noqa: BLE001 - the completion is tried again, and everything else goes on
                log_once(error, "A transaction cannot be completed", transactional_id=ending.transactional_id)
            self._by_id[ending.transactional_id] = ending
            ending.failure = ErrorCode.UNKNOWN_SERVER_ERROR
        if self._retry is None:
            self._retry = self._clock.call_later(RETRY_MS, self._try_again)

    def _log_failure(self, ending: Ending, reason: str) -> None:
        if not ending.has_failed_before:
            ending.has_failed_before = True
            log.warning(
                "A transaction is decided, but cannot be ended yet; it is tried again",
                transactional_id=ending.transactional_id,
                error=reason,
            )

    def _try_again(self) -> None:
        self._retry = None
        self.begin_all([each for each in self._by_id.values() if each.failure is not None], None)
