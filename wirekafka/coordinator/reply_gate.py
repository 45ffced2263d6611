"""Holds the replies of coordinators until all state that they depend on is committed.

How it works: a coordinator changes its state when a record is appended, before the record is committed. If this broker
loses the partition before the commit, that state is lost. So a reply, also of a read, is held until the high watermark of each
partition of coordinator state that its request has used reaches the log end offset at that time. While a handler runs, each
`StateTopic` notes such partitions here. A partition with one in-sync replica commits inside the append, and is not noted, so the
reply costs nothing more.

If a partition is lost before the commit, its coordinator resigns, and the handler is called again. It then finds that this
broker is not the coordinator, and returns that response. If the commit takes too long, the handler is called again too, and each
use of state that may be uncommitted is refused with COORDINATOR_LOAD_IN_PROGRESS, so that the response has the form of its API.

Rules of this file:
    Between `begin_step` and `end_step` no waiting fetch is answered, because its connection could continue with a request that
    would see a record that is appended and not replayed.

Source: org.apache.kafka.coordinator.common.runtime.CoordinatorRuntime (deferredEventQueue).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending, Work

if TYPE_CHECKING:
    from wirekafka.replication.purgatory import Purgatory

P = TypeVar("P")

Noted = dict[tuple["StatePartitions", int], None]
"""Partitions of state; a dict keeps their order."""

_NOTHING: Noted | None = None

_REFUSING: Noted = {}
"""Stands in `ReplyGate.noted` while a handler is called whose request may not wait for a commit any more."""

Handler = Callable[[Any, Any], Any]
"""Handles a request, given the broker and the call."""


class StatePartitions(Protocol):
    """The partitions of coordinator state in one topic; a `StateTopic`."""

    def is_committed(self, index: int) -> bool:
        """Whether everything that is now in the partition is committed."""

    def await_commit(self, index: int, callback: Callable[[ErrorCode | None], object]) -> None:
        """Calls back once everything that is now in the partition is committed. If it is lost, its coordinator resigns first.

        If the commit takes too long, the callback gets COORDINATOR_NOT_AVAILABLE.
        """


class SliceRunner(Protocol):
    """Runs long work in slices; `wirekafka.slices.Slices`."""

    def run(self, work: Work[P], around: Callable[[], AbstractContextManager[object]]) -> P | Pending[Any]:
        """Returns the result of the work if the first slice finishes it, or a Pending of the result."""


class ReplyGate:
    """The gate of one broker.

    Args:
        purgatory: the requests that wait for records.

    Attributes:
        begin_step: begins a step of a coordinator; the same plain def calls `end_step`. Steps may nest.
        end_step: ends a step, after which the state is consistent.
        noted: the partitions of state with records that may be uncommitted, and that the current request has used; None if
            there are none.
    """

    __slots__ = ("begin_step", "end_step", "noted")

    def __init__(self, purgatory: Purgatory) -> None:
        self.begin_step: Callable[[], None] = purgatory.hold
        self.end_step: Callable[[], None] = purgatory.release
        self.noted: Noted | None = None

    def note(self, topic: StatePartitions, index: int) -> None:
        """Notes that the current request uses a partition whose records may be uncommitted.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS if the request has waited for a commit for too long. All clients retry all
                requests after this error; Java consumers fail after COORDINATOR_NOT_AVAILABLE for an OffsetFetch.
        """
        if self.noted is None:
            self.noted = {}
        elif self.noted is _REFUSING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the state of the coordinator is not committed")
        self.noted[topic, index] = None

    def handle(self, handler: Handler, broker: Any, call: Any) -> Any:
        """Handles a request; its response is held until what it depends on is committed.

        Args:
            handler: returns the response, a Pending of it, or None.

        Returns:
            The response if it need not wait, or a Pending, which is completed with the response or an Exception.

        Raises:
            Exception: what `handler` raises, if it need not wait.
        """
        # A reply of this handler may make another connection continue with a request, whose handler then runs inside this one.
        former, self.noted = self.noted, _NOTHING
        response: Any
        try:
            response = handler(broker, call)
        except Exception as failure:  # the dispatcher answers it after the wait, if there is one
            if self.noted is None:
                self.noted = former
                raise
            response = failure
        noted, self.noted = self.noted, former
        if noted is None:
            return response
        return _Held(self, list(noted), response, partial(handler, broker, call)).pending

    def handle_again(self, handle: Callable[[], P], *, is_overdue: bool) -> P | Pending[Any]:
        """Handles a request again, because what its response depends on was not committed in time, or was lost.

        Args:
            is_overdue: the commit takes too long, so that uncommitted state is refused; otherwise the partition was lost.

        Raises:
            Exception: what `handle` raises, if it need not wait.
        """
        if not is_overdue:
            response: P | Pending[Any] = self.handle(lambda *_: handle(), None, None)
            return response
        former, self.noted = self.noted, _REFUSING
        try:
            return handle()
        finally:
            self.noted = former

    def run_late(self, slices: SliceRunner, make_work: Callable[[], Work[P]]) -> P | Pending[Any] | Exception:
        """Runs the rest of a handler's work in slices, after the handler has waited for another broker.

        Args, Returns: as `run_in_slices`; or the exception of the first slice, which the dispatcher answers.
        """
        try:
            response: P | Pending[Any] = self.handle(lambda *_: self.run_in_slices(slices, make_work), None, None)
        except Exception as error:  # noqa: BLE001 - the dispatcher answers it, whatever it is
            return error
        return response

    def run_in_slices(self, slices: SliceRunner, make_work: Callable[[], Work[P]]) -> P | Pending[Any]:
        """Runs a handler's long work in slices; a handler whose API is gated calls this instead of `Slices.run`.

        The response is held until the commit of everything that the slices have seen or written.

        Args:
            make_work: returns the work; called again if a partition of coordinator state is lost before the commit.

        Returns:
            The result of the work if the first slice finished it, or a Pending of it.

        Raises:
            Exception: whatever the first slice raises.
        """
        later = _LaterSlices(self, refuses=self.noted is _REFUSING)
        response = slices.run(make_work(), later.around)
        if not isinstance(response, Pending):
            return response
        later.begin()
        pending: Pending[Any] = Pending(on_abandon=response.abandon)
        again = partial(self.run_in_slices, slices, make_work)

        def hold(result: Any) -> None:
            pending.complete_with(_Held(self, list(later.noted), result, again).pending if later.noted else result)

        response.then(hold)
        return pending


class _LaterSlices(AbstractContextManager[None]):
    """Collects the partitions that the slices of one request note after the first slice.

    The first slice runs inside the request's handler, and `ReplyGate.handle` collects what it notes.

    Args:
        refuses: the request may not wait for a commit any more, so that no slice may use uncommitted state.

    Attributes:
        noted: the partitions that all slices have noted; empty before `begin`.
    """

    def __init__(self, gate: ReplyGate, *, refuses: bool) -> None:
        self.noted: Noted = {}
        self._gate = gate
        self._at_start = _REFUSING if refuses else _NOTHING
        self._is_begun = False
        self._former: Noted | None = None

    def begin(self) -> None:
        """Takes over the partitions that the first slice has noted."""
        self._is_begun = True
        self._take(None)

    def around(self) -> AbstractContextManager[None]:
        """Returns the block around a slice."""
        return self if self._is_begun else nullcontext()

    def __enter__(self) -> None:
        self._former, self._gate.noted = self._gate.noted, self._at_start

    def __exit__(self, *exception: object) -> None:
        self._take(self._former)

    def _take(self, former: Noted | None) -> None:
        """Takes over the partitions that a slice has noted, and restores the former ones."""
        self.noted.update(self._gate.noted or {})
        self._gate.noted = former


class _Held:
    """One response that waits for commits.

    Args:
        handle: handles the request again, within `ReplyGate.handle_again`.
    """

    def __init__(
        self, gate: ReplyGate, noted: list[tuple[StatePartitions, int]], response: Any, handle: Callable[[], Any]
    ) -> None:
        self._gate = gate
        self._response = response
        self._handle: Callable[[], Any] | None = handle
        self._waiting_count = len(noted)
        self._is_lost = self._is_overdue = False
        self.pending: Pending[Any] = Pending(on_abandon=self._abandon)
        for topic, index in noted:
            topic.await_commit(index, self._note)

    def _abandon(self) -> None:
        if isinstance(self._response, Pending):
            self._response.abandon()
        # The wait for the commit may be long, and must not hold the memory of a response whose client has disconnected.
        self._response = self._handle = None

    def _note(self, error: ErrorCode | None) -> None:
        self._waiting_count -= 1
        self._is_lost |= error is not None
        self._is_overdue |= error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        if self._waiting_count or self.pending.is_done:
            return
        if self._is_lost:
            handle = self._handle
            assert handle is not None, "the reply is awaited"
            self._abandon()
            try:
                self._response = self._gate.handle_again(handle, is_overdue=self._is_overdue)
            except Exception as failure:  # noqa: BLE001 - the dispatcher answers it, whatever it is
                self._response = failure
        self.pending.complete_with(self._response)


def after_commit(
    topic: StatePartitions, index: int, proceed: Callable[[ErrorCode | None], P], prepare: Callable[[], object]
) -> P | Pending[Any]:
    """Continues a request once everything in a partition of coordinator state is committed; at once if it is committed.

    Args:
        proceed: returns the response or a Pending of it. It gets the reason if the partition was lost or the commit takes too
            long, otherwise None. After a wait the request's handler has returned. So if `proceed` uses coordinator state, it
            calls `ReplyGate.handle` for that.
        prepare: called before a wait; copies the parts of the request that are valid only until its handler returns.
    """
    if topic.is_committed(index):
        return proceed(None)
    pending: Pending[Any] = Pending()
    results: list[P] = []
    is_late = False

    def go_on(error: ErrorCode | None) -> None:
        if not is_late:
            results.append(proceed(error))
            return
        response: Any
        try:
            response = proceed(error)
        except Exception as failure:  # noqa: BLE001 - the dispatcher answers it, whatever it is
            response = failure
        pending.complete_with(response)

    topic.await_commit(index, go_on)
    if results:
        return results[0]
    is_late = True
    prepare()
    return pending
