"""Requests and responses between processes, as bytes of the real codec.

How it works: `Peer` keeps one connection to an address, and connects again after a failure. `read_request` and `write_response`
are the listener's side.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from wirekafka.api.produce.messages import ProduceRequest, ProduceResponse
from wirekafka.simulation.events import Process
from wirekafka.simulation.network import Connection, Network
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.alter_partition import ALTER_PARTITION
from wirekafka.wire.messages.api_versions import API_VERSIONS
from wirekafka.wire.messages.controlled_shutdown import CONTROLLED_SHUTDOWN
from wirekafka.wire.messages.fetch import FETCH
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR
from wirekafka.wire.messages.list_offsets import LIST_OFFSETS
from wirekafka.wire.messages.stop_replica import STOP_REPLICA
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA
from wirekafka.wire.messages.write_txn_markers import WRITE_TXN_MARKERS
from wirekafka.wire.requests import A, Q, RequestType, read_correlation_id

PRODUCE = RequestType(0, ProduceRequest, ProduceResponse, range(12), flexible_since=9)

VERSIONS: Mapping[RequestType[Any, Any], int] = {
    PRODUCE: 11,
    FETCH: 17,
    LIST_OFFSETS: 9,
    LEADER_AND_ISR: 7,
    STOP_REPLICA: 4,
    UPDATE_METADATA: 8,
    ALTER_PARTITION: 3,
    CONTROLLED_SHUTDOWN: 3,
    WRITE_TXN_MARKERS: 1,
    API_VERSIONS: 2,
}
"""The versions that brokers and clients of Kafka 3.9 use."""

_TYPES = {each.key: each for each in VERSIONS}
_HEADER = struct.Struct(">ihhih")


class Received(NamedTuple):
    """A request that has arrived.

    Attributes:
        connection: the number of the connection over which it came.
    """

    type: RequestType[Any, Any]
    correlation_id: int
    connection: int
    message: Any


def read_request(frame: memoryview, connection: int) -> Received:
    """Reads a request, with its size and its header."""
    _, key, version, correlation_id, name_bytes = _HEADER.unpack_from(frame)
    found = _TYPES[key]
    is_flexible = found.is_flexible(version)
    body_offset = _HEADER.size + name_bytes + is_flexible
    return Received(found, correlation_id, connection, decode(found.request, version, is_flexible, frame[body_offset:]))


def write_response(received: Received, response: Any) -> bytes:
    """Returns a response without its size, with its header."""
    version = VERSIONS[received.type]
    is_flexible = received.type.is_flexible(version)
    return struct.pack(">i", received.correlation_id) + b"\0" * is_flexible + encode(response, version, is_flexible)


class Peer:
    """A listener that this process sends requests to.

    Args:
        correlation_ids: numbers the requests; the peers of one process may share it.
    """

    def __init__(self, network: Network, process: Process, source: str, target: str, correlation_ids: Iterator[int]) -> None:
        self._network = network
        self._process = process
        self._source = source
        self._target = target
        self._connection: Connection | None = None
        self._correlation_ids = correlation_ids

    def ask(self, type_: RequestType[Q, A], request: Q, then: Callable[[A | None], None], *, timeout_us: int) -> None:
        """Sends a request. `then` receives the response, or None if the outcome is unknown."""
        version = VERSIONS[type_]
        correlation_id = next(self._correlation_ids)
        frame = type_.frame(request, version, correlation_id=correlation_id, client_id=self._process.name)

        def take(response: memoryview | None) -> None:
            if response is None:
                then(None)
                return
            assert read_correlation_id(response) == correlation_id
            then(type_.read_response(response, version))

        if self._connection is None or not self._connection.is_open:
            self._connection = self._network.connect(self._process, self._source, self._target)
        self._connection.ask(frame, take, timeout_us=timeout_us)
