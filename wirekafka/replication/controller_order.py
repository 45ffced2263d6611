"""The order of the controller's requests: a request that arrives after a newer one must change nothing.

How it works: a controller sends one request at a time to a broker. If the connection breaks before the answer, the controller
sends the request again over a new connection. The former request may still be on its way, and may arrive after later ones,
because TCP keeps the order within one connection only. LeaderAndIsr is safe: its partitions have leader epochs. UpdateMetadata
is not: its list of live brokers has no epoch, so the older request would bring former brokers back until the next change in the
cluster. The correlation ids of a controller's requests to one broker ascend over all connections, so they tell the order. After
2^31 requests the correlation ids continue with the negative numbers.

Rules of this file: pure.

Differs from Apache Kafka: its brokers apply requests in the order of their arrival.

Source: kafka.controller.RequestSendThread; org.apache.kafka.clients.NetworkClient.
"""

from __future__ import annotations

from typing import Protocol

from wirekafka.replication.controller_requests import UNKNOWN_BROKER_EPOCH


class ControllerRequest(Protocol):
    """A LeaderAndIsr, a StopReplica or an UpdateMetadata.

    Attributes:
        broker_epoch: the epoch of this broker's registration, as the controller knew it; -1 if the version has none.
    """

    controller_epoch: int
    broker_epoch: int


class ControllerOrder:
    """The newest request of a controller that this broker has executed."""

    __slots__ = ("_newest",)

    def __init__(self) -> None:
        self._newest = (-1, -1, 0)

    def take(self, request: ControllerRequest, correlation_id: int) -> bool:
        """Notes a request that the broker is about to execute; returns False if the broker has executed a newer one.

        The correlation ids begin anew with a newer controller epoch, and with a newer registration of this broker.

        Args:
            correlation_id: the one in the header of the request.
        """
        newest_controller_epoch, newest_broker_epoch, newest_id = self._newest
        broker_epoch = request.broker_epoch
        if broker_epoch == UNKNOWN_BROKER_EPOCH and request.controller_epoch == newest_controller_epoch:
            broker_epoch = newest_broker_epoch
        times, newest_times = (request.controller_epoch, broker_epoch), (newest_controller_epoch, newest_broker_epoch)
        if times < newest_times or (times == newest_times and _is_earlier(correlation_id, newest_id)):
            return False
        self._newest = *times, correlation_id
        return True


def _is_earlier(correlation_id: int, other_id: int) -> bool:
    """Whether a correlation id of a controller comes before another one; the numbers begin again after 2^32."""
    return 0 < (other_id - correlation_id) % (1 << 32) < 1 << 31
