"""Runs a broker as a member of a cluster with ZooKeeper, from its first request to ZooKeeper to its controlled shutdown.

How it works: `enter_cluster` opens the session and reads what the logs need: the id of the cluster and the settings. A single
node moves its topics into ZooKeeper before that. `compose`
makes the parts that need connections. `take_part` registers the broker, which then listens, and the controller sends it its
partitions. At the end the controller moves the leaderships to other brokers, before the broker stops serving. The controller may
be this broker: then it moves its own leaderships, and its session ends, so that another broker becomes the controller at once.

Nothing here is imported without `zookeeper.connect`.

Source: kafka.server.KafkaServer (startup, shutdown).
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import structlog
import trio

from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, Listener
from wirekafka.config.cluster_table import RELEASES
from wirekafka.config.endpoints import UNROUTABLE_HOSTS
from wirekafka.coordinator.cluster import CoordinatorCluster
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.directory import new_id, read_owner
from wirekafka.log.storage import Storage
from wirekafka.membership.cluster_id import join_cluster
from wirekafka.membership.configs import ClusterConfigs
from wirekafka.membership.controller_requests import ControllerRequests
from wirekafka.membership.controller_watch import ControllerWatch
from wirekafka.membership.directory_failures import DirectoryFailures
from wirekafka.membership.feature_watch import FeatureWatch
from wirekafka.membership.growing import grow
from wirekafka.membership.member import Member
from wirekafka.membership.peers import Peers
from wirekafka.membership.producer_id_blocks import ProducerIdBlocks, ZooKeeperBlocks
from wirekafka.membership.registration import Registration
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.stored_topics import follow_untold, read_partition_counts, read_topic_names
from wirekafka.membership.supervision import keep
from wirekafka.metadata.image import ClusterImage
from wirekafka.names import TopicPartition
from wirekafka.pending import finish
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.replication.controller_queue import ControllerQueue
from wirekafka.replication.fetcher import FetcherSettings
from wirekafka.replication.member_topics import MemberTopics, open_member_topics
from wirekafka.replication.protocol_versions import VERSIONS
from wirekafka.replication.replica_fetcher import ReplicaFetchers
from wirekafka.replication.throttle import Rate, ReplicationThrottle, lists_replica
from wirekafka.server.drivers import EpollDriver
from wirekafka.server.listener import BoundListener
from wirekafka.server.local_controller import compose_controller
from wirekafka.server.peers import PeerConnections
from wirekafka.zookeeper.kazoo_session import ZooKeeperUnreachableError, open_kazoo_session
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.membership import Endpoint
from wirekafka.zookeeper.session import GetChildren, ZooKeeperError

log = structlog.get_logger(__name__)

MOST_WAIT_FOR_REPLICAS_S = 8.0
"""How long the end of a controller waits until the other brokers have answered its last requests.

Thousands of new leaders take seconds: about 3 s if three brokers with 10,000 partitions share two cores. If the controller ends
earlier, clients wait for the next controller. A broker that does not answer must not hold the end for long: `docker stop` kills a
container after 10 s.
"""

LOOK_S = 0.005
"""How often the end of a controller looks whether they have."""

MOST_WAIT_FOR_IMAGE_S = 30.0
"""How long the start waits for the brokers and topics: longer than the election of the next controller takes."""


@dataclass(slots=True)
class Cluster:
    """The parts of a member that exist before its logs are opened.

    Attributes:
        zookeeper: the session.
        cluster_id: the id of the cluster.
        image: the brokers and topics of the cluster; empty before the first UpdateMetadata.
        topics: the table of topics that follows the image.
        configs: the settings in ZooKeeper.
        features: follows the features in ZooKeeper.
    """

    zookeeper: RetryingClient
    cluster_id: str
    image: ClusterImage
    topics: MemberTopics
    configs: ClusterConfigs
    features: FeatureWatch

    async def open_broker(self, config: BrokerConfig, clock: Clock) -> Broker:
        """Opens the data directories.

        Raises:
            DirectoryLockedError, KafkaError, OSError: as `Broker.open`; INCONSISTENT_CLUSTER_ID if a directory belongs to
                another cluster.
        """
        broker = await Broker.open_member(config, clock, self.topics, self.cluster_id)
        self.configs.run_work = broker.slices.run
        return broker


@asynccontextmanager
async def enter_cluster(config: BrokerConfig, clock: Clock) -> AsyncIterator[Cluster]:
    """Opens the session with ZooKeeper, and reads what the logs need. At the end the session is closed.

    Raises:
        KafkaError: BROKER_NOT_AVAILABLE, ZooKeeper does not answer; INVALID_CONFIG, the cluster is refused;
            UNKNOWN_SERVER_ERROR, ZooKeeper refuses a request or has content that is not Kafka's; further errors of `grow`.
        DirectoryLockedError, OSError: as `grow`.
    """
    connect = config.text("zookeeper.connect")
    session_timeout_ms = config.integer("zookeeper.session.timeout.ms")
    connection_timeout_ms = config.get("zookeeper.connection.timeout.ms") or session_timeout_ms
    assert isinstance(connection_timeout_ms, int), "an integer or None"
    session = open_kazoo_session(connect, session_timeout_ms=session_timeout_ms, connection_timeout_ms=connection_timeout_ms)
    try:
        async with session as client:
            yield await _read_cluster(RetryingClient(client), config, clock)
    except ZooKeeperUnreachableError as error:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from None


async def _read_cluster(zookeeper: RetryingClient, config: BrokerConfig, clock: Clock) -> Cluster:
    with _zookeeper_errors():
        await grow(zookeeper, config, clock)
        owner = read_owner(config.log_dirs[0], Storage())
        cluster_id = await join_cluster(zookeeper, new_id, None if owner is None else owner.cluster_id)
        image = ClusterImage()
        image.stored_counts = await read_partition_counts(zookeeper)
        image.untold = await read_topic_names(zookeeper)
        topics = open_member_topics(config, image)
        configs = ClusterConfigs(zookeeper, config, topics, finish, clock.now_ms)
        features = FeatureWatch(zookeeper, topics.cluster_features)
        await features.load()
        await configs.load()
    return Cluster(zookeeper, cluster_id, image, topics, configs, features)


@contextmanager
def _zookeeper_errors() -> Iterator[None]:
    """Raises errors of ZooKeeper as a KafkaError, which the command line shows."""
    try:
        yield
    except (ZooKeeperError, MalformedZnodeError) as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper cannot be used: {error}") from error


def compose(
    broker: Broker, cluster: Cluster, driver: EpollDriver, nursery: trio.Nursery, listeners: Iterable[BoundListener]
) -> Member:
    """Makes the parts of a member, and sets them on the broker, before the broker serves clients."""
    config, clock, image = broker.config, broker.clock, cluster.image
    connections = PeerConnections(driver, clock, broker.slices, nursery)
    registration = Registration(
        cluster.zookeeper,
        broker.node_id,
        endpoints_of(config, listeners),
        config.rack,
        cluster_id=cluster.cluster_id,
        former_session_ms=2 * config.integer("zookeeper.session.timeout.ms"),
        now_ms=clock.now_ms,
        features=cluster.topics.features.supported,
    )
    peers = Peers(
        broker.node_id,
        image,
        connections.open,
        listener_name=config.inter_broker_listener,
        timeout_ms=config.integer("controller.socket.timeout.ms"),
        fetch_timeout_ms=config.integer("replica.socket.timeout.ms"),
        most_fetched_bytes=config.integer("replica.fetch.response.max.bytes") + config.integer("socket.request.max.bytes"),
    )
    requests = ControllerRequests(
        config, image, peers, clock, node_id=broker.node_id, broker_epoch=lambda: registration.broker_epoch
    )
    replicas = _replicas_of(broker, cluster, registration, peers, requests)
    throttle = _throttle_of(broker, cluster, "leader")
    queue = ControllerQueue(broker.slices)
    controller = compose_controller(broker, cluster.zookeeper.client, cluster.configs, registration, connections)
    member = Member(broker.node_id, registration, cluster.configs, image, replicas, queue, peers, requests, throttle, controller)
    broker.member = member
    broker.producer_ids = _producer_ids_of(broker, cluster, requests, nursery)
    verifies_transactions = RELEASES.index(config.inter_broker_release) >= RELEASES.index("3.5")
    is_hosted = partial(_is_hosted, cluster.topics)
    broker.join_cluster(
        CoordinatorCluster(
            broker.node_id,
            image,
            peers,
            is_hosted=is_hosted,
            verifies_transactions=verifies_transactions,
            create_topic=lambda name: requests.create_topics([name]),
        )
    )
    return member


def _is_hosted(topics: MemberTopics, name: TopicPartition) -> bool:
    partition = topics.hosted(*name)
    return partition is not None and not partition.is_offline


def _producer_ids_of(broker: Broker, cluster: Cluster, requests: ControllerRequests, nursery: trio.Nursery) -> ProducerIdBlocks:
    """Returns the source of producer ids: the controller, or ZooKeeper in a cluster with brokers before 3.0 (KIP-730)."""
    if RELEASES.index(broker.config.inter_broker_release) >= RELEASES.index("3.0"):
        return requests.producer_ids
    blocks = ZooKeeperBlocks(cluster.zookeeper, node_id=broker.node_id)
    nursery.start_soon(keep, blocks.run)
    return ProducerIdBlocks(blocks.request, broker.clock)


def _replicas_of(
    broker: Broker, cluster: Cluster, registration: Registration, peers: Peers, requests: ControllerRequests
) -> ClusterReplicas:
    config, image = broker.config, cluster.image
    settings = FetcherSettings(
        replica_id=broker.node_id,
        broker_epoch=lambda: registration.broker_epoch,
        versions=VERSIONS[config.inter_broker_release],
        max_wait_ms=config.integer("replica.fetch.wait.max.ms"),
        min_bytes=config.integer("replica.fetch.min.bytes"),
        max_bytes=config.integer("replica.fetch.max.bytes"),
        response_max_bytes=config.integer("replica.fetch.response.max.bytes"),
        back_off_ms=config.integer("replica.fetch.backoff.ms"),
        throttle=_throttle_of(broker, cluster, "follower"),
    )
    fetchers = ReplicaFetchers(
        settings,
        fetcher_count=config.integer("num.replica.fetchers"),
        connect=peers.fetcher_channel,
        timers=broker.clock,
        slices=broker.slices,
    )
    live_brokers: dict[int, int | None] = {}
    image.on_brokers_change.append(partial(_follow_brokers, image, live_brokers))
    replicas = ClusterReplicas(
        config,
        broker.clock,
        broker.logs,
        cluster.topics,
        fetchers,
        broker.slices,
        node_id=broker.node_id,
        propose=requests.alter_partition.propose,
        live_brokers=live_brokers,
        configs=cluster.configs,
        leader_replicas=broker.leader_replicas,
    )
    image.on_brokers_change.append(replicas.note_brokers)
    replicas.on_leader.append(broker.load_coordinator)
    replicas.on_follower.append(broker.unload_coordinator)
    replicas.on_stopped.append(broker.unload_coordinator)
    return replicas


def _throttle_of(broker: Broker, cluster: Cluster, role: str) -> ReplicationThrottle:
    """Returns the throttle of this broker as a leader or as a follower. Its settings may change while the broker runs."""
    config, topics = broker.config, cluster.topics

    def lists(topic: str, index: int) -> bool:
        settings = topics.log_config_of(topic)
        as_leader, as_follower = settings.leader_replication_throttled_replicas, settings.follower_replication_throttled_replicas
        return lists_replica(as_leader if role == "leader" else as_follower, index, broker.node_id)

    window_ms = config.integer("replication.quota.window.size.seconds") * 1000
    rate = Rate(config.integer("replication.quota.window.num"), window_ms)
    return ReplicationThrottle(partial(config.integer, f"{role}.replication.throttled.rate"), lists, rate)


def _follow_brokers(image: ClusterImage, live_brokers: dict[int, int | None]) -> None:
    """Updates the live brokers from the image. Their epochs are None, because UpdateMetadata does not have them."""
    live_brokers.clear()
    live_brokers.update(dict.fromkeys(image.brokers))


def endpoints_of(config: BrokerConfig, listeners: Iterable[BoundListener]) -> tuple[Endpoint, ...]:
    """Returns the addresses at which other brokers and clients reach this broker.

    Source: kafka.server.KafkaServer.createBrokerInfo.
    """
    advertised = config.advertised_listeners
    endpoints = []
    for listener in listeners:
        configured = advertised.get(listener.name)
        host = listener.address.host if configured is None else configured.host
        port = (0 if configured is None else configured.port) or listener.address.port
        reachable = socket.getfqdn() if host in UNROUTABLE_HOSTS else host
        endpoints.append(Endpoint(Listener(listener.name, reachable, port), "PLAINTEXT"))
    return tuple(endpoints)


@asynccontextmanager
async def take_part(
    cluster: Cluster,
    broker: Broker,
    driver: EpollDriver,
    nursery: trio.Nursery,
    listeners: list[BoundListener],
    listen: Callable[[], None],
) -> AsyncIterator[None]:
    """Registers the broker, and lets it listen; at the end of the block the controller moves its leaderships away.

    The broker does not listen before it is registered, because its image is empty until then, and clients would get
    UNKNOWN_TOPIC_OR_PARTITION.
    The block begins after the controller has sent the brokers and topics, or after `MOST_WAIT_FOR_IMAGE_S`: some clients ask for
    the controller once, and wait long before they ask again.

    Args:
        nursery: runs the tasks of the member until the broker has stopped serving.

    Raises:
        KafkaError: DUPLICATE_BROKER_REGISTRATION, another broker has the id or an address of this one.
    """
    member = compose(broker, cluster, driver, nursery, listeners)
    try:
        async with _tasks_of_session(nursery) as tasks:
            tasks.start_soon(keep, cluster.configs.run)
            tasks.start_soon(keep, cluster.features.run)
            tasks.start_soon(keep, partial(follow_untold, cluster.zookeeper, cluster.image))
            tasks.start_soon(keep, ControllerWatch(cluster.zookeeper, member.controller_requests.set_controller).run)
            with _zookeeper_errors():
                await member.registration.register()
            listen()
            tasks.start_soon(keep, member.registration.run)
            tasks.start_soon(keep, DirectoryFailures(cluster.zookeeper, broker.logs.on_offline, node_id=broker.node_id).run)
            member.replicas.start()
            try:
                with _zookeeper_errors():
                    await wait_for_image(cluster.zookeeper, member)
                yield
            finally:
                await _hand_over(broker, member, nursery)
    finally:
        if member.local_controller is not None:
            member.local_controller.close()
        # Now, and not after the logs are flushed: the other brokers elect the next controller, and forget this broker.
        cluster.zookeeper.client.close()
        member.replicas.close()
        broker.leave_cluster()
        member.controller_requests.close()


@asynccontextmanager
async def _tasks_of_session(nursery: trio.Nursery) -> AsyncIterator[trio.Nursery]:
    """Opens a nursery inside another one, for the tasks that need the session. They are cancelled at the end of the block."""
    tasks: trio.Nursery = await nursery.start(_hold_tasks)
    try:
        yield tasks
    finally:
        tasks.cancel_scope.cancel()


async def _hold_tasks(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as tasks:
        task_status.started(tasks)
        await trio.sleep_forever()


async def _hand_over(broker: Broker, member: Member, nursery: trio.Nursery) -> None:
    """Lets the controller, which may be this broker, move the leaderships of this broker to others, unless that is impossible.

    If this broker is the controller, the other brokers learn from it who leads, before it ends. Otherwise they would learn it
    from the next controller, once that has read the cluster.
    """
    if nursery.cancel_scope.cancel_called or broker.logs.all_failed.is_set():
        return
    if broker.config.boolean("controlled.shutdown.enable"):
        with trio.CancelScope(shield=True) as farewell:
            nursery.start_soon(_end_without_directories, broker, farewell)
            await member.controller_requests.controlled_shutdown(broker.node_id, member.broker_epoch)
            if member.local_controller is not None:
                with trio.move_on_after(MOST_WAIT_FOR_REPLICAS_S):
                    while not member.local_controller.is_idle:  # noqa: ASYNC110 - it gives no event
                        await trio.sleep(LOOK_S)


async def _end_without_directories(broker: Broker, farewell: trio.CancelScope) -> None:
    """Ends the controlled shutdown once all data directories have failed.

    Cancellation: ends the controlled shutdown too, because its requests need the tasks that end with this one.
    """
    try:
        await broker.logs.all_failed.wait()
    finally:
        farewell.cancel()


async def wait_for_image(zookeeper: RetryingClient, member: Member) -> None:
    """Waits for the brokers and topics of the cluster, at most `MOST_WAIT_FOR_IMAGE_S` seconds.

    A controller that has just been elected first sends an UpdateMetadata without partitions. The one with all partitions follows,
    unless the cluster has none.

    Differs from Apache Kafka, which has started before it gets the first UpdateMetadata.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request.

    Source: kafka.controller.KafkaController.onControllerFailover.
    """
    with trio.move_on_after(MOST_WAIT_FOR_IMAGE_S) as waiting:
        await member.has_brokers.wait()
        topics = await zookeeper.find(GetChildren(paths.TOPICS))
        if topics is not None and topics.names:
            await member.has_image.wait()
    if not member.has_brokers.is_set():
        log.warning(
            "The broker starts without a controller: it knows no topics, and clients wait",
            remedy="look at the log of the broker that the znode /controller names; it must reach this broker at the addresses "
            "of `Registered in ZooKeeper`",
        )
    elif waiting.cancelled_caught:
        log.warning(
            "The broker starts before the controller has sent it the topics of the cluster",
            remedy="look at the log of the controller if clients do not find their topics",
        )
