"""The entry of a broker into a cluster: the znodes of every cluster, its id, and the clusters that are refused.

Source: kafka.server.KafkaServer (initZkClient, getOrGenerateClusterId), kafka.zk.KafkaZkClient (createTopLevelPaths,
createOrGetClusterId).

Differs from Apache Kafka: a broker refuses to join a cluster with a KRaft controller, a cluster that migrates to KRaft, and a
cluster into or out of which a single node is moving its topics. A broker whose data directory belongs to a cluster creates no
other cluster. Apache Kafka creates one in a misspelled chroot, and refuses the directory afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.growing import find_move, refusal_during
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration, read_cluster_id, write_cluster_id
from wirekafka.zookeeper.session import Exists, GetData

log = structlog.get_logger(__name__)


async def join_cluster(zookeeper: RetryingClient, new_id: Callable[[], str], former_id: str | None = None) -> str:
    """Creates the znodes of a cluster if they do not exist; returns the id of the cluster.

    Args:
        new_id: makes the id of a new cluster.
        former_id: the cluster to which the data directory belongs; None if it is new.

    Raises:
        KafkaError: INVALID_CONFIG, the broker cannot be a member of this cluster; INCONSISTENT_CLUSTER_ID, the chroot has no
            cluster, and the data directory belongs to one.
        MalformedZnodeError: a znode has content that Kafka would not write.
        ZooKeeperError: ZooKeeper refuses a request.

    Cancellation: some of the znodes may be created.
    """
    await _check_cluster(zookeeper)
    if former_id is not None and await zookeeper.ask(Exists(paths.CLUSTER_ID)) is None:
        message = (
            f"The data directory belongs to cluster {former_id}, and there is no cluster in the chroot of zookeeper.connect: "
            "correct zookeeper.connect, most often its chroot, or use another directory"
        )
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    for path in paths.PERSISTENT:
        await zookeeper.create_persistent(path)
    found = await zookeeper.find(GetData(paths.CLUSTER_ID))
    made_id = None
    if found is None:
        made_id = new_id()
        await zookeeper.create_persistent(paths.CLUSTER_ID, write_cluster_id(made_id))
        found = await zookeeper.ask(GetData(paths.CLUSTER_ID))
    cluster_id = read_cluster_id(found.data)
    if cluster_id == made_id:
        log.warning(
            "This broker has created a new cluster in ZooKeeper, because there was none in the chroot of zookeeper.connect",
            cluster_id=cluster_id,
            remedy="if the cluster exists already, stop this broker, correct the chroot, and empty log.dirs",
        )
    return cluster_id


async def _check_cluster(zookeeper: RetryingClient) -> None:
    """Raises if the cluster has a KRaft controller, or migrates to KRaft."""
    if await zookeeper.ask(Exists(paths.MIGRATION)) is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, "The cluster of zookeeper.connect migrates to KRaft, which is not supported")
    move = await find_move(zookeeper)
    if move is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, refusal_during(move))
    controller = await zookeeper.find(GetData(paths.CONTROLLER))
    if controller is not None:
        check_controller(ControllerRegistration.read(controller.data))


def check_controller(controller: ControllerRegistration) -> None:
    """Raises if the controller is one of KRaft.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    if controller.kraft_controller_epoch is not None:
        message = f"A KRaft controller, {controller.broker_id}, rules the cluster of zookeeper.connect, which is not supported"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
