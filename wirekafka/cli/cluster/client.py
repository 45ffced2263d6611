"""A client of a cluster for the command line: it asks brokers one request after the other, over plain sockets.

How it works: the first request finds a broker that answers. Metadata has the addresses of all brokers. Each broker gets one
connection, when it is first asked. ApiVersions decides the version of each request.

Rules of this file:
    Every connection and every request has a time limit. A lost connection is opened once more for each request.
    A broker is not trusted: a response has at most `MOST_RESPONSE_BYTES`, and takes memory only for the bytes that have arrived.
    Every failure is a ClusterCommandError that names the address and the next step.

Source: org.apache.kafka.clients.admin.KafkaAdminClient.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from wirekafka.api.metadata import MetadataRequest, MetadataResponse
from wirekafka.api.registry import APIS
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.wire.messages.api_versions import API_VERSIONS, ApiVersionsRequest
from wirekafka.wire.requests import RequestType, read_correlation_id
from wirekafka.wire.types import Message

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

CLIENT_ID = "wirekafka-cluster"
MOST_RESPONSE_BYTES = 100 << 20
"""The largest response, as in librdkafka (receive.message.max.bytes)."""
RECEIVED_AT_ONCE = 1 << 20
DEFAULT_PORT = 9092
SECONDS_FOR_A_CONTROLLER = 15.0
"""How long a request to the controller is repeated while the cluster elects another controller."""
RETRY_SECONDS = 0.5

_SIZE = struct.Struct(">i")


class UnreachableError(ClusterCommandError):
    """A broker does not answer."""


class UnsupportedRequestError(ClusterCommandError):
    """A broker serves no version of a request that wirekafka knows."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> list[Address]:
    """Returns the addresses of `--bootstrap-server`.

    Raises:
        ClusterCommandError: an address is malformed.
    """
    addresses = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        host, colon, port = item.rpartition(":")
        if not colon or item.endswith("]"):
            host, port = item, str(DEFAULT_PORT)
        if not host or "/" in item or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ClusterCommandError(f"--bootstrap-server {item}: accepted is HOST:PORT, such as localhost:9092")
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise ClusterCommandError("--bootstrap-server: accepted is HOST:PORT, such as localhost:9092")
    return addresses


def request_type(request: type[Q], response: type[A]) -> RequestType[Q, A]:
    """Returns the type of a request that the broker of this package serves too, whose module is imported."""
    api = next(api for api in APIS.values() if api.request is request)
    return RequestType(api.key, request, response, api.versions, api.flexible_since)


class Connection:
    """A connection to one broker.

    Args:
        timeout_s: the time limit of the connection attempt and of each request.

    Raises:
        UnreachableError: the broker does not accept the connection, or does not tell its versions.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._last_correlation_id = 0
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except (OSError, UnicodeError) as error:
            raise UnreachableError(
                f"{address} cannot be reached ({error or type(error).__name__}): start the broker, or correct the address"
            ) from None
        try:
            response = self.send(API_VERSIONS, ApiVersionsRequest(), 0)
        except UnreachableError:
            self._socket.close()
            raise
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def ask(self, kind: RequestType[Q, A], request: Q) -> A:
        """Sends a request in the newest version that both sides have; returns the response.

        Raises:
            UnreachableError: the broker does not answer in time, closes the connection, or sends no such response.
            UnsupportedRequestError: there is no common version.
        """
        first, last = self._versions.get(kind.key, (0, -1))
        version = kind.newest_common_version(first, last)
        if version is None:
            raise UnsupportedRequestError(f"{self.address} does not serve {kind.name}: the broker is too old for this command")
        return self.send(kind, request, version)

    def send(self, kind: RequestType[Q, A], request: Q, version: int) -> A:
        """Sends a request; returns the response.

        Raises:
            UnreachableError: as `ask`.
        """
        correlation_id = self._last_correlation_id = self._last_correlation_id + 1
        deadline = time.monotonic() + self._timeout_s
        try:
            self._set_timeout(deadline)
            self._socket.sendall(kind.frame(request, version, correlation_id=correlation_id, client_id=CLIENT_ID))
            frame = self._receive_frame(deadline)
            if read_correlation_id(frame) != correlation_id:
                raise ProtocolError("the response belongs to another request")
            return kind.read_response(frame, version)
        except TimeoutError:
            reason = f"does not answer {kind.name} within {self._timeout_s:g} s: look at its log, or raise --timeout"
        except EOFError:
            reason = f"has closed the connection at {kind.name}: look at its log; the listener must be PLAINTEXT"
        except ProtocolError as error:
            reason = f"sends no response of Kafka ({error}): correct the address; the listener must be PLAINTEXT"
        except OSError as error:
            reason = f"cannot be asked for {kind.name} any more ({error}): look at its log"
        raise UnreachableError(f"{self.address} {reason}")

    def _receive_frame(self, deadline: float) -> memoryview:
        """Receives a response without its size.

        Raises:
            OSError, EOFError: the connection is lost.
            TimeoutError: the deadline is over.
            ProtocolError: the size is not allowed.
        """
        [size] = _SIZE.unpack(self._receive(_SIZE.size, deadline))
        if not 0 < size <= MOST_RESPONSE_BYTES:
            raise ProtocolError(f"a response of {size} bytes")
        return memoryview(self._receive(size, deadline))

    def _receive(self, size: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            self._set_timeout(deadline)
            part = self._socket.recv(min(size - len(received), RECEIVED_AT_ONCE))
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


class ClusterClient:
    """A client of a whole cluster; a with-block closes its connections.

    Args:
        bootstrap: addresses of brokers, of which one has to answer.
        timeout_s: the time limit of each connection attempt and each request.
        sleep: waits between two attempts to find a controller.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(
        self, bootstrap: list[Address], timeout_s: float = 10.0, *, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._addresses: dict[int, Address] = {}
        self._controller_id = -1
        self._connections: dict[int | None, Connection] = {}
        """The connections by broker id; that of None is the one to an address of `bootstrap`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for connection in self._connections.values():
            connection.close()

    def metadata(self, *, has_topics: bool = True) -> MetadataResponse:
        """Asks for the brokers, and for all topics.

        Raises:
            UnreachableError: no broker answers.
        """
        request = MetadataRequest(topics=None if has_topics else [], allow_auto_topic_creation=False)
        response = self.ask(request_type(MetadataRequest, MetadataResponse), request)
        self._addresses = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        self._controller_id = response.controller_id
        return response

    def ask(self, kind: RequestType[Q, A], request: Q, broker_id: int | None = None) -> A:
        """Asks a broker that `metadata` has found, or any broker if the id is None.

        Raises:
            UnreachableError: the broker does not answer.
            UnsupportedRequestError: the broker does not serve the request.
        """
        is_new = broker_id not in self._connections
        try:
            return self._connection(broker_id).ask(kind, request)
        except UnreachableError:
            self._drop(broker_id)
            if is_new:
                raise
        try:
            return self._connection(broker_id).ask(kind, request)
        except UnreachableError:
            self._drop(broker_id)
            raise

    def ask_controller(self, kind: RequestType[Q, A], request: Q, error_of: Callable[[A], int]) -> A:
        """Asks the controller, and looks for it again while a broker answers NOT_CONTROLLER or does not answer.

        Args:
            error_of: returns the error code of a response.

        Raises:
            UnreachableError: no controller answers.
            UnsupportedRequestError: the controller does not serve the request.
        """
        deadline = time.monotonic() + SECONDS_FOR_A_CONTROLLER
        while True:
            failure = "the cluster has no controller"
            if self._controller_id in self._addresses:
                try:
                    response = self.ask(kind, request, self._controller_id)
                except UnreachableError as error:
                    failure = str(error)
                else:
                    if error_of(response) != ErrorCode.NOT_CONTROLLER:
                        return response
                    failure = f"broker {self._controller_id} is not the controller any more"
            if time.monotonic() > deadline:
                raise UnreachableError(
                    "no controller answers: look at ZooKeeper, without which there is none, and at the logs of the brokers. The "
                    f"last failure: {failure}"
                )
            self._sleep(RETRY_SECONDS)
            self.metadata(has_topics=False)

    def _connection(self, broker_id: int | None) -> Connection:
        found = self._connections.get(broker_id)
        if found is None:
            found = self._connections[broker_id] = self._connect(broker_id)
        return found

    def _connect(self, broker_id: int | None) -> Connection:
        if broker_id is not None:
            if broker_id not in self._addresses:
                raise UnreachableError(f"broker {broker_id} is not registered: start it")
            try:
                return Connection(self._addresses[broker_id], self._timeout_s)
            except UnreachableError as error:
                raise UnreachableError(f"broker {broker_id} at {error}") from None
        failures = []
        for address in dict.fromkeys([*self._bootstrap, *self._addresses.values()]):
            try:
                return Connection(address, self._timeout_s)
            except UnreachableError as error:
                failures.append(str(error))
        raise UnreachableError("no broker answers: " + "; ".join(failures[: len(self._bootstrap)]))

    def _drop(self, broker_id: int | None) -> None:
        connection = self._connections.pop(broker_id, None)
        if connection is not None:
            connection.close()
