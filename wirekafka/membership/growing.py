"""One node becomes the first of many: a single node moves its topics and settings into an empty chroot of ZooKeeper.

How it works: the node claims the chroot by the znode /wirekafka_move. Then it creates the znodes of the cluster, its topics, with
itself as the only replica of each partition, and its settings. Then it renames its journal, and creates /cluster/id and deletes
the claim in one transaction, which makes the move final. At last its directories get the owner of a member. No other broker of
wirekafka joins the cluster before that.

A crash at any point leaves a state from which the next start with `zookeeper.connect` goes on:

    journal, no /cluster/id           everything is written again, and what the node does not have any more is deleted
    renamed journal, no /cluster/id   only the last transaction is missing
    renamed journal, /cluster/id      only the owner of the directories is missing

Before the journal is renamed, the node may also start as a single node again. After that, such a start is refused, because the
node cannot know whether the move is final.

Rules of this file:
    Topics keep their ids. The leader epoch of each partition is one more than the latest in its log.
    The chroot must be empty: no topics, no brokers, no settings. With the id of another cluster it is refused.
    Nothing is lost silently: what ZooKeeper cannot hold is named in the log, and stays in the renamed journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import DataDirectory, read_owner
from wirekafka.log.manager import LogManager
from wirekafka.log.meta_properties import MetaPropertiesVersion
from wirekafka.log.storage import Storage
from wirekafka.membership.many_znodes import children_of, delete_tree, put_all, read_all
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.single_node import Owner, SingleNode, change_version, find_owner, last_block, read_single_node
from wirekafka.metadata.journal import rename_migrated, restore_migrated
from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FinalizedFeatures, ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.membership import read_cluster_id, write_cluster_id
from wirekafka.zookeeper.layout.moves import Direction, Move
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.session import Create, Delete, Exists, GetData, Multi, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

CLUSTER = "/cluster"
BEFORE_FIRST_CONTROLLER = 0
"""The controller epoch of the first leaders, whom no controller has elected."""


async def grow(zookeeper: RetryingClient, config: BrokerConfig, clock: Clock) -> None:
    """Moves a single node into ZooKeeper; does nothing if the data directory is new or belongs to a member of a cluster.

    Raises:
        KafkaError: INCONSISTENT_CLUSTER_ID, the chroot has another cluster; INVALID_CONFIG, it is not empty, or something of the
            node cannot be moved; also the errors of `LogManager.open` and `read_single_node`.
        DirectoryLockedError: another broker holds a data directory.
        MalformedZnodeError: a znode has content that is not Kafka's.
        OSError: a data directory cannot be read or written.
        ZooKeeperError: ZooKeeper refuses a request.

    Cancellation: as a crash.
    """
    folder, storage = config.log_dirs[0], Storage()
    match find_owner(config):
        case Owner.SINGLE_NODE:
            logs = await LogManager.open(config, clock)
            try:
                node = read_single_node(config, logs)
                mark = Move(Direction.IN, node.node_id, node.cluster_id)
                await write_node(zookeeper, node)
                rename_migrated(folder, storage)
                await _complete(zookeeper, mark, lambda: restore_migrated(folder, storage))
                change_version(logs.directories, MetaPropertiesVersion.V0)
            finally:
                with trio.CancelScope(shield=True):
                    await logs.close()
            _say_what_has_moved(node)
        case Owner.MOVING:
            await _go_on(zookeeper, config, storage)
        case Owner.CLUSTER:
            pass


async def _go_on(zookeeper: RetryingClient, config: BrokerConfig, storage: Storage) -> None:
    """Completes a move that was interrupted after the journal had been renamed."""
    folder = config.log_dirs[0]
    owner = read_owner(folder, storage)
    assert owner is not None and owner.cluster_id is not None, "the owner is of version 1"
    directories = [DataDirectory(path, storage) for path in config.log_dirs]
    try:
        for directory in directories:
            directory.lock("wirekafka, which moves into a cluster with ZooKeeper")
        mark = Move(Direction.IN, owner.node_id, owner.cluster_id)
        await _complete(zookeeper, mark, lambda: restore_migrated(folder, storage))
        change_version(directories, MetaPropertiesVersion.V0)
    finally:
        for directory in directories:
            directory.unlock()
    log.info("Completed the move of a single node into ZooKeeper", cluster_id=owner.cluster_id)


# The znodes


async def write_node(zookeeper: RetryingClient, node: SingleNode) -> None:
    """Claims the chroot, and writes everything of a node but the id of the cluster.

    Raises:
        KafkaError, MalformedZnodeError, ZooKeeperError: as `grow`.

    Cancellation: some of the znodes may be written; repeated, it writes the rest.
    """
    is_repeated = await _claim(zookeeper, node)
    for path in paths.PERSISTENT:
        await zookeeper.create_persistent(path)
    levels = znodes_of(node)
    if is_repeated:
        await _delete_others(zookeeper, levels[0])
    for level in levels:
        await put_all(zookeeper, level)


def znodes_of(node: SingleNode) -> list[Mapping[str, bytes | None]]:
    """Returns the znodes of a node, parents before their children in a mapping of their own."""
    top: dict[str, bytes | None] = {}
    if node.next_producer_id:
        first, last = last_block(node.next_producer_id)
        top[paths.PRODUCER_ID_BLOCK] = ProducerIdBlock(node.node_id, first, last).write()
    if node.feature_levels:
        top[paths.FEATURE] = FinalizedFeatures(node.feature_levels).write()
    for broker, configs in node.broker_configs.items():
        top[paths.configs("brokers", broker or paths.DEFAULT_ENTITY)] = EntityConfigs(configs).write()
    parents: dict[str, bytes | None] = {}
    if node.group_configs:
        top[paths.GROUP_CONFIGS] = None
    for group_id, configs in node.group_configs.items():
        parents[paths.configs("groups", paths.group_entity(group_id))] = EntityConfigs(configs).write()
    partitions: dict[str, bytes | None] = {}
    states: dict[str, bytes | None] = {}
    for name, topic in node.topics.items():
        assignment = {index: ReplicaAssignment((node.node_id,)) for index in range(len(topic.leader_epochs))}
        top[paths.configs("topics", name)] = EntityConfigs(topic.overrides).write()
        top[paths.topic(name)] = TopicAssignment(topic.topic_id, assignment).write()
        parents[paths.topic_partitions(name)] = None
        for index, leader_epoch in enumerate(topic.leader_epochs):
            partition = TopicPartition(name, index)
            state = PartitionState(node.node_id, leader_epoch + 1, (node.node_id,), BEFORE_FIRST_CONTROLLER)
            partitions[paths.partition(partition)] = None
            states[paths.partition_state(partition)] = state.write()
    return [top, parents, partitions, states]


async def _claim(zookeeper: RetryingClient, node: SingleNode) -> bool:
    """Claims an empty chroot; returns whether this node has claimed it before."""
    cluster_id = await find_cluster_id(zookeeper)
    if cluster_id is not None:
        raise _refusal(node.cluster_id, cluster_id)
    mark = Move(Direction.IN, node.node_id, node.cluster_id)
    found = await find_move(zookeeper)
    if found is None:
        await _check_is_empty(zookeeper)
        await zookeeper.create_persistent(paths.MOVE, mark.write())
        is_repeated, found = False, await find_move(zookeeper)
    else:
        is_repeated = True
    if found != mark:
        raise KafkaError(ErrorCode.INVALID_CONFIG, refusal_during(found))
    return is_repeated


async def find_cluster_id(zookeeper: RetryingClient) -> str | None:
    """Returns the id of the cluster in the chroot; None if there is none.

    Raises:
        MalformedZnodeError, ZooKeeperError: as `RetryingClient.find` and `read_cluster_id`.
    """
    found = await zookeeper.find(GetData(paths.CLUSTER_ID))
    return None if found is None else read_cluster_id(found.data)


async def find_move(zookeeper: RetryingClient) -> Move | None:
    """Returns the move that is in progress in the chroot; None if there is none.

    Raises:
        MalformedZnodeError, ZooKeeperError: as `RetryingClient.find` and `Move.read`.
    """
    found = await zookeeper.find(GetData(paths.MOVE))
    return None if found is None else Move.read(found.data)


def refusal_during(move: Move | None) -> str:
    """Returns why a broker cannot join a cluster during a move."""
    if move is None:
        return "Another broker has moved its topics into the chroot of zookeeper.connect at the same time: start this one again"
    if move.direction is Direction.IN:
        return (
            f"Broker {move.broker_id} is moving the topics of its data directory into the chroot of zookeeper.connect: start "
            f"this broker after that one. If it never completes that, delete the znodes of the chroot, {paths.MOVE} among them"
        )
    return (
        f"Broker {move.broker_id} is leaving the cluster of zookeeper.connect, which ends with it: run `wirekafka cluster leave` "
        f"for that broker until it succeeds, or delete the znode {paths.MOVE} if broker {move.broker_id} has not left"
    )


def _refusal(own_id: str, cluster_id: str) -> KafkaError:
    if cluster_id == own_id:
        message = (
            f"zookeeper.connect leads to cluster {cluster_id}, which the broker of this data directory has left; its topics in "
            "ZooKeeper are out of date. Run `wirekafka cluster leave` again, which empties the chroot, or use another chroot"
        )
    else:
        message = (
            f"zookeeper.connect leads to cluster {cluster_id}, and the topics of this data directory belong to a single node of "
            f"cluster {own_id}. They can move into an empty chroot only: name one in zookeeper.connect (HOST:PORT/CHROOT). To "
            f"join cluster {cluster_id} without these topics, use an empty directory"
        )
    return KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)


async def _check_is_empty(zookeeper: RetryingClient) -> None:
    """Raises if the chroot has anything of a cluster; empty directories of Kafka are nothing."""
    directories = (
        paths.BROKER_IDS,
        paths.TOPICS,
        paths.GROUP_CONFIGS,
        *(f"{paths.CONFIG}/{kind}" for kind in paths.CONFIG_TYPES),
    )
    found = [path for path in directories if await children_of(zookeeper, path)]
    single = (paths.CONTROLLER, paths.CONTROLLER_EPOCH, paths.FEATURE, paths.MIGRATION)
    found += [path for path in single if await zookeeper.ask(Exists(path)) is not None]
    block = await zookeeper.find(GetData(paths.PRODUCER_ID_BLOCK))
    if block is not None and block.data:
        found.append(paths.PRODUCER_ID_BLOCK)
    if found:
        message = (
            f"The chroot of zookeeper.connect is not empty: it has {', '.join(found)}. The topics of this data directory, which "
            "belong to a single node, can move into an empty chroot only: name another one (HOST:PORT/CHROOT)"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


async def _delete_others(zookeeper: RetryingClient, wanted: Mapping[str, bytes | None]) -> None:
    """Deletes what an earlier attempt has written and the node has changed since."""
    topics = [paths.topic(name) for name in await children_of(zookeeper, paths.TOPICS)]
    for path, found in (await read_all(zookeeper, topics)).items():
        if found.data != wanted.get(path):
            await delete_tree(zookeeper, path)
    if paths.FEATURE not in wanted:
        await zookeeper.find(Delete(paths.FEATURE))
    await delete_tree(zookeeper, paths.GROUP_CONFIGS)
    for kind in ("topics", "brokers"):
        for name in await children_of(zookeeper, f"{paths.CONFIG}/{kind}"):
            if paths.configs(kind, name) not in wanted:
                await delete_tree(zookeeper, paths.configs(kind, name))


async def _complete(zookeeper: RetryingClient, mark: Move, restore: Callable[[], object]) -> None:
    """Makes a move final; or undoes it if another broker has made another cluster in the chroot.

    Args:
        restore: makes the directory that of a single node again.
    """
    if await find_cluster_id(zookeeper) is None:
        if await find_move(zookeeper) != mark:
            restore()
            message = "The znodes of this node's move into ZooKeeper were deleted: start it again, which repeats the move"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        await zookeeper.create_persistent(CLUSTER)
        operations = (Create(paths.CLUSTER_ID, write_cluster_id(mark.cluster_id)), Delete(paths.MOVE))
        try:
            await zookeeper.ask(Multi(operations))
        except ZooKeeperError as error:
            # After a lost connection the request is sent again, and fails if the first one was applied.
            if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
                raise
    cluster_id = await find_cluster_id(zookeeper)
    if cluster_id != mark.cluster_id:
        restore()
        raise _refusal(mark.cluster_id, str(cluster_id))


def _say_what_has_moved(node: SingleNode) -> None:
    log.info(
        "A single node has moved into ZooKeeper, and is the first member of its cluster",
        cluster_id=node.cluster_id,
        topics=len(node.topics),
        partitions=node.partition_count,
        features=dict(node.feature_levels),
        groups_with_settings=len(node.group_configs),
    )
