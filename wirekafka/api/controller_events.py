"""Requests that only the controller answers: the active controller handles them as its events.

How it works: a member whose own controller is active enters an event, and the reply waits for its end. A request about many
topics becomes several events, so that other events, such as the death of a broker, need not wait for all topics. If the client
goes away, events that have not begun are removed.

Source: KafkaApis of Apache Kafka 3.9, where `zkSupport.controller.isActive` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.controller.local_controller import Event, LocalController
    from wirekafka.membership.member import Member

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

ITEMS_AT_ONCE = 50
"""How many topics one event handles."""


def not_controller() -> KafkaError:
    """Returns the error of a member for a request that only the controller answers."""
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")


def active_controller(member: Member) -> LocalController | None:
    """Returns the controller of this broker if it is the active one of the cluster."""
    controller = member.local_controller
    return controller if controller is not None and controller.is_active else None


def require_controller(member: Member) -> LocalController:
    """Returns the controller of this broker.

    Raises:
        KafkaError: NOT_CONTROLLER, unless it is the active one.
    """
    controller = active_controller(member)
    if controller is None:
        raise not_controller()
    return controller


def enter(controller: LocalController, event: Event[T]) -> Pending[T | KafkaError]:
    """Enters an event; returns a Pending of its result.

    The error NOT_CONTROLLER says that another broker has become the controller meanwhile.
    """
    reply: Pending[T | KafkaError] = Pending(on_abandon=lambda: remove())
    remove = controller.enter(event, reply.complete)
    return reply


def enter_each(
    controller: LocalController, items: Sequence[A], event_of: Callable[[Sequence[A]], Event[list[R]]]
) -> Pending[list[R | KafkaError]]:
    """Enters events about many items, one after the other; returns a Pending of the results of all items.

    If an event fails, its items and those after them have its error.

    Args:
        event_of: returns the event about some of the items. Its result has a result for each of them.
    """
    return _Parts(controller, items, event_of).begin()


class _Parts(Generic[A, R]):
    """Events in progress about many items."""

    def __init__(
        self, controller: LocalController, items: Sequence[A], event_of: Callable[[Sequence[A]], Event[list[R]]]
    ) -> None:
        self._controller = controller
        self._items = items
        self._event_of = event_of
        self._results: list[R | KafkaError] = []
        self._current: Pending[list[R] | KafkaError] | None = None
        self._reply: Pending[list[R | KafkaError]] = Pending(on_abandon=self._abandon)

    def begin(self) -> Pending[list[R | KafkaError]]:
        """Enters the first event."""
        self._enter_next()
        return self._reply

    def _enter_next(self) -> None:
        first = len(self._results)
        if first == len(self._items):
            self._reply.complete(self._results)
            return
        self._current = enter(self._controller, self._event_of(self._items[first : first + ITEMS_AT_ONCE]))
        self._current.then(self._take)

    def _take(self, outcome: list[R] | KafkaError) -> None:
        if isinstance(outcome, KafkaError):
            self._results += [outcome] * (len(self._items) - len(self._results))
        else:
            self._results += outcome
        self._enter_next()

    def _abandon(self) -> None:
        if self._current is not None:
            self._current.abandon()
