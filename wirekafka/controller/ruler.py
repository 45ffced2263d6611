"""The controller of this broker as the handlers of requests see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import Script
from wirekafka.errors import KafkaError

T = TypeVar("T")


class Ruler(Protocol):
    """Handles events if this broker is the active controller; `wirekafka.controller.controller.Controller`."""

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller, as far as it knows."""

    def enter(
        self, event: Callable[[ControllerContext, RequestBatch], Script[T]], end: Callable[[T | KafkaError], object]
    ) -> None:
        """Queues an event.

        Args:
            event: makes the script from what the controller knows, and from the requests to brokers that are sent after the
                script.
            end: receives the result; NOT_CONTROLLER if this broker is not the active controller, or is deposed before the
                script ends.
        """
