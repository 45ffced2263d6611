"""Clients that have asked for Metadata, and have not come to the address that they were told.

How it works: the clients of Apache Kafka connect to a bootstrap address, ask for Metadata, and then send all that matters to
advertised addresses. A client that cannot reach these does nothing more, or asks for Metadata again and again. If a client sends
nothing else within `RETURN_SECONDS`, the log gets one line.

Rules of this file:
    Only clients that have reached the broker at another address than the advertised one are awaited, and only if they ask for
    topics that exist. In a cluster nothing is told, because the clients may have gone to another broker.
    A client is its host and its client id. Memory: at most `MOST_AWAITED` and `MOST_RETURNED` of them.
    A request costs nothing more while no client is awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wirekafka.broker import is_loopback
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.api.registry import Call, Client, Handler, Response
    from wirekafka.broker import Broker
    from wirekafka.clock import Timer

RETURN_SECONDS = 30
MOST_AWAITED = 1000
MOST_RETURNED = 1000

BOOTSTRAP_APIS = frozenset({3, 10, 18, 60, 71})
"""The APIs that clients send to bootstrap addresses: Metadata, FindCoordinator (librdkafka), ApiVersions, DescribeCluster,
GetTelemetrySubscriptions."""

Name = tuple[str, str | None]
"""The host of a client, and its client id."""


@dataclass(slots=True)
class _Awaited:
    """One client.

    Attributes:
        client: the connection that asked for Metadata.
        has_asked_again: it has asked on another connection since; otherwise the end of the connection is that of the client.
    """

    client: Client
    timer: Timer
    is_open: bool = True
    has_asked_again: bool = False


class AwaitedClients:
    """The clients of one broker that are awaited.

    Args:
        is_at_work: whether requests from a host were answered without their handlers.

    Attributes:
        by_name: the awaited clients. It stays the same dict.
    """

    def __init__(self, broker: Broker, is_at_work: Callable[[str], bool]) -> None:
        self.by_name: dict[Name, _Awaited] = {}
        self._broker = broker
        self._is_at_work = is_at_work
        self._returned: dict[Name, None] = {}

    def watching(self, handler: Handler) -> Handler:
        """Returns the handler of Metadata, which awaits the clients then."""
        return partial(self._handle, handler)

    def note_request(self, api_key: int, client: Client, client_id: str | None) -> None:
        """Notes a request. After any request that clients do not send to a bootstrap address, the client is not awaited."""
        name = client.host, client_id
        if api_key in BOOTSTRAP_APIS or name not in self.by_name:
            return
        self.by_name.pop(name).timer.cancel()
        if len(self._returned) >= MOST_RETURNED:
            del self._returned[next(iter(self._returned))]
        self._returned[name] = None

    def _handle(self, handler: Handler, broker: Broker, call: Call[Any]) -> Response:
        response = handler(broker, call)
        if broker.member is not None or not call.request.topics:
            return response

        def seen(answer: Any) -> Any:
            if any(not topic.error_code for topic in getattr(answer, "topics", ())):
                self._await(call.client, call.client_id)
            return answer

        return response.map(seen) if isinstance(response, Pending) else seen(response)

    def _await(self, client: Client, client_id: str | None) -> None:
        name = client.host, client_id
        awaited = self.by_name.get(name)
        if awaited is not None:
            awaited.has_asked_again = awaited.has_asked_again or awaited.client is not client
            return
        if name in self._returned or self._is_there(client) or len(self.by_name) >= MOST_AWAITED:
            return
        timer = self._broker.clock.call_later(RETURN_SECONDS * 1000, partial(self._tell, name))
        self.by_name[name] = awaited = _Awaited(client, timer)
        client.on_close = client.on_close or {}
        client.on_close[self] = partial(setattr, awaited, "is_open", False)

    def _is_there(self, client: Client) -> bool:
        """Whether the client has reached the advertised address already."""
        host, port = self._broker.advertised_address(client)
        is_same_host = host == client.local_host or (is_loopback(host) and is_loopback(client.local_host))
        return is_same_host and port == client.local_port

    def _tell(self, name: Name) -> None:
        awaited = self.by_name.pop(name)
        client, (_, client_id) = awaited.client, name
        has_ended = not awaited.is_open and not awaited.has_asked_again
        if has_ended or self._is_at_work(client.host):
            return
        host, port = self._broker.advertised_address(client)
        self._broker.troubles.tell(
            client,
            client_id,
            f"The client was told by Metadata to connect to {host}:{port}, and has not come back for {RETURN_SECONDS} s",
            "If the client cannot reach this address, set advertised.listeners (or --advertise) to one that it can reach",
            is_certain=False,
        )
