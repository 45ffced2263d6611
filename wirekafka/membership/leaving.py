"""Many become one: the last member of a cluster turns its data directory into that of a single node, and empties the chroot.

How it works: the broker is stopped. Its directories are locked, and the znode /wirekafka_move keeps brokers of wirekafka from
joining. If no other broker is registered or has a replica, the topics and settings of ZooKeeper are written as a journal, which
makes the directory that of a single node. At last the chroot is emptied.

A crash before the journal is written leaves a member of the cluster, and a crash after it a single node. Repeated, `leave` goes
on in both cases.

Rules of this file:
    Topics keep their ids, and the leader epochs of the single node are not below those of the cluster.
    Nothing is deleted in ZooKeeper before the journal is on the disk.
    Folders of partitions that the cluster does not have are renamed, as a member renames them (`log/strays.py`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, ConfigError, LogConfig
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.group_table import GROUP_SETTINGS
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import DataDirectory, read_owner
from wirekafka.log.manager import LogManager
from wirekafka.log.meta_properties import MetaPropertiesVersion
from wirekafka.log.storage import Storage
from wirekafka.membership.growing import CLUSTER, find_cluster_id, find_move, refusal_during
from wirekafka.membership.many_znodes import children_of, delete_tree, read_all
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.single_node import Owner, change_version, find_owner
from wirekafka.metadata import producer_ids
from wirekafka.metadata.journal import Journal, remove_migrated
from wirekafka.metadata.store import StoredTopic
from wirekafka.names import TopicPartition, new_topic_id
from wirekafka.pending import finish
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_ENABLED, FinalizedFeatures, ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.moves import Direction, Move
from wirekafka.zookeeper.layout.topics import PartitionState, TopicAssignment
from wirekafka.zookeeper.session import Delete, GetData, Multi, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

MOST_NAMED = 10
"""The most names in one message."""

TREES = (
    "/brokers",
    "/admin",
    "/config",
    paths.ISR_CHANGES,
    paths.LOG_DIR_EVENTS,
    paths.CONTROLLER_EPOCH,
    paths.FEATURE,
    paths.PRODUCER_ID_BLOCK,
    paths.CONSUMERS,
)
"""What a cluster has in its chroot, but for its id."""


@dataclass(slots=True)
class Remains:
    """What ZooKeeper has of a cluster with one broker.

    Attributes:
        topics: by name.
        broker_configs: the dynamic settings of the broker, by its id, and of all brokers, by "".
        group_configs: the settings of groups.
        feature_levels: the levels of features; empty if the cluster has none.
        next_producer_id: all producer ids below it are taken; 0 if ZooKeeper does not say.
        dropped: the settings that a single node cannot have, as texts.
    """

    topics: dict[str, StoredTopic] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    feature_levels: dict[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    dropped: list[str] = field(default_factory=list)

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions."""
        return [TopicPartition(name, index) for name, each in self.topics.items() for index in range(each.partition_count)]


@dataclass(frozen=True, slots=True)
class Left:
    """The outcome of `leave`.

    Attributes:
        dropped: what the single node does not have of the cluster, as texts.
        is_repeated: the directory was that of a single node already, and only the chroot was emptied.
    """

    topic_count: int = 0
    partition_count: int = 0
    dropped: tuple[str, ...] = ()
    is_repeated: bool = False


async def leave(zookeeper: RetryingClient, config: BrokerConfig, clock: Clock) -> Left:
    """Turns the last member of a cluster, which is stopped, into a single node.

    Raises:
        KafkaError: INVALID_REQUEST, the broker is not the last one, or has something to finish before; INCONSISTENT_CLUSTER_ID,
            the directory belongs to another cluster; further errors of `LogManager.open`. Nothing has changed then.
        DirectoryLockedError: the broker is running, or another one holds a data directory.
        MalformedZnodeError: a znode has content that is not Kafka's.
        OSError: a data directory cannot be read or written.
        ZooKeeperError: ZooKeeper refuses a request.

    Durability: on disk when it returns.
    Cancellation: as a crash.
    """
    match find_owner(config):
        case Owner.SINGLE_NODE:
            return await _go_on(zookeeper, config)
        case Owner.MOVING:
            raise _refusal("Its move into ZooKeeper is not complete: start the broker with zookeeper.connect first")
        case Owner.CLUSTER:
            return await _leave(zookeeper, config, clock)


async def _leave(zookeeper: RetryingClient, config: BrokerConfig, clock: Clock) -> Left:
    cluster_id = await find_cluster_id(zookeeper)
    if cluster_id is None:
        raise _refusal("There is no cluster in the chroot of zookeeper.connect: correct the chroot")
    if read_owner(config.log_dirs[0], Storage()) is None:
        raise _refusal(f"{config.log_dirs[0]} is not a data directory")
    logs = await LogManager.open(config, clock, cluster_id=cluster_id)
    try:
        mark = Move(Direction.OUT, config.node_id, cluster_id)
        await _claim(zookeeper, mark)
        async with _claimed(zookeeper):
            await _check_is_alone(zookeeper)
            remains = await _read_remains(zookeeper, config)
            _prepare_logs(logs, remains)
        _write_node(config, logs, remains)
    finally:
        with trio.CancelScope(shield=True):
            await logs.close()
    await _empty(zookeeper, mark)
    log.info("The last member of a cluster is a single node again", cluster_id=cluster_id, topics=len(remains.topics))
    return Left(len(remains.topics), len(remains.partitions), tuple(remains.dropped))


async def _go_on(zookeeper: RetryingClient, config: BrokerConfig) -> Left:
    """Empties the chroot that the single node has left, if the first attempt was interrupted."""
    owner = read_owner(config.log_dirs[0], Storage())
    cluster_id = None if owner is None else owner.cluster_id
    mark = Move(Direction.OUT, config.node_id, str(cluster_id))
    if await find_move(zookeeper) != mark or await find_cluster_id(zookeeper) != cluster_id:
        raise _refusal("Its data directory is that of a single node already: start it without zookeeper.connect")
    storage = Storage()
    directories = [DataDirectory(path, storage) for path in config.log_dirs]
    try:
        for directory in directories:
            directory.lock("wirekafka, which leaves a cluster with ZooKeeper")
        change_version(directories, MetaPropertiesVersion.V1)
        remove_migrated(config.log_dirs[0], storage)
    finally:
        for directory in directories:
            directory.unlock()
    await _empty(zookeeper, mark)
    return Left(is_repeated=True)


# What is in ZooKeeper


async def _claim(zookeeper: RetryingClient, mark: Move) -> None:
    """Keeps other brokers from joining.

    Raises:
        KafkaError: INVALID_REQUEST, another broker moves.
    """
    await zookeeper.create_persistent(paths.MOVE, mark.write())
    found = await find_move(zookeeper)
    if found != mark:
        raise _refusal(refusal_during(found))


@asynccontextmanager
async def _claimed(zookeeper: RetryingClient) -> AsyncIterator[None]:
    """Lets other brokers join again if the block fails. If it is cancelled the mark stays, as after a crash."""
    try:
        yield
    except Exception:
        # The failure of the block is what the operator can correct.
        with suppress(ZooKeeperError):
            await zookeeper.find(Delete(paths.MOVE))
        raise


async def _check_is_alone(zookeeper: RetryingClient) -> None:
    """Raises if a broker is registered, or the controller has something to finish."""
    registered = await children_of(zookeeper, paths.BROKER_IDS)
    if registered:
        raise _refusal(
            f"Brokers are registered in the cluster: {_some(registered)}. Stop them first; the registration of a broker that was "
            "killed ends with zookeeper.session.timeout.ms"
        )
    deleted = await children_of(zookeeper, paths.DELETE_TOPICS)
    if deleted:
        raise _refusal(f"Topics are being deleted: {_some(deleted)}. Start the brokers until that has ended")


async def _read_remains(zookeeper: RetryingClient, config: BrokerConfig) -> Remains:
    """Reads the topics and settings of a cluster.

    Raises:
        KafkaError: INVALID_REQUEST, other brokers have replicas, or this one is not in sync.
    """
    remains = Remains()
    names = await children_of(zookeeper, paths.TOPICS)
    contents = await read_all(zookeeper, [paths.topic(name) for name in names])
    assignments = {name: TopicAssignment.read(name, contents[paths.topic(name)].data) for name in names}
    _check_has_all(assignments, config.node_id)
    configs = await _read_configs(zookeeper, "topics", names)
    for name, assignment in assignments.items():
        overrides = _honoured_by_topic(config, name, configs.get(name, {}), remains.dropped)
        remains.topics[name] = StoredTopic(assignment.topic_id or new_topic_id(), len(assignment.partitions), overrides)
    await _read_leader_epochs(zookeeper, remains, config.node_id)
    await _read_broker_configs(zookeeper, remains, config.node_id)
    await _read_group_configs(zookeeper, remains)
    await _read_others(zookeeper, remains)
    return remains


def _check_has_all(assignments: Mapping[str, TopicAssignment], node_id: int) -> None:
    elsewhere = []
    for name, assignment in assignments.items():
        if sorted(assignment.partitions) != [*range(len(assignment.partitions))]:
            raise _refusal(f"The partitions of topic {name} are not numbered from 0")
        if any(each.replicas != (node_id,) for each in assignment.partitions.values()):
            elsewhere.append(name)
    if elsewhere:
        raise _refusal(
            f"Other brokers have replicas of the topics {_some(elsewhere)}. Start the brokers, and reassign all partitions to "
            f"broker {node_id} only (kafka-reassign-partitions)"
        )


async def _read_leader_epochs(zookeeper: RetryingClient, remains: Remains, node_id: int) -> None:
    states = {paths.partition_state(partition): partition for partition in remains.partitions}
    behind = []
    for path, found in (await read_all(zookeeper, states)).items():
        partition = states[path]
        state = PartitionState.read(partition, found.data)
        topic = remains.topics[partition.topic]
        topic.leader_epoch = max(topic.leader_epoch, state.leader_epoch)
        if node_id not in state.isr:
            behind.append(str(partition))
    if behind:
        raise _refusal(f"The broker is not in sync in the partitions {_some(behind)}. Start the brokers until it is")


async def _read_configs(zookeeper: RetryingClient, kind: str, entities: Iterable[str]) -> dict[str, Mapping[str, str]]:
    by_path = {paths.configs(kind, entity): entity for entity in entities}
    found = await read_all(zookeeper, by_path)
    return {by_path[path]: EntityConfigs.read(path, content.data).values for path, content in found.items()}


async def _read_broker_configs(zookeeper: RetryingClient, remains: Remains, node_id: int) -> None:
    entities = await children_of(zookeeper, f"{paths.CONFIG}/brokers")
    names = {paths.DEFAULT_ENTITY: "", str(node_id): str(node_id)}
    for entity, configs in (await _read_configs(zookeeper, "brokers", entities)).items():
        if entity in names:
            remains.broker_configs[names[entity]] = _honoured_by_broker(entity, configs, remains.dropped)
        elif configs:
            remains.dropped.append(f"the settings of broker {entity}")


async def _read_group_configs(zookeeper: RetryingClient, remains: Remains) -> None:
    entities = await children_of(zookeeper, paths.GROUP_CONFIGS)
    for entity, configs in (await _read_configs(zookeeper, "groups", entities)).items():
        group_id, honoured = paths.group_of_entity(entity), {}
        for name, text in configs.items():
            try:
                GROUP_SETTINGS[name].parse(text)
                honoured[name] = text
            except (KeyError, ConfigError):
                remains.dropped.append(f"{name}={text} of group {group_id}")
        if honoured:
            remains.group_configs[group_id] = honoured


async def _read_others(zookeeper: RetryingClient, remains: Remains) -> None:
    """Reads producer ids and features, and notes the quotas, which a single node does not have."""
    for kind in ("clients", "users", "ips"):
        if await children_of(zookeeper, f"{paths.CONFIG}/{kind}"):
            remains.dropped.append(f"the settings of {kind}")
    found = await zookeeper.find(GetData(paths.PRODUCER_ID_BLOCK))
    block = None if found is None else ProducerIdBlock.read(found.data)
    if block is not None:
        remains.next_producer_id = block.last + 1
    feature = await zookeeper.find(GetData(paths.FEATURE))
    if feature is not None and feature.data:
        features = FinalizedFeatures.read(feature.data)
        if features.status == FEATURES_ENABLED:
            remains.feature_levels = dict(features.features)


def _honoured_by_topic(config: BrokerConfig, topic: str, own: Mapping[str, str], dropped: list[str]) -> dict[str, str]:
    honoured = {}
    for name, text in own.items():
        try:
            LogConfig.of(config, {name: text})
            honoured[name] = text
        except ConfigError:
            dropped.append(f"{name}={text} of topic {topic}")
    return honoured


def _honoured_by_broker(entity: str, own: Mapping[str, str], dropped: list[str]) -> dict[str, str]:
    honoured = {}
    for name, text in own.items():
        setting = BROKER_SETTINGS.get(name)
        try:
            if setting is None or not setting.is_dynamic:
                raise ConfigError(name, text, "a dynamic setting of a single node")
            setting.parse(text)
            honoured[name] = text
        except ConfigError:
            dropped.append(f"{name}={text} of broker {entity}")
    return honoured


# What is on disk


def _prepare_logs(logs: LogManager, remains: Remains) -> None:
    """Renames the folders of partitions that the cluster does not have.

    Raises:
        KafkaError: INVALID_REQUEST, a directory or a partition is offline, or a partition is missing.
    """
    offline = [str(each.topic_partition) for each in logs if each.reader.offline_reason is not None]
    offline += [directory.path for directory in logs.directories if directory.offline_reason is not None]
    if offline:
        raise _refusal(f"Partitions or directories are offline: {_some(offline)}. Repair them first")
    missing = [str(name) for name in remains.partitions if logs.get(name) is None]
    if missing:
        raise _refusal(
            f"The folders of the partitions {_some(missing)} are missing. Name all log.dirs of the broker; if they are named, "
            "start the broker once"
        )
    finish(logs.rename_strays({name: remains.topics[name.topic].topic_id for name in remains.partitions}))


def _write_node(config: BrokerConfig, logs: LogManager, remains: Remains) -> None:
    """Makes the directories those of a single node. The journal decides."""
    folder = config.log_dirs[0]
    if remains.next_producer_id:
        path = os.path.join(folder, producer_ids.FILE_NAME)
        producer_ids.write_block(logs.storage, path, node_id=config.node_id, next_id=remains.next_producer_id)
    Journal.write(
        folder,
        logs.storage,
        topics=remains.topics,
        broker_configs=remains.broker_configs,
        group_configs=remains.group_configs,
        feature_levels=remains.feature_levels,
    )
    change_version(logs.directories, MetaPropertiesVersion.V1)
    remove_migrated(folder, logs.storage)


# The end of the chroot


async def _empty(zookeeper: RetryingClient, mark: Move) -> None:
    """Deletes the znodes of a cluster that nobody has any more, its id and the mark of the move last.

    Raises:
        KafkaError: INVALID_REQUEST, a broker has joined meanwhile.
    """
    registered = await children_of(zookeeper, paths.BROKER_IDS)
    if registered:
        raise _refusal(
            f"Brokers have joined the cluster meanwhile: {_some(registered)}. The data directory is that of a single node now, "
            "and the chroot was not emptied: stop these brokers, and run the command again"
        )
    for path in TREES:
        await delete_tree(zookeeper, path)
    try:
        await zookeeper.ask(Multi((Delete(paths.CLUSTER_ID), Delete(paths.MOVE))))
    except ZooKeeperError as error:
        # After a lost connection the request is sent again, and fails if the first one was applied.
        if error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
    if await find_move(zookeeper) == mark:
        raise _refusal(f"The znode {paths.CLUSTER_ID} was deleted meanwhile; delete {paths.MOVE} too")
    await zookeeper.find(Delete(CLUSTER))


def _refusal(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"The broker cannot leave its cluster. {reason}")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
