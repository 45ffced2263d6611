"""What the controller needs of the broker's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoRebalance:
    """How the controller moves leaders back to their preferred replicas.

    Attributes:
        interval_s: `leader.imbalance.check.interval.seconds`.
        imbalance_percent: `leader.imbalance.per.broker.percentage`: the share of a broker's preferred partitions that may have
            another leader.
    """

    interval_s: int = 300
    imbalance_percent: int = 10


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """What the controller needs of the broker's settings.

    Attributes:
        broker_id: this broker.
        listener_name: the listener at which the brokers reach each other; `inter.broker.listener.name`.
        release: that of `inter.broker.protocol.version`; a key of `replication.protocol_versions.VERSIONS`.
        unclean_leader_election: whether a replica that is not in sync may become the leader of a partition, as the settings of
            the broker and the cluster say now; `unclean.leader.election.enable`. The own settings of a topic are read from
            ZooKeeper when they matter.
        allows_deletions: `delete.topic.enable`.
        auto_rebalance: None if `auto.leader.rebalance.enable` is false.
    """

    broker_id: int
    listener_name: str = "PLAINTEXT"
    release: str = "3.9"
    unclean_leader_election: Callable[[], bool] = _never
    allows_deletions: bool = True
    auto_rebalance: AutoRebalance | None = None
