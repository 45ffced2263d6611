"""The order of the controller's requests: a request that arrives after a newer one must change nothing.

How it works: a controller sends one request at a time to a broker. If the connection breaks before the answer, the controller
sends the request again over a new connection. The former request may still be on its way, and may arrive after later ones,
because TCP keeps the order within one connection only. LeaderAndIsr is safe: its partitions have leader epochs. UpdateMetadata
is not: its list of live brokers has no epoch, so the older request would bring former brokers back until the next change in the
cluster. The correlation ids of a controller's requests to one broker ascend over all connections, so they tell the order. After
2^31 requests the correlation ids continue with the negative numbers.

The connection of an overtaken request is older than that of the newer request, and its controller has given it up, so it is
closed. If another process has sent a request with too great a correlation id or broker epoch, the controller connects again, and
its requests are taken, because they arrive over the newest connection. A request that were answered by an error instead would be
lost, and so would be all later requests of this controller.

Rules of this file: pure.

Differs from Apache Kafka: its brokers apply requests in the order of their arrival.

Source: kafka.controller.RequestSendThread; org.apache.kafka.clients.NetworkClient.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from wirekafka.errors import ProtocolError
from wirekafka.replication.controller_requests import UNKNOWN_BROKER_EPOCH


class ControllerRequest(Protocol):
    """A LeaderAndIsr, a StopReplica or an UpdateMetadata.

    Attributes:
        broker_epoch: the epoch of this broker's registration, as the controller knew it; -1 if the version has none.
    """

    controller_epoch: int
    broker_epoch: int


class _Taken(NamedTuple):
    """What is known of the newest request.

    Attributes:
        connection: the number of the connection over which it came.
    """

    controller_epoch: int
    broker_epoch: int
    correlation_id: int
    connection: int


class ControllerOrder:
    """The newest request of a controller that this broker has executed."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest = _Taken(-1, UNKNOWN_BROKER_EPOCH, 0, -1)

    def take(self, request: ControllerRequest, correlation_id: int, connection: int) -> bool:
        """Notes a request that the broker is about to execute; returns False if the request is of a deposed controller.

        The correlation ids begin anew with a newer controller epoch, and with a newer registration of this broker.

        Args:
            correlation_id: the one in the header of the request.
            connection: a number that ascends from one accepted connection to the next.

        Raises:
            ProtocolError: the broker has executed a newer request of the same controller, which came over a newer connection.
        """
        newest, broker_epoch = self._newest, request.broker_epoch
        if request.controller_epoch < newest.controller_epoch:
            return False
        if request.controller_epoch == newest.controller_epoch:
            if broker_epoch == UNKNOWN_BROKER_EPOCH:
                broker_epoch = newest.broker_epoch
            is_earlier = broker_epoch < newest.broker_epoch or (
                broker_epoch == newest.broker_epoch and _is_earlier(correlation_id, newest.correlation_id)
            )
            if is_earlier and connection < newest.connection:
                raise ProtocolError("a newer request of the controller has come over another connection")
        self._newest = _Taken(request.controller_epoch, broker_epoch, correlation_id, connection)
        return True


def _is_earlier(correlation_id: int, other_id: int) -> bool:
    """Whether a correlation id of a controller comes before another one; the numbers begin again after 2^32."""
    return 0 < (other_id - correlation_id) % (1 << 32) < 1 << 31
