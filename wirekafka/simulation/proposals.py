"""How the leaders of a simulated broker reach the controller: the real sender and channel of AlterPartition over the network.

Source: kafka.server.AlterPartitionManager, NodeToControllerChannelManager.
"""

from __future__ import annotations

from wirekafka.membership.alter_partition_sender import AlterPartitionSender
from wirekafka.membership.controller_channel import ControllerChannel
from wirekafka.simulation.events import MS
from wirekafka.simulation.hosting import PeerChannel, ProcessTimers
from wirekafka.simulation.node import Node


class Proposals:
    """The changes of in-sync replicas that the leaders of one broker propose.

    Attributes:
        sender: proposes them.
    """

    def __init__(self, node: Node) -> None:
        timers = ProcessTimers(node.process)
        timeout_us = node.options.request_timeout_ms * MS
        self._node = node
        self._channel = ControllerChannel(
            lambda broker_id: PeerChannel(node.new_peer(broker_id), timeout_us), lambda: node.controller_id, timers
        )
        self.sender = AlterPartitionSender(self._channel, timers, node_id=node.broker_id, broker_epoch=lambda: node.sent_epoch)

    def note_controller(self, broker_id: int | None) -> None:
        """Takes the controller that an UpdateMetadata names."""
        if broker_id != self._node.controller_id:
            self._node.controller_id = broker_id
            self._channel.note_controller()
