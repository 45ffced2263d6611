"""A broker as a member of a cluster, without ZooKeeper and without other brokers: the test is the controller.

async def body(caller: Caller) -> None:
member = join(caller)
member.tell(topic("flights", 0, 2, 3))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import trio

from wirekafka.controller.local_controller import LocalController
from wirekafka.errors import ErrorCode
from wirekafka.membership.topic_waits import TopicWaits
from wirekafka.metadata.image import ClusterImage
from wirekafka.pending import Pending, finish
from wirekafka.replication.controller_order import ControllerOrder
from wirekafka.replication.controller_queue import ControllerQueue
from wirekafka.replication.member_topics import open_member_topics
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import Caller
from wirekafka.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

NODE_ID = 1
BROKER_EPOCH = 100
REPLICAS = (1, 2, 3)


class JoinedMember:
    """The parts of a member that handlers use.

    Attributes:
        asked: the names of the topics that the controller was asked to create.
        refused: the error that it has for each; None for none.
        stored: the settings of topics in ZooKeeper, by name; None while they cannot be read.
    """

    def __init__(self, caller: Caller) -> None:
        broker = caller.broker
        broker.topics.close()
        self.node_id = broker.node_id = NODE_ID
        self.broker_epoch = BROKER_EPOCH
        self.registration = SimpleNamespace(is_present=lambda broker_epoch: broker_epoch == BROKER_EPOCH)
        self.image = ClusterImage()
        self.has_brokers, self.has_image = trio.Event(), trio.Event()
        self.replicas = SimpleNamespace(controller_epoch=0, controller_order=ControllerOrder())
        self.controller_queue = ControllerQueue(broker.slices)
        self.asked: list[str] = []
        self.refused: ErrorCode | None = None
        self.controller_requests = SimpleNamespace(create_topics=self._create_topics)
        self.local_controller: LocalController | None = None
        self.topic_waits = TopicWaits(self.image)
        self.configs = SimpleNamespace(read=self._read)
        self.stored: dict[str, dict[str, str]] | None = {}
        self.topics = open_member_topics(broker.config, self.image)
        broker.topics = cast(Any, self.topics)
        broker.member = cast(Any, self)

    def _read(self, names: Iterable[str], groups: Iterable[str] = ()) -> Pending[object]:
        pending: Pending[object] = Pending()
        for name in names if self.stored is not None else ():
            self.topics.set_overrides(name, self.stored.get(name, {}) if self.stored else {})
        pending.complete(OSError("no ZooKeeper") if self.stored is None else None)
        return pending

    def _create_topics(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        asked = [*names]
        self.asked += asked
        return dict.fromkeys(asked, self.refused or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def tell(self, *topics: UpdateMetadataTopicState, brokers: tuple[int, ...] = REPLICAS, controller_id: int = 2) -> None:
        """Lets the controller send an UpdateMetadata request."""
        finish(self.image.update(update(*topics, brokers=brokers, controller_id=controller_id)))

    def host(self, caller: Caller, topic_id: bytes, name: str, index: int, leader: int = NODE_ID) -> Partition:
        """Makes this broker host a partition, which it commits alone if it leads it."""
        config = self.topics.log_config_of(name)
        partition = Partition.open(caller.broker.logs, name, index, topic_id=topic_id, config=config, leader=leader)
        self.topics.put_hosted(partition)
        return partition


def join(caller: Caller) -> JoinedMember:
    """Makes the broker of a caller a member, which has no topics before the controller tells some."""
    return JoinedMember(caller)


def topic(name: str, *leaders: int, topic_id: bytes | None = None) -> UpdateMetadataTopicState:
    """Returns a topic with a partition for each of the leaders; -1 for a partition without a leader."""
    states = [
        UpdateMetadataPartitionState(
            partition_index=index, leader=leader, leader_epoch=5, isr=[1, 2], zk_version=7, replicas=[*REPLICAS]
        )
        for index, leader in enumerate(leaders)
    ]
    return UpdateMetadataTopicState(
        topic_name=name, topic_id=id_of(name) if topic_id is None else topic_id, partition_states=states
    )


def id_of(name: str) -> bytes:
    """Returns the id that a topic gets of `topic`."""
    return name.encode().ljust(16, b"-")[:16]


def update(
    *topics: UpdateMetadataTopicState,
    brokers: tuple[int, ...] = REPLICAS,
    controller_id: int = 2,
    controller_epoch: int = 1,
    broker_epoch: int = BROKER_EPOCH,
    racks: Mapping[int, str] | None = None,
) -> UpdateMetadataRequest:
    """Returns an UpdateMetadata request; broker N listens at hostN:900N, and broker 3 for its listener INSIDE only."""
    return UpdateMetadataRequest(
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=list(topics),
        live_brokers=[
            UpdateMetadataBroker(
                id=each,
                rack=(racks or {}).get(each),
                endpoints=[
                    UpdateMetadataEndpoint(host=f"host{each}", port=9000 + each, listener="INSIDE" if each == 3 else "PLAINTEXT")
                ],
            )
            for each in brokers
        ],
    )
