"""What coordinators need of the cluster: the leaders of partitions, and connections to the other brokers.

Source: kafka.server.MetadataCache, org.apache.kafka.server.util.InterBrokerSendThread.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate, log_once
from wirekafka.metadata.image import ClusterImage
from wirekafka.names import TopicPartition
from wirekafka.replication.replica_fetcher import Channel, Timers
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

T = TypeVar("T")
Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class Peers(Protocol):
    """Connects to the other brokers; `wirekafka.membership.peers.Peers`."""

    def connect(self, broker_id: int, purpose: str) -> Channel:
        """Returns a new connection to a broker, which its caller closes."""


class CoordinatorCluster:
    """The cluster, as the coordinators of one broker use it.

    Args:
        is_hosted: whether this broker has a replica of a partition in a directory that can be used.
        verifies_transactions: whether all brokers serve AddPartitionsToTxn 4, which verifies partitions (release 3.5 and later).
        create_topic: asks the controller for a topic in which coordinators keep their state.

    Attributes:
        node_id: the id of this broker.
        create_topic: see above.
    """

    def __init__(
        self,
        node_id: int,
        image: ClusterImage,
        peers: Peers,
        *,
        is_hosted: Callable[[TopicPartition], bool],
        verifies_transactions: bool = True,
        create_topic: Callable[[str], object] = lambda name: None,
    ) -> None:
        self.node_id = node_id
        self.create_topic = create_topic
        self.verifies_transactions = verifies_transactions
        self._image = image
        self._is_hosted = is_hosted
        self._peers = peers
        self._queues: list[PeerQueues[Any, Any, Any]] = []
        image.on_brokers_change.append(self._drop_queues)

    def partition_count(self, topic: str) -> int | None:
        """Returns the partition count of a topic; None if it is unknown."""
        return self._image.partition_count(topic)

    def knows_topics(self) -> bool:
        """Whether a controller has told this broker all topics since the broker started."""
        return self._image.whole_epoch is not None

    def leader_of(self, partition: TopicPartition) -> int:
        """Returns the id of the broker that leads a partition, and is alive.

        A partition that the image lacks was deleted only if the image has all topics. Otherwise it may be new: this broker may
        host it before the controller tells the image of it.

        Raises:
            KafkaError: LEADER_NOT_AVAILABLE; UNKNOWN_TOPIC_OR_PARTITION, the partition was deleted.

        Source: TransactionMarkerChannelManager.addTxnMarkersToBrokerQueue, MetadataCache.getPartitionLeaderEndpoint.
        """
        found = self._image.find_partition(*partition)
        if found is None:
            is_deleted = self._image.has_all_topics and not self._is_hosted(partition)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_deleted else ErrorCode.LEADER_NOT_AVAILABLE)
        if found.leader != self.node_id and found.leader not in self._image.brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return found.leader

    def open_queues(self, purpose: str, make: Callable[[Channel], PeerQueue[T, Q, A]]) -> PeerQueues[T, Q, A]:
        """Returns the queues to all brokers for one purpose, which `close` closes.

        Args:
            purpose: see `Peers.connect`.
            make: returns a queue that uses a connection.
        """
        queues = PeerQueues(lambda broker_id: make(self._peers.connect(broker_id, purpose)))
        self._queues.append(queues)
        return queues

    def _drop_queues(self) -> None:
        for queues in self._queues:
            queues.drop_all_except(self._image.brokers)

    def close(self) -> None:
        """Closes all queues and their connections. Later items are dropped."""
        for queues in self._queues:
            queues.close()


class PeerQueues(Generic[T, Q, A]):
    """The queues to the other brokers for one purpose, each over a connection of its own.

    The first item for a broker opens its queue, and the queue is dropped when the broker leaves the cluster. So a broker that has
    left takes no memory, and no item waits for the response of a broker that has failed.

    Args:
        open_queue: returns a queue to a broker.
    """

    def __init__(self, open_queue: Callable[[int], PeerQueue[T, Q, A]]) -> None:
        self._open_queue = open_queue
        self._by_broker: dict[int, PeerQueue[T, Q, A]] = {}
        self._is_closed = False

    def put(self, broker_id: int, item: T) -> None:
        """Sends an item to a broker; does nothing after `close`."""
        if self._is_closed:
            return
        queue = self._by_broker.get(broker_id)
        if queue is None:
            queue = self._by_broker[broker_id] = self._open_queue(broker_id)
        queue.put(item)

    def drop_all_except(self, live_brokers: Container[int]) -> None:
        """Closes the queues to brokers that are not alive. Their items end without a response, in later turns of the loop."""
        for broker_id in [each for each in self._by_broker if each not in live_brokers]:
            self._by_broker.pop(broker_id).give_up()

    def close(self) -> None:
        """Closes all queues, and drops their items. `take` is not called any more."""
        self._is_closed = True
        for queue in self._by_broker.values():
            queue.close()


class PeerQueue(Generic[T, Q, A]):
    """Items for one broker. A request has many of them, and one request is in flight at a time.

    Args:
        version: the version of the requests, or a function that returns the version of the next one.
        most_items: the most items in one request.
        build: returns the request for some items.
        take: called with these items and the response; None if the broker did not answer.

    Invariant: while items wait, a request is in flight or a timer to send it is set. After `close` no item waits.
        After `give_up` the items end in later turns, and no item may be put.
    """

    def __init__(
        self,
        channel: Channel,
        timers: Timers,
        kind: RequestType[Q, A],
        version: int | Callable[[], int],
        *,
        most_items: int,
        build: Callable[[list[T]], Q],
        take: Callable[[list[T], A | None], object],
    ) -> None:
        self._channel = channel
        self._timers = timers
        self._kind = kind
        self._version = version if callable(version) else lambda: version
        self._most_items = most_items
        self._build = build
        self._take = take
        self._items: list[T] = []
        self._in_flight: list[T] = []
        self._is_busy = False
        self._is_closed = False

    def put(self, item: T) -> None:
        """Sends an item, at the end of this turn of the loop or after the response to the request in flight."""
        if not self._is_closed:
            self._items.append(item)
            self._send_soon()

    def close(self) -> None:
        """Closes the connection, and drops the items. `take` is not called any more."""
        self._is_closed = True
        self._items.clear()
        self._in_flight = []
        self._channel.close()

    def give_up(self) -> None:
        """Ends the connection; all items end without a response, `most_items` in each turn of the loop."""
        self._is_closed = True
        self._items[:0], self._in_flight = self._in_flight, []
        self._channel.close()
        self._timers.call_later(0, self._end_next)

    def _end_next(self) -> None:
        items = self._take_items()
        if items:
            self._timers.call_later(0, self._end_next)
            with isolate("Items for a broker that has left could not be ended", request=self._kind.name):
                self._take(items, None)

    def _take_items(self) -> list[T]:
        items = self._items[: self._most_items]
        del self._items[: self._most_items]
        return items

    def _send_soon(self) -> None:
        if self._items and not self._is_busy:
            self._is_busy = True
            self._timers.call_later(0, self._send)

    def _send(self) -> None:
        if self._is_closed:
            return
        items = self._in_flight = self._take_items()
        try:
            self._channel.send(self._kind, self._build(items), self._version(), partial(self._end, items))
        except Exception as error:  # noqa: BLE001 - a request that cannot be written must not hold the next items
            log_once(error, "A request to another broker could not be written", request=self._kind.name)
            self._end(items, None)

    def _end(self, items: list[T], response: A | None) -> None:
        if self._is_closed:
            return
        self._is_busy, self._in_flight = False, []
        with isolate("A response of another broker could not be handled", request=self._kind.name):
            self._take(items, response)
        self._send_soon()


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the indexes of partitions by their topic."""
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return indexes
