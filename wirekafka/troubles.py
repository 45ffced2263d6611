"""The reasons why clients fail, logged once for each client and reason, in one line with the remedy.

Rules of this file:
    A line says what the client does, and what the operator or the author of the client can change.
    Memory is bounded, and so are the lines that one host causes: of each kind of trouble, a host gets `MOST_OF_A_KIND` lines.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from wirekafka.errors import ProtocolError, RepeatedError

log = structlog.get_logger(__name__)

MOST_KINDS = 500
"""The kinds of trouble, by host, that are kept. One more replaces the oldest, which is then told again."""

MOST_OF_A_KIND = 20
"""The clients and subjects of one kind of trouble that a host is told about. Client ids and topics are chosen by clients."""

MOST_NAME_CHARS = 100
"""The part of a client id that a line contains."""

ZOOKEEPER_CLIENT = "the client speaks ZooKeeper's protocol, and this is a Kafka broker: give it --bootstrap-server"


class Client(Protocol):
    """The properties of a client that a line names."""

    host: str
    port: int


class ClientTroubles:
    """The troubles that the log has already."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], set[tuple[str | None, str]]] = {}
        """The client ids and subjects that were told, by host and kind; the oldest kind first.

        Invariant: at most `MOST_KINDS` of at most `MOST_OF_A_KIND`.
        """

    def tell(
        self, client: Client, client_id: str | None, reason: str, remedy: str, *, subject: str = "", is_certain: bool = True
    ) -> None:
        """Logs why a client fails, unless the log has the same trouble of this client.

        Args:
            client_id: the id in the header of the request; None if it is unknown.
            reason: what is wrong; it may have numbers that differ from time to time.
            remedy: what to change.
            subject: what the trouble is about, such as the error and a partition.
            is_certain: False if the client may be content.
        """
        if self.is_new(client.host, remedy, client_id, subject):
            write = log.warning if is_certain else log.info
            client_name = f"{client.host}:{client.port}"
            write("A client fails", client=client_name, client_id=short_name(client_id), reason=reason, remedy=remedy)

    def refusal(self, client: Client, reason: str, client_id: str | None = None, remedy: str | None = None) -> ProtocolError:
        """Returns the error that ends a connection; a `RepeatedError` if the log has this reason for this client already."""
        kind = ProtocolError if self.is_new(client.host, reason, client_id) else RepeatedError
        text = reason if client_id is None else f"{reason} (client id {short_name(client_id)!r})"
        return kind(text if remedy is None else f"{text}. {remedy}")

    def is_new(self, host: str, kind: str, client_id: str | None, subject: str = "") -> bool:
        """Stores a trouble; returns False if it was stored before, or if the host has too many of its kind."""
        told = self._told.get((host, kind))
        if told is None:
            if len(self._told) >= MOST_KINDS:
                del self._told[next(iter(self._told))]
            told = self._told[host, kind] = set()
        what = short_name(client_id), subject
        if what in told or len(told) >= MOST_OF_A_KIND:
            return False
        told.add(what)
        return True


def short_name(client_id: str | None) -> str | None:
    """Returns a client id for a log line; the rest of a long one is left out."""
    return client_id if client_id is None or len(client_id) <= MOST_NAME_CHARS else f"{client_id[:MOST_NAME_CHARS]}..."
