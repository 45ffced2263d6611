"""The requests of a broker to the controller of the cluster, whichever broker that is.

How it works: the broker learns the id of the controller from the znode /controller and from UpdateMetadata, and uses the newest
one. AlterPartition has a `ControllerChannel` of its own, so that a request that the controller answers late, such as a
CreateTopics, delays no change of in-sync replicas.

Source: kafka.server.MetadataCacheControllerNodeProvider, kafka.server.KafkaServer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode
from wirekafka.membership.alter_partition_sender import AlterPartitionSender
from wirekafka.membership.controlled_shutdown import hand_over
from wirekafka.membership.controller_channel import ControllerChannel
from wirekafka.membership.peers import Peers
from wirekafka.membership.producer_id_blocks import ControllerBlocks, ProducerIdBlocks
from wirekafka.membership.topic_creation import TopicCreation
from wirekafka.metadata.image import ClusterImage
from wirekafka.replication.replica_fetcher import Timers
from wirekafka.wire.messages.controlled_shutdown import ControlledShutdownRequest
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


class ControllerRequests:
    """The requests of this broker to the controller of the cluster.

    Attributes:
        broker_id: the broker that is the controller; None if it is unknown.
        alter_partition: proposes changes of in-sync replicas.
        producer_ids: gives producer ids, as `metadata.producer_ids.ProducerIds` does without a cluster.

    Args:
        broker_epoch: returns the epoch of this broker's registration; -1 while it is not registered.
    """

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        peers: Peers,
        timers: Timers,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._image = image
        self._peers = peers
        self._timers = timers
        self.broker_id = self._image_controller_id = image.controller_id
        """The second is the id in the last UpdateMetadata. Only a change of that id replaces the id of /controller."""
        self._is_registered = True
        """Whether there is a controller, by the newest of /controller and UpdateMetadata."""
        self._channels: list[ControllerChannel] = []
        image.on_brokers_change.append(self._take_image)
        self._forwarding = self._open_channel("to-controller-forwarding", config.integer("request.timeout.ms"))
        blocks = ControllerBlocks(self._forwarding.send, node_id=node_id, broker_epoch=broker_epoch)
        self.producer_ids = ProducerIdBlocks(blocks.request, timers)
        self._topic_creation = TopicCreation(config, self._forwarding.send)
        self.alter_partition = AlterPartitionSender(
            self._open_channel("to-controller-alter-partition", None), timers, node_id=node_id, broker_epoch=broker_epoch
        )

    def set_controller(self, broker_id: int | None) -> None:
        """Says which broker is the controller, for example by the znode /controller.

        Args:
            broker_id: None if the znode does not exist; then the id in the last UpdateMetadata counts, which may be newer.
        """
        self._is_registered = broker_id is not None
        self.broker_id = self._image_controller_id if broker_id is None else broker_id
        for channel in self._channels:
            channel.note_controller()

    def _take_image(self) -> None:
        if self._image.controller_id != self._image_controller_id:
            self._image_controller_id = self._image.controller_id
            self.set_controller(self._image_controller_id)

    def send(self, kind: RequestType[Q, A], build: Callable[[int], Q], on_end: Callable[[A | None], object]) -> None:
        """Sends a request, and repeats it for `request.timeout.ms`; see `ControllerChannel.send`."""
        self._forwarding.send(kind, build, on_end)

    def create_topics(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        """Asks for topics that clients need; returns the error that the client gets for each, see `TopicCreation.create`."""
        return self._topic_creation.create(names)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> bool:
        """Asks the controller to move all leaderships of this broker away; returns whether it has moved all of them.

        Cancellation: the controller may still move leaderships.
        """
        return await hand_over(
            partial(self._peers.connect, purpose="controlled-shutdown"),
            lambda: self.broker_id if self._is_registered else None,
            lambda: self._image.brokers.keys() != {broker_id},
            ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch),
            attempt_count=self._config.integer("controlled.shutdown.max.retries"),
            back_off_ms=self._config.integer("controlled.shutdown.retry.backoff.ms"),
        )

    def close(self) -> None:
        """Closes the connections. The callbacks of unfinished requests are not called."""
        for channel in self._channels:
            channel.close()

    def _open_channel(self, purpose: str, retry_timeout_ms: int | None) -> ControllerChannel:
        connect = partial(self._peers.connect, purpose=purpose)
        channel = ControllerChannel(connect, lambda: self.broker_id, self._timers, retry_timeout_ms=retry_timeout_ms)
        self._channels.append(channel)
        return channel
