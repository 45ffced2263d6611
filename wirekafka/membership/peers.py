"""The connections to the other brokers of the cluster, whose addresses come from the metadata image.

Rules of this file: the address of a broker is looked up at each attempt to connect, because a broker may return at another
address. The caller of `connect` and of `fetcher_channel` closes the connection.

Source: kafka.server.MetadataCache.getAliveBrokerNode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from wirekafka.metadata.image import ClusterImage
from wirekafka.replication.replica_fetcher import Channel

Address = Callable[[], "tuple[str, int] | None"]
"""Returns the host and the port of a broker, which may change; None while it is unknown."""

MOST_RESPONSE_BYTES = 100 << 20
"""The largest response that is not to a fetcher. Responses without records are far smaller."""


class OpenConnection(Protocol):
    """Returns a connection to a broker, as `server.peers.PeerConnections.open` does."""

    def __call__(self, address: Address, client_id: str, timeout_ms: int, most_response_bytes: int) -> Channel:
        """Returns a connection, which connects when a request is sent."""


class Peers:
    """Connects to the other brokers.

    Args:
        listener_name: the listener of the other brokers; `inter.broker.listener.name`.
        timeout_ms: how long a request may take, except those of a fetcher; `controller.socket.timeout.ms`.
        fetch_timeout_ms: how long a request of a fetcher may take; `replica.socket.timeout.ms`.
        most_fetched_bytes: the largest answer to a fetcher: one batch may be larger than `replica.fetch.response.max.bytes`, up
            to the `socket.request.max.bytes` of the leader, which is taken to be that of this broker.
    """

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        open_connection: OpenConnection,
        *,
        listener_name: str,
        timeout_ms: int = 30_000,
        fetch_timeout_ms: int = 30_000,
        most_fetched_bytes: int = (10 << 20) + (100 << 20),
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._open_connection = open_connection
        self._listener_name = listener_name
        self._timeout_ms = timeout_ms
        self._fetch_timeout_ms = fetch_timeout_ms
        self._most_fetched_bytes = most_fetched_bytes

    def address_of(self, broker_id: int) -> tuple[str, int] | None:
        """Returns the host and the port of a broker; None if it is not registered, or does not have the listener."""
        broker = self._image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoints.get(self._listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def connect(self, broker_id: int, purpose: str) -> Channel:
        """Returns a new connection to a broker.

        Args:
            purpose: becomes a part of the client id, by which the operator of the other broker recognizes the connection.
        """
        return self._open(broker_id, purpose, self._timeout_ms, MOST_RESPONSE_BYTES)

    def fetcher_channel(self, broker_id: int, number: int) -> Channel:
        """Returns a new connection for the fetcher with this number."""
        return self._open(broker_id, f"fetcher-{number}", self._fetch_timeout_ms, self._most_fetched_bytes)

    def _open(self, broker_id: int, purpose: str, timeout_ms: int, most_response_bytes: int) -> Channel:
        client_id = f"broker-{self._node_id}-{purpose}"
        return self._open_connection(partial(self.address_of, broker_id), client_id, timeout_ms, most_response_bytes)
