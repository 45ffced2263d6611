"""The znode of a move: a single node moves its topics into the chroot, or the last member of the cluster moves them out.

Apache Kafka does not know this znode. A broker of wirekafka does not join the cluster while it exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import JsonObject, write_object

MOVE_VERSION = 1


class Direction(Enum):
    """The direction of a move, as seen from the chroot."""

    IN = "in"
    OUT = "out"


@dataclass(frozen=True, slots=True)
class Move:
    """The content of `/wirekafka_move`.

    Attributes:
        broker_id: the broker whose topics move.
        cluster_id: the id of its cluster, which is also the id of the single node.
    """

    direction: Direction
    broker_id: int
    cluster_id: str

    @classmethod
    def read(cls, data: bytes) -> Move:
        """Reads the content.

        Raises:
            MalformedZnodeError: the content is not wirekafka's.
        """
        values = JsonObject.parse(paths.MOVE, data)
        version, direction = values.integer("version"), values.text("direction")
        if version != MOVE_VERSION or direction not in ("in", "out"):
            values.refuse(f"version {version} with direction {direction!r} is not known")
        return cls(Direction(direction), values.integer("broker"), values.text("cluster_id"))

    def write(self) -> bytes:
        """Returns the content."""
        values = {
            "version": MOVE_VERSION,
            "direction": self.direction.value,
            "broker": self.broker_id,
            "cluster_id": self.cluster_id,
        }
        return write_object(values, {})
