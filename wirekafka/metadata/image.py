"""The image of the cluster: its brokers, its topics and the leaders of their partitions, from the controller's UpdateMetadata.

How it works: the controller sends UpdateMetadata with all live brokers and with the partitions that have changed. A broker that
has just registered gets all partitions. Handlers answer clients from the image, which may be older than that of other brokers.

Rules of this file:
    Every UpdateMetadata replaces the brokers and the controller as a whole, and the partitions that it names.
    A request with many partitions is taken in steps. One step replaces all partitions of one topic that the request names: a
    client that saw some of them only would spread keys over too few partitions. The new mapping is made in steps before.
    The image does not affect the logs of this broker: LeaderAndIsr and StopReplica do.
    If the first request after a registration of this broker names partitions, it names all of them. Topics that it does not name
    were deleted while this broker had no session. A controller that has just been elected sends a request without partitions
    first, and may tell the partitions by several requests. It is not known then what was deleted.

Differs from Apache Kafka:
    A broker of Apache Kafka whose session has expired keeps the topics that were deleted meanwhile, until it is restarted.
    Clients that ask it see them, and a transaction with such a topic never ends.
    A request with more than 10,000 endpoints of brokers is refused, and partitions with more than 1,000 replicas are ignored.
    Each client would get them in each response.

Source: kafka.server.metadata.ZkMetadataCache, kafka.controller.KafkaController (onBrokerStartup) of Apache Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.names import INTERNAL_TOPICS, NO_LEADER_ID, ZERO_TOPIC_ID
from wirekafka.pending import Work
from wirekafka.wire.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

log = structlog.get_logger(__name__)

UNKNOWN_BROKER_EPOCH = -1
"""The broker epoch of a request before version 5."""

LEADER_DURING_DELETE = -2
"""The leader of a partition that the controller deletes (LeaderAndIsr.LeaderDuringDelete)."""

PARTITIONS_AT_ONCE = 200
"""The number of partitions, or of brokers, that are read from a request in one step, in a quarter of a millisecond."""

MOST_UNTOLD = 1000
"""The index of a partition may be this far above the number of the topic's known partitions. UpdateMetadata leaves out the
partitions between them, because they have never had a leader."""

MOST_REPLICAS = 1_000
"""The most replicas that a partition may have. A step takes all of them, and a step of a response has those of 64 partitions."""

MOST_ENDPOINTS = 10_000
"""The most endpoints of all brokers together. Every response to Metadata has all brokers, and is made in one step (12 ms)."""

MOST_NAMED = 10
"""The most partitions that a line of the log names."""

SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
"""Kafka's security protocols, by number. Before version 3 of UpdateMetadata, they are the names of the listeners too."""


class Endpoint(NamedTuple):
    """The address at which a broker listens for one listener; `security_protocol` is Kafka's name, such as PLAINTEXT."""

    host: str
    port: int
    security_protocol: str


class LiveBroker(NamedTuple):
    """A broker that is registered in the cluster; its endpoints by the name of the listener."""

    broker_id: int
    endpoints: dict[str, Endpoint]
    rack: str | None


class PartitionImage(NamedTuple):
    """The state of a partition. A partition without a leader has the leader -1."""

    leader: int
    leader_epoch: int
    in_sync_replicas: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


class TopicImage:
    """A topic; its partitions by index. Partitions that have never had a leader may be missing."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions: dict[int, PartitionImage] = {}

    def __repr__(self) -> str:
        return f"<TopicImage {self.name} of {len(self.partitions)} partitions>"

    @property
    def is_internal(self) -> bool:
        """Whether coordinators keep their state in the topic."""
        return self.name in INTERNAL_TOPICS


class Node(NamedTuple):
    """A live broker as the clients of one listener reach it."""

    broker_id: int
    host: str
    port: int
    rack: str | None


class DescribedPartition(NamedTuple):
    """A partition as Metadata describes it; `leader` is -1 if clients cannot reach the leader."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    in_sync_replicas: Sequence[int]
    offline_replicas: Sequence[int]


BeforeTopicChange = Callable[[str, bytes, int], Work[None]]
"""Called with the name and the id of a topic, and one more than the highest index of the partitions that are taken next."""

OnTopicChange = Callable[[str, TopicImage | None, Sequence[int]], object]
"""Called with the name of a topic, the topic or None if it was deleted, and the indexes of the partitions that have changed."""


class ClusterImage:
    """The image of the cluster.

    Attributes:
        brokers: the live brokers, by id.
        controller_id: the controller that sent the newest request; None before the first request.
        controller_epoch: the epoch of that controller; 0 before the first request.
        whole_epoch: the epoch of the controller whose request with partitions was last taken to its end; None before the first.
        topics: the topics, by name.
        by_id: the topics that have ids, by id.
        stored_counts: the partition counts of topics that ZooKeeper had at the start, before the controller tells them.
        untold: the topics that ZooKeeper had at the start, until they are deleted or a request with partitions was taken to its
            end. A task of the member removes those that are deleted.
        on_brokers_change: called after the live brokers or the controller have changed.
        before_topic_change: called before partitions of a topic are taken.
        on_topic_change: called after partitions of a topic have changed, or the topic was deleted.
        after_topic_change: called after `on_topic_change`; the work is done in steps.
        after_update: called after a request has changed topics, or the first of them.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, LiveBroker] = {}
        self.controller_id: int | None = None
        self.controller_epoch = 0
        self.whole_epoch: int | None = None
        self.topics: dict[str, TopicImage] = {}
        self.by_id: dict[bytes, TopicImage] = {}
        self.stored_counts: dict[str, int] = {}
        self.untold: set[str] = set()
        self.on_brokers_change: list[Callable[[], object]] = []
        self.before_topic_change: list[BeforeTopicChange] = []
        self.on_topic_change: list[OnTopicChange] = []
        self.after_topic_change: list[Callable[[], Work[None]]] = []
        self.after_update: list[Callable[[], object]] = []
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        """The newest registration of this broker to which a request was sent that was taken to its end."""

    def update(self, request: UpdateMetadataRequest, is_present: Callable[[], bool] = lambda: True) -> Work[None]:
        """Takes a request of the controller, of any version, in steps of one topic or less each.

        The caller has compared the broker epoch. If a controller of a newer epoch sends a request meanwhile, the rest is not
        taken.

        Args:
            is_present: returns whether the broker epoch of the request may be that of the broker's present registration. A
                request with a later one is taken, but removes no topics.

        Raises:
            KafkaError: STALE_CONTROLLER_EPOCH if a newer controller has sent a request, before this one or meanwhile;
                INVALID_REQUEST if the brokers have more than `MOST_ENDPOINTS` endpoints.
        """
        self._check_epoch(request)
        _check_brokers(request.live_brokers)
        self.controller_epoch = request.controller_epoch
        brokers = yield from _live_brokers(request.live_brokers)
        ungrouped = yield from _grouped(request.ungrouped_partition_states)
        self._check_epoch(request)
        self._take_brokers(request.controller_id, brokers)
        named: set[str] = set()
        try:
            for topic_state in chain(request.topic_states, ungrouped):
                named.add(topic_state.topic_name)
                yield from self._take_topic(request, topic_state)
                self._check_epoch(request)
            if named and request.broker_epoch > self._broker_epoch and is_present():
                yield from self._remove_others(request, named)
        finally:
            for callback in self.after_update:
                callback()

        self._broker_epoch = max(self._broker_epoch, request.broker_epoch)
        if named:
            self.whole_epoch = request.controller_epoch
            self.untold.clear()

    def _remove_others(self, request: UpdateMetadataRequest, named: Container[str]) -> Work[None]:
        """Removes the topics that the first request after a registration does not name."""
        for name in [name for name in self.topics if name not in named]:
            topic = self.topics[name]
            removed = [*topic.partitions.values()]
            self._remove(topic)
            self._tell(name, None, [*topic.partitions])
            del topic
            yield from self._settle()
            yield from _free(removed)
            self._check_epoch(request)

    def _settle(self) -> Work[None]:
        """Lets others do in steps what may follow a change of a topic."""
        yield
        for settle in self.after_topic_change:
            yield from settle()

    def _take_topic(self, request: UpdateMetadataRequest, topic_state: UpdateMetadataTopicState) -> Work[None]:
        """Takes the partitions of one topic: makes the new mapping in steps, replaces the old one in one step, and frees it."""
        name, topic_id = topic_state.topic_name, topic_state.topic_id
        taken = yield from _partition_images(topic_state)
        yield from self._prepare(name, topic_id, taken)
        self._check_epoch(request)
        old = self.topics.get(name)
        known = {} if old is None or _is_other(old, topic_id) else old.partitions
        taken = yield from _credible(name, known, taken)
        merged = yield from _merged(known, taken)
        replaced = [] if old is None else [*old.partitions.values()]
        yield
        self._check_epoch(request)
        self._replace_partitions(name, topic_id, merged, [*taken])
        del old, known, taken, merged
        yield from self._settle()
        yield from _free(replaced)

    def _prepare(self, name: str, topic_id: bytes, taken: dict[int, PartitionImage]) -> Work[None]:
        """Lets others make in steps what they need for the partitions of a topic, which are then taken in one step."""
        topic = self.topics.get(name)
        most_count = (0 if topic is None else len(topic.partitions)) + len(taken) + MOST_UNTOLD
        for prepare in self.before_topic_change:
            yield from prepare(name, topic_id, min(max(taken, default=-1) + 1, most_count))

    @property
    def has_all_topics(self) -> bool:
        """Whether the image has, or has had, the partitions that existed before the last LeaderAndIsr to this broker.

        The first request of a controller may have brokers only. The first request with partitions is taken in steps, and has all
        partitions with a live replica. A controller that has just been elected sends the others in a later request.

        Source: kafka.controller.KafkaController (onControllerFailover, onBrokerStartup), ReplicaStateMachine.startup.
        """
        return self.whole_epoch == self.controller_epoch

    def _check_epoch(self, request: UpdateMetadataRequest) -> None:
        if request.controller_epoch < self.controller_epoch:
            raise KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH)

    def _take_brokers(self, controller: int, brokers: dict[int, LiveBroker]) -> None:
        controller_id = controller if controller >= 0 else None
        if (brokers, controller_id) == (self.brokers, self.controller_id):
            return
        self.brokers, self.controller_id = brokers, controller_id
        for callback in self.on_brokers_change:
            with isolate("A change of the brokers could not be handled"):
                callback()

    def _replace_partitions(
        self, name: str, topic_id: bytes, partitions: dict[int, PartitionImage], indexes: Sequence[int]
    ) -> None:
        topic = self._topic(name, topic_id)
        topic.partitions = partitions
        if partitions:
            self._tell(name, topic, indexes)
        else:
            self._remove(topic)
            self._tell(name, None, indexes)

    def _topic(self, name: str, topic_id: bytes) -> TopicImage:
        """Returns the topic of a request, which is new if its id is another: a topic of that name was deleted meanwhile."""
        topic = self.topics.get(name)
        if topic is not None and _is_other(topic, topic_id):
            gone = [*topic.partitions]
            self._remove(topic)
            self._tell(name, None, gone)
            topic = None
        if topic is None:
            topic = self.topics[name] = TopicImage(name, topic_id)
        if topic.topic_id != topic_id:
            self._forget_id(topic)
            topic.topic_id = topic_id
        if topic_id != ZERO_TOPIC_ID:
            self.by_id[topic_id] = topic
        return topic

    def partition_count(self, name: str) -> int | None:
        """Returns the partition count by which coordinators find the partition of a key; None if it is unknown.

        The count that a topic had when this broker started holds until the topic is deleted, as in Apache Kafka. If partitions
        are added to a topic with state, all brokers find coordinators as before until they are restarted.

        Source: KafkaServer.startup (groupCoordinator.startup), GroupMetadataManager.startup.
        """
        topic = self.topics.get(name)
        told_count = 0 if topic is None else max(topic.partitions, default=-1) + 1
        return self.stored_counts.get(name) or told_count or None

    def _remove(self, topic: TopicImage) -> None:
        self.stored_counts.pop(topic.name, None)
        self.untold.discard(topic.name)
        self.topics.pop(topic.name, None)
        self._forget_id(topic)

    def _forget_id(self, topic: TopicImage) -> None:
        if self.by_id.get(topic.topic_id) is topic:
            del self.by_id[topic.topic_id]

    def _tell(self, name: str, topic: TopicImage | None, indexes: Sequence[int]) -> None:
        for callback in self.on_topic_change:
            with isolate("A change of a topic could not be handled", topic=name):
                callback(name, topic, indexes)

    def find_partition(self, topic: str | bytes, index: int) -> PartitionImage | None:
        """Returns the state of a partition, by the topic's name or its id as bytes; None if there is no such partition."""
        found = self.topics.get(topic) if isinstance(topic, str) else self.by_id.get(topic)
        return None if found is None else found.partitions.get(index)

    def nodes(self, listener: str) -> list[Node]:
        """Returns the live brokers that the clients of a listener can reach, by id."""
        found = (self.node(broker_id, listener) for broker_id in sorted(self.brokers))
        return [node for node in found if node is not None]

    def node(self, broker_id: int, listener: str) -> Node | None:
        """Returns a broker as the clients of a listener reach it; None if it is not live or has no such listener."""
        broker = self.brokers.get(broker_id)
        if broker is None or listener not in broker.endpoints:
            return None
        endpoint = broker.endpoints[listener]
        return Node(broker_id, endpoint.host, endpoint.port, broker.rack)

    def describe(
        self, state: PartitionImage, listener: str, *, only_live: bool = False, knows_listeners: bool = True
    ) -> DescribedPartition:
        """Describes a partition to a client of a listener.

        The error is LEADER_NOT_AVAILABLE if the leader is not live; LISTENER_NOT_FOUND if it lacks the listener;
        REPLICA_NOT_AVAILABLE if replicas were left out.

        Args:
            only_live: leave out replicas that the client cannot reach (version 0 of Metadata).
            knows_listeners: the client knows LISTENER_NOT_FOUND (version 6 of Metadata); older ones get LEADER_NOT_AVAILABLE.

        Source: ZkMetadataCache.getPartitionMetadata.
        """
        replicas, in_sync_replicas = state.replicas, state.in_sync_replicas
        if only_live:
            replicas = tuple(each for each in replicas if self.node(each, listener) is not None)
            in_sync_replicas = tuple(each for each in in_sync_replicas if self.node(each, listener) is not None)
        leader = state.leader
        if self.node(leader, listener) is None:
            is_unreached = leader in self.brokers and knows_listeners
            error = ErrorCode.LISTENER_NOT_FOUND if is_unreached else ErrorCode.LEADER_NOT_AVAILABLE
            leader = NO_LEADER_ID
        else:
            is_whole = len(replicas) == len(state.replicas) and len(in_sync_replicas) == len(state.in_sync_replicas)
            error = ErrorCode.NONE if is_whole else ErrorCode.REPLICA_NOT_AVAILABLE
        return DescribedPartition(error, leader, state.leader_epoch, replicas, in_sync_replicas, state.offline_replicas)


def _is_other(topic: TopicImage, topic_id: bytes) -> bool:
    """Whether the id shows that the topic was deleted, and another one of its name was created."""
    return ZERO_TOPIC_ID not in (topic.topic_id, topic_id) and topic.topic_id != topic_id


def _credible(name: str, known: dict[int, PartitionImage], taken: dict[int, PartitionImage]) -> Work[dict[int, PartitionImage]]:
    """Returns the partitions whose indexes a topic of the controller can have; the others are left out, and logged.

    Memory for the partitions below an index is taken, so that it must not be as large as a request claims.
    """
    least_count = max(len(known), len(taken))
    if not taken or (min(taken) >= 0 and max(taken) < least_count + MOST_UNTOLD):
        return taken
    new_count = 0
    for number, index in enumerate(taken, 1):
        new_count += index not in known
        if number % PARTITIONS_AT_ONCE == 0:
            yield
    end = len(known) + new_count + MOST_UNTOLD
    credible = {}
    for number, (index, state) in enumerate(taken.items(), 1):
        if 0 <= index < end:
            credible[index] = state
        if number % PARTITIONS_AT_ONCE == 0:
            yield
    if len(credible) < len(taken):
        log.warning(
            "A request names partitions that the topic cannot have; they are ignored", topic=name, known=end - MOST_UNTOLD
        )
    return credible


def _merged(known: dict[int, PartitionImage], taken: dict[int, PartitionImage]) -> Work[dict[int, PartitionImage]]:
    """Returns the partitions of a topic after a request, without those that the controller deletes."""
    merged = known.copy()
    yield
    for number, (index, state) in enumerate(taken.items(), 1):
        if state.leader == LEADER_DURING_DELETE:
            merged.pop(index, None)
        else:
            merged[index] = state
        if number % PARTITIONS_AT_ONCE == 0:
            yield
    return merged


def _free(replaced: list[PartitionImage]) -> Work[None]:
    """Frees partitions that the image no longer has, some in each step."""
    while replaced:
        del replaced[-PARTITIONS_AT_ONCE:]
        yield


def _check_brokers(brokers: Sequence[UpdateMetadataBroker]) -> None:
    """Raises if there are more brokers, or more endpoints of them, than a cluster can have.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    count = len(brokers)
    if count <= MOST_ENDPOINTS:
        count = max(count, sum(len(broker.endpoints) for broker in brokers))
    if count > MOST_ENDPOINTS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a cluster has at most {MOST_ENDPOINTS} endpoints, not {count}")


def _live_brokers(brokers: Iterable[UpdateMetadataBroker]) -> Work[dict[int, LiveBroker]]:
    """Returns the brokers of a request, by id."""
    live = {}
    for number, broker in enumerate(brokers, 1):
        live[broker.id] = _live_broker(broker)
        if number % PARTITIONS_AT_ONCE == 0:
            yield
    return live


def _grouped(states: Iterable[UpdateMetadataPartitionState]) -> Work[list[UpdateMetadataTopicState]]:
    """Returns partitions by topic; before version 5 each one has the name of its topic."""
    grouped: dict[str, list[UpdateMetadataPartitionState]] = {}
    for number, state in enumerate(states, 1):
        grouped.setdefault(state.topic_name, []).append(state)
        if number % PARTITIONS_AT_ONCE == 0:
            yield
    return [UpdateMetadataTopicState(topic_name=name, partition_states=of_topic) for name, of_topic in grouped.items()]


def _live_broker(broker: UpdateMetadataBroker) -> LiveBroker:
    """Returns a broker of a request of any version.

    Source: org.apache.kafka.common.requests.UpdateMetadataRequest (constructor).
    """
    endpoints = {}
    for endpoint in broker.endpoints:
        protocol = SECURITY_PROTOCOLS.get(endpoint.security_protocol, str(endpoint.security_protocol))
        endpoints[endpoint.listener or protocol] = Endpoint(endpoint.host, endpoint.port, protocol)
    if broker.v0_host:
        endpoints["PLAINTEXT"] = Endpoint(broker.v0_host, broker.v0_port, "PLAINTEXT")
    return LiveBroker(broker.id, endpoints, broker.rack or None)


def _partition_images(topic: UpdateMetadataTopicState) -> Work[dict[int, PartitionImage]]:
    """Returns the partitions of a topic in a request, by index, without those that have more than `MOST_REPLICAS` replicas."""
    taken = {}
    overlong: list[int] = []
    for number, state in enumerate(topic.partition_states, 1):
        most = max(len(state.replicas), len(state.isr), len(state.offline_replicas))
        if most > MOST_REPLICAS:
            overlong.append(state.partition_index)
        else:
            taken[state.partition_index] = _partition_image(state)
        if number % PARTITIONS_AT_ONCE == 0 or most > PARTITIONS_AT_ONCE:
            yield
    if overlong:
        log.warning(
            "A request names more replicas than a partition can have; the partitions are ignored",
            topic=topic.topic_name,
            count=len(overlong),
            first=overlong[:MOST_NAMED],
        )
    return taken


def _partition_image(state: UpdateMetadataPartitionState) -> PartitionImage:
    return PartitionImage(
        state.leader,
        state.leader_epoch,
        tuple(state.isr),
        state.zk_version,
        tuple(state.replicas),
        tuple(state.offline_replicas),
    )
