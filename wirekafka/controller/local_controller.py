"""The controller of this broker as the handlers of requests see it: the port through which they give it events.

`controller.py` implements the port. A handler asks `is_active` first, because another broker may be the controller. The requests
to that other broker are in `membership/controller_requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import Script
from wirekafka.errors import KafkaError

T = TypeVar("T")

Event = Callable[[ControllerContext, RequestBatch], Script[T]]
"""Makes the script of an event. Its arguments are what the controller knows, and the requests that are sent after the script."""


class LocalController(Protocol):
    """The controller of this broker, which handles events if it is the active one; `controller.Controller` implements it."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller, as far as it knows."""

    def enter(self, event: Event[T], end: Callable[[T | KafkaError], object]) -> Callable[[], object]:
        """Queues an event; returns what removes it if it has not begun, without a result.

        Args:
            end: receives the result, or the error of the script; NOT_CONTROLLER if this broker is not the active controller, or
                is deposed before the script ends.
        """

    @property
    def is_idle(self) -> bool:
        """Whether no event is in progress, and all brokers have answered all requests."""

    def close(self) -> None:
        """Ends the competition, or the rule, and the connections to the brokers. The session decides when another one begins."""
