"""The registry of APIs: the messages, the versions and the handler of each.

How it works: `serves` fills the table as the modules of `wirekafka.api` are imported. Each module is imported when a client first
uses its API. ApiVersions needs the versions before that; it reads them from `index`, which is generated from this table.

Rules of this file: an API is described by `serves` and nowhere else. Dispatch, the README's table and the tests over all versions
read the table, so the advertised versions are the served versions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import count
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from wirekafka.api.cluster_versions import (
    CONTROLLER_REQUESTS,
    MANY_PARTITIONS,
    MANY_REPLICAS,
    MEMBERS_ONLY,
    newest_versions,
    no_features,
)
from wirekafka.api.gated import GATED
from wirekafka.api.index import INDEX
from wirekafka.api.releases import release_versions, releases_of
from wirekafka.config import ConfigError
from wirekafka.errors import KafkaError
from wirekafka.faults import isolate
from wirekafka.metadata.operations import DENIALS, SUPPORTED_OPERATIONS, Operation, Resource
from wirekafka.pending import Pending
from wirekafka.wire.codec import (
    MOST_ELEMENTS,
    MOST_ELEMENTS_OF_A_BROKER,
    MOST_ELEMENTS_OF_A_CONTROLLER,
    MOST_ELEMENTS_OF_ASSIGNMENTS,
    CountingReader,
    CountingWriter,
    Piece,
    Reader,
    StepReader,
    StepWriter,
    Writer,
    counting_reader,
    counting_writer,
    reader,
    step_reader,
    step_writer,
    writer,
)
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.config import BrokerConfig

R = TypeVar("R", bound=Message)

API_VERSIONS_KEY = 18


class Authorizer(Protocol):
    """Decides what principals may do."""

    def is_authorized(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether a principal may do the operation on the resource."""


@dataclass(slots=True, eq=False)
class Client:
    """The client of a connection.

    Attributes:
        host, port: the client's address.
        listener: the name of the listener that it reached.
        local_host, local_port: the address at which the client reached the broker.
        software_name, software_version: the client's software according to its ApiVersions request; empty before it.
        principal: the authenticated principal; `User:ANONYMOUS` without authentication.
        authorizer: decides what the principal may do; None without an authorizer: every principal may do everything.
        on_close: the callbacks for the end of the connection, by their owners; None if there are none.
        shortcuts: the connection's shortcuts; the dispatcher fills and reads them.
        number: ascends from one accepted connection to the next.
    """

    host: str
    port: int
    listener: str
    local_host: str
    local_port: int
    software_name: str | None = None
    software_version: str | None = None
    principal: str = "User:ANONYMOUS"
    authorizer: Authorizer | None = None
    on_close: dict[object, Callable[[], object]] | None = None
    shortcuts: Shortcuts | None = None
    number: int = field(default_factory=count().__next__)

    def is_authorized(self, operation: Operation, resource: Resource) -> bool:
        """Whether the client's principal may do the operation."""
        return self.authorizer is None or self.authorizer.is_authorized(self.principal, operation, resource)

    def authorize(self, operation: Operation, resource: Resource) -> None:
        """Raises unless the client's principal may do the operation.

        Raises:
            KafkaError: TOPIC_, GROUP_, CLUSTER_ or TRANSACTIONAL_ID_AUTHORIZATION_FAILED, by the type of the resource.
        """
        # Not by a call of `is_authorized` where there is no authorizer: each call costs the hot path 0.05 us.
        if self.authorizer is not None and not self.is_authorized(operation, resource):
            raise KafkaError(DENIALS[resource.type])

    def closed(self) -> None:
        """Runs the callbacks after the connection has ended."""
        callbacks, self.on_close = self.on_close, None
        for callback in tuple((callbacks or {}).values()):
            with isolate("A callback for the end of a connection failed", client=self.host):
                callback()


@dataclass(slots=True)
class Call(Generic[R]):
    """One request and its context.

    Attributes:
        request: the decoded message; its `records` are valid until the handler returns.
        version: the API version of the request.
        client_id: the id in the request's header; None if it has none.
        client: the client of the connection.
        now_ms: the time when the request was read.
        correlation_id: the number in the request's header.
    """

    request: R
    version: int
    client_id: str | None
    client: Client
    now_ms: int
    correlation_id: int = 0

    def is_authorized(self, operation: Operation, resource: Resource) -> bool:
        """Whether the client may do the operation; see `Client.is_authorized`."""
        return self.client.is_authorized(operation, resource)

    def authorize(self, operation: Operation, resource: Resource) -> None:
        """Raises unless the client may do the operation; see `Client.authorize`."""
        if self.client.authorizer is not None:
            self.client.authorize(operation, resource)

    def authorized_operations(self, resource: Resource) -> int:
        """Returns the bits of all operations on the resource that the client may do (KIP-430)."""
        supported = SUPPORTED_OPERATIONS[resource.type]
        return sum(1 << operation for operation in supported if self.is_authorized(operation, resource))


Response = Message | list[Piece] | Pending[Any] | None
"""The result of a handler: the response, a Pending of it, or None if the client wants no response (acks=0).

The response is a message, or the pieces of its encoded body, of which the first is bytes.
"""

Handler = Callable[["Broker", Call[Any]], Response]


Encode = Callable[[int, Message], bytes | list[Piece]]
"""Frames a response of a version with a correlation id."""


class Shortcut(Protocol):
    """Answers requests of one connection that begin with the same bytes as an earlier request, except for the correlation id.

    A shortcut checks permissions and finds its partition as the handler does.
    """

    def answer(
        self, client: Client, frame: memoryview, correlation_id: int, now_ms: int
    ) -> bytes | list[Piece] | Pending[Any] | None:
        """Returns the framed response, or a Pending of it. None means that the handler must answer; nothing has changed then."""


Shortcuts = dict[object, dict[int, dict[bytes, Shortcut]]]
"""Shortcuts by the route of their requests, by the size of their heads, and by their heads."""

MakeShortcut = Callable[["Broker", Call[Any], memoryview, Encode], "tuple[int, Shortcut] | None"]
"""Returns, for a request and its frame, the size of the head that other requests must share, and their shortcut; None if such
requests have no shortcut."""


@dataclass(slots=True)
class Api:
    """One API as this broker serves it.

    Attributes:
        key: Kafka's API key.
        name: Kafka's name, such as `OffsetForLeaderEpoch`.
        versions: the served versions, oldest to newest without a gap.
        flexible_since: the first version with compact lengths and tagged fields (KIP-482); None if there is none.
        make_shortcut: makes shortcuts for repeated requests; None if the API has no shortcut.
    """

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    versions: range
    flexible_since: int | None
    handler: Handler
    doc: str
    make_shortcut: MakeShortcut | None = None
    _readers: dict[int, Reader] = field(default_factory=dict)
    _writers: dict[int, Writer] = field(default_factory=dict)

    def is_flexible(self, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields, and request header 2."""
        return self.flexible_since is not None and version >= self.flexible_since

    def has_flexible_response_header(self, version: int) -> bool:
        """Whether the response to `version` has header 1.

        ApiVersions always has header 0, because the client does not know the broker's versions yet (KIP-511).
        """
        return self.is_flexible(version) and self.key != API_VERSIONS_KEY

    def most_elements(self, *, is_member: bool) -> int:
        """Returns the most elements that all arrays of a request may have together.

        Args:
            is_member: whether the broker is a member of a cluster with ZooKeeper.
        """
        if self.key in CONTROLLER_REQUESTS:
            return MOST_ELEMENTS_OF_A_CONTROLLER
        if is_member and self.key in MANY_PARTITIONS:
            return MOST_ELEMENTS_OF_A_BROKER
        return MOST_ELEMENTS_OF_ASSIGNMENTS if is_member and self.key in MANY_REPLICAS else MOST_ELEMENTS

    def handler_on(self, broker: Broker) -> Handler:
        """Returns the function that handles requests: the handler, wrapped by the reply gate if the API is gated."""
        return partial(broker.reply_gate.handle, self.handler) if self.key in GATED else self.handler

    def request_reader(self, version: int) -> Reader:
        """Returns the function that reads the request's body."""
        found = self._readers.get(version)
        if found is None:
            found = self._readers[version] = reader(self.request, version, self.is_flexible(version))
        return found

    def large_request_reader(self, version: int) -> CountingReader:
        """Returns the function that reads the body of a request whose elements must be counted."""
        return counting_reader(self.request, version, self.is_flexible(version))

    def request_step_reader(self, version: int) -> StepReader:
        """Returns the generator that reads the request's body in steps."""
        return step_reader(self.request, version, self.is_flexible(version))

    def response_writer(self, version: int) -> Writer:
        """Returns the function that writes the response's body."""
        found = self._writers.get(version)
        if found is None:
            found = self._writers[version] = writer(self.response, version, self.is_flexible(version))
        return found

    def response_counting_writer(self, version: int) -> CountingWriter:
        """Returns the function that writes the response's body, and takes its elements from a budget."""
        return counting_writer(self.response, version, self.is_flexible(version))

    def response_step_writer(self, version: int) -> StepWriter:
        """Returns the generator that writes the response's body in steps."""
        return step_writer(self.response, version, self.is_flexible(version))


APIS: dict[int, Api] = {}
"""The APIs whose modules are imported, by key."""


def find_api(key: int) -> Api | None:
    """Returns the API with this key, importing its module if necessary; None if the API is not served."""
    if key not in APIS and key in INDEX:
        import_module(f"wirekafka.api.{INDEX[key].module}")
    return APIS.get(key)


def all_apis() -> list[Api]:
    """Returns every served API, by key, from the modules themselves."""
    package = import_module("wirekafka.api")
    for module in walk_packages(package.__path__, "wirekafka.api."):
        import_module(module.name)
    return [api for _, api in sorted(APIS.items())]


def serves(
    key: int,
    request: type[Message],
    response: type[Message],
    *,
    versions: range,
    flexible_since: int | None,
    shortcut: MakeShortcut | None = None,
) -> Callable[[Handler], Handler]:
    """Enters the decorated handler into the table of APIs.

    Args:
        key: Kafka's API key; a second handler for it is a bug.
        versions: oldest to newest, `range(first, last + 1)`.
        flexible_since: the first flexible version; None if no version is flexible.
        shortcut: makes shortcuts past the handler; see `Shortcut`.
    """

    def enter(handler: Handler) -> Handler:
        assert key not in APIS, f"API {key} has two handlers"
        name = request.__name__.removesuffix("Request")
        doc = sys.modules[handler.__module__].__doc__ or ""
        APIS[key] = Api(key, name, request, response, versions, flexible_since, handler, doc, shortcut)
        return handler

    return enter


def serves_type(request_type: RequestType[Any, Any]) -> Callable[[Handler], Handler]:
    """Enters the decorated handler into the table of APIs, for a type of request that brokers send to each other."""
    return serves(
        request_type.key,
        request_type.request,
        request_type.response,
        versions=request_type.versions,
        flexible_since=request_type.flexible_since,
    )


def versions_without_limits(key: int, first: int, last: int, *, newest: Mapping[int, int] | None) -> range:
    """Returns the versions of an API that a broker serves before `wirekafka.api.versions.max`; empty if it serves none.

    A member of a cluster with ZooKeeper serves what Apache Kafka 3.9 serves there, and what finalized features add, and nothing
    newer: clients and brokers must find the same in all brokers of the cluster. Other brokers do not serve the requests between
    brokers.

    Args:
        key: Kafka's API key.
        first, last: the versions that the handler of the API has.
        newest: the newest version of each API of a member; None for a broker without other brokers.
    """
    if newest is not None:
        last = min(last, newest.get(key, -1))
    elif key in MEMBERS_ONLY:
        last = -1
    return range(first, last + 1)


def versions_on(config: BrokerConfig, listener: str, level: Callable[[str], int] = no_features) -> dict[int, range]:
    """Returns the versions of each API, by key, that clients of a listener find: those of its release if it behaves as one.

    Raises:
        ConfigError: as `served_versions`.
    """
    served = served_versions(config, level)
    release = releases_of(config).get(listener)
    if release is None:
        return served
    found = {}
    for key, versions in release_versions()[release].items():
        own = served.get(key, range(0))
        common = range(max(own.start, versions.start), min(own.stop, versions.stop))
        if common:
            found[key] = common
    return found


def served_versions(config: BrokerConfig, level: Callable[[str], int] = no_features) -> dict[int, range]:
    """Returns the versions of each API, by key, that this broker serves, without those that `wirekafka.api.versions.max` hides.

    Args:
        level: returns the finalized level of a feature, by which a member of a cluster serves more.

    Raises:
        ConfigError: the setting names an unknown API, or hides all versions of an API without saying none.
    """
    name = "wirekafka.api.versions.max"
    limits = dict(item.split(":") for item in config.items(name))
    newest = newest_versions(level) if config.is_member else None
    served = {}
    for key, api in INDEX.items():
        limit = limits.pop(api.name, None)
        versions = versions_without_limits(key, api.first, api.last, newest=newest)
        if not versions or (limit == "none" and key != API_VERSIONS_KEY):
            continue
        last = versions[-1] if limit is None else min(versions[-1], int(limit) if limit != "none" else -1)
        if last < api.first:
            raise ConfigError(name, f"{api.name}:{limit}", f"a version from {api.first} to {api.last}")
        served[key] = range(api.first, last + 1)
    if limits:
        names = ", ".join(sorted(api.name for api in INDEX.values()))
        raise ConfigError(name, ",".join(limits), names, "there is no such API")
    return served
