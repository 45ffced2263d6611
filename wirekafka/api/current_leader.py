"""The leader that a response names when this broker does not lead a partition, so that the client need not ask for metadata.

Source: KIP-951; KafkaApis.getCurrentLeader of Apache Kafka 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wirekafka.errors import KafkaError
from wirekafka.names import NO_LEADER_EPOCH, NO_LEADER_ID

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member
    from wirekafka.metadata.image import Node
    from wirekafka.replication.partition import Partition


class CurrentLeader(NamedTuple):
    """The leader of a partition, -1 if it is unknown; `node` is None if the client cannot reach the leader."""

    leader_id: int
    leader_epoch: int
    node: Node | None


UNKNOWN = CurrentLeader(NO_LEADER_ID, NO_LEADER_EPOCH, None)


def current_leader(broker: Broker, member: Member, listener: str, topic: str, index: int) -> CurrentLeader:
    """Returns the leader of a partition: as the controller told this broker's replica, or else by the image of the cluster.

    Args:
        listener: the name of the client's listener.
    """
    try:
        partition: Partition = broker.topics.find_partition(topic, index)
    except KafkaError:
        return UNKNOWN
    if partition.is_hosted:
        leader_id, leader_epoch = partition.leader, partition.leader_epoch
    else:
        state = member.image.find_partition(topic, index)
        if state is None:
            return UNKNOWN
        leader_id, leader_epoch = state.leader, state.leader_epoch
    return CurrentLeader(leader_id, leader_epoch, member.image.node(leader_id, listener))
