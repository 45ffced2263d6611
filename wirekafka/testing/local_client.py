"""A client without a socket: it asks the APIs of a broker of its own loop, through their codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wirekafka.pending import Pending
from wirekafka.testing.data_plane import Caller, wait_for

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.wire.types import Message


class LocalClient:
    """Asks one broker."""

    def __init__(self, broker: Broker) -> None:
        self._caller = Caller(broker)

    async def ask(self, request: Message, version: int) -> Any:
        """Returns the response.

        Raises:
            KafkaError, ProtocolError: the broker refused the request as a whole.
        """
        self._caller.now_ms = self._caller.broker.clock.now_ms()
        response = self._caller.ask(request, version)
        if isinstance(response, Pending):
            response = await wait_for(response)
        if isinstance(response, Exception):
            raise response
        return response
