"""Writes what clients ask for into the znodes of topics: new topics, more partitions, and the wish to delete topics.

How it works: these scripts write and answer; they do not touch what the controller knows of topics. Their writes fire the
watches of the controller, which then reads the topics and elects leaders, as it does if a tool has written the znodes.

Rules of this file:
    A name becomes part of a path only if a topic may have it.
    A topic and its settings are written in one multi, the settings first. If the outcome is unknown, the client may repeat its
    request: it creates the topic, or finds that it exists.
    The requests of one call are on their way together; callers give some tens of topics to one call.

Differs from Apache Kafka:
    Apache Kafka writes the settings of a new topic before the topic, in two steps. It does not limit the size of a znode.
    An assignment must name a broker for each partition, and no negative broker id.

Source: kafka.server.ZkAdminManager, kafka.zk.AdminZkClient of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from wirekafka.controller.assignment import Racks, assign_replicas
from wirekafka.controller.context import ControllerContext
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.writes import checked, raise_if_deposed
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.topic_names import check_topic_name, collision_key, is_valid_topic_name
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.content import MOST_BYTES, MalformedZnodeError
from wirekafka.zookeeper.layout.topics import ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.session import (
    Check,
    Create,
    Data,
    Exists,
    GetChildren,
    GetData,
    Operation,
    SetData,
    Write,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

NAMES_AT_ONCE = 1_000
"""How many names of topics are compared without a pause."""

MOST_NAMED = 10
"""The most topics that a line of the log names."""


@dataclass(frozen=True, slots=True)
class Dice:
    """What chance decides of new topics.

    Attributes:
        below: returns a number from 0 to one less than its argument.
        topic_id: returns the id of a new topic; None in a cluster whose release is below 2.8.
    """

    below: Callable[[int], int]
    topic_id: Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that a client wants to have.

    Attributes:
        partition_count, replication_factor: what the brokers of the partitions are found for; without effect with `assignments`.
        assignments: the brokers of each partition, if the client has chosen them.
        configs: the settings of the topic, which the caller has checked.
    """

    name: str
    partition_count: int
    replication_factor: int
    assignments: Mapping[int, tuple[int, ...]] | None
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created, or that can be created."""

    topic_id: bytes | None
    partition_count: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class Growth:
    """More partitions that a client wants a topic to have.

    Attributes:
        partition_count: the number of partitions that the topic shall have.
        assignments: the brokers of each new partition, if the client has chosen them.
    """

    name: str
    partition_count: int
    assignments: Sequence[tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class Deletion:
    """The outcome of the wish to delete a topic.

    Attributes:
        name: None if no topic has the id, or if the client may not know the name.
        error: None if the topic is going to be deleted.
    """

    name: str | None
    error: KafkaError | None


class CheckDeletion(Protocol):
    """Raises KafkaError unless the client may delete a topic."""

    def __call__(self, name: str, topic_id: bytes | None, *, is_named: bool) -> None:
        """Looks at one topic.

        Args:
            topic_id: None if the controller does not know the topic yet.
            is_named: the client has given the name, and not the id.
        """


# New topics


def create_topics(
    context: ControllerContext, topics: Sequence[NewTopic], dice: Dice, *, validate_only: bool
) -> Script[list[CreatedTopic | KafkaError]]:
    """Creates topics, each of which succeeds or fails by itself.

    Args:
        topics: no name occurs twice.
        validate_only: nothing is written.

    Returns:
        For each topic the topic, or one of these errors: INVALID_TOPIC_EXCEPTION, also for a name that differs from another
        topic's in `.` and `_` only; TOPIC_ALREADY_EXISTS, also while the topic is being deleted; INVALID_PARTITIONS;
        INVALID_REPLICATION_FACTOR; INVALID_REPLICA_ASSIGNMENT; POLICY_VIOLATION, its znodes would be too large.

    Raises:
        DeposedError: another broker is the controller.
        ZooKeeperError: the outcome is unknown, or ZooKeeper refuses a request.
    """
    present = yield from _read_present(topics)
    outcomes: dict[str, CreatedTopic | KafkaError] = {}
    planned: list[_PlannedTopic] = []
    for topic in topics:
        try:
            present.check_absent(topic.name)
            plan = yield from _plan(context, topic, dice, has_configs=topic.name in present.configured)
        except KafkaError as error:
            outcomes[topic.name] = _kept(error)
            continue
        planned.append(plan)
        outcomes[topic.name] = plan.created
        present.add(topic.name)
    if not validate_only:
        outcomes |= yield from _write_topics(context, planned)
    return [outcomes[topic.name] for topic in topics]


class _Present:
    """What ZooKeeper has under the names of new topics.

    Attributes:
        existing: the topics that exist.
        deleting: those that shall be deleted.
        configured: those that have settings, which may be left from a creation that was not finished.
    """

    def __init__(self) -> None:
        self.existing: set[str] = set()
        self.deleting: set[str] = set()
        self.configured: set[str] = set()
        self._by_collision_key: dict[str, str] = {}

    def add(self, name: str) -> None:
        """Adds a topic that later ones must not collide with."""
        key = collision_key(name)
        if key is not None:
            self._by_collision_key[key] = name

    def check_absent(self, name: str) -> None:
        """Raises unless a new topic can have this name.

        Raises:
            KafkaError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(name)
        if name in self.deleting:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
        if name in self.existing:
            raise _exists(name)
        collides_with = self._by_collision_key.get(collision_key(name) or "")
        if collides_with is not None:
            message = f"Topic '{name}' collides with existing topics: {collides_with}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _kept(error: KafkaError) -> KafkaError:
    """Returns an error without its traceback, whose frames would stay in memory as long as the result of a large request."""
    return error.with_traceback(None)


def _exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _read_present(topics: Iterable[NewTopic]) -> Script[_Present]:
    present = _Present()
    names = [topic.name for topic in topics if is_valid_topic_name(topic.name)]
    stats = yield from _together(
        Exists(path) for name in names for path in (paths.topic(name), paths.deleted_topic(name), paths.configs("topics", name))
    )
    found = iter(stats)
    for name in names:
        for those in (present.existing, present.deleting, present.configured):
            if next(found) is not None:
                those.add(name)
    if any(collision_key(name) is not None for name in names):
        children = yield GetChildren(paths.TOPICS)
        for count, name in enumerate(children.names, 1):
            present.add(name)
            if count % NAMES_AT_ONCE == 0:
                yield PAUSE
    return present


def _together(operations: Iterable[Operation[Any]]) -> Script[list[Any]]:
    """Sends operations together; returns their results.

    Raises:
        ZooKeeperError: the first of them.
    """
    results: list[Any] = yield [*operations]
    for result in results:
        if isinstance(result, ZooKeeperError):
            raise result
    return results


@dataclass(frozen=True, slots=True)
class _PlannedTopic:
    """A new topic as it is written.

    Attributes:
        has_configs: settings with this name exist.
    """

    name: str
    created: CreatedTopic
    assignment: bytes
    configs: bytes
    has_configs: bool

    def writes(self) -> tuple[Write, Write]:
        """Returns the operations that create the topic."""
        path = paths.configs("topics", self.name)
        configs = SetData(path, self.configs) if self.has_configs else Create(path, self.configs)
        return configs, Create(paths.topic(self.name), self.assignment)


def _plan(context: ControllerContext, topic: NewTopic, dice: Dice, *, has_configs: bool) -> Script[_PlannedTopic]:
    if topic.assignments is not None:
        replicas = _checked_assignments(topic.assignments)
    else:
        racks = _racks(context)
        start, shift = (dice.below(max(len(racks), 1)) for _ in range(2))
        assigned = assign_replicas(racks, topic.partition_count, topic.replication_factor, start=start, shift=shift)
        replicas = yield from in_slices(assigned)
    yield PAUSE
    topic_id = dice.topic_id()
    assignment = TopicAssignment(topic_id, {index: ReplicaAssignment(each) for index, each in enumerate(replicas)})
    yield PAUSE
    content = yield from assignment.writing()
    yield PAUSE
    configs = EntityConfigs(topic.configs).write()
    _check_size(len(content) + len(configs))
    created = CreatedTopic(topic_id, len(replicas), len(replicas[0]))
    return _PlannedTopic(topic.name, created, content, configs, has_configs)


def _racks(context: ControllerContext) -> Racks:
    return {broker_id: broker.registration.rack for broker_id, broker in context.live.items()}


def _check_size(byte_count: int) -> None:
    if byte_count > MOST_BYTES:
        message = f"The topic would take {byte_count} bytes in ZooKeeper, which takes at most {MOST_BYTES}."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)


def _checked_assignments(assignments: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns the brokers of each partition of a new topic, as the client has chosen them. They need not be registered.

    Source: kafka.zk.AdminZkClient.validateTopicCreate.
    """
    if len({len(replicas) for replicas in assignments.values()}) != 1:
        raise _invalid_assignment("All partitions should have the same number of replicas")
    for partition, replicas in assignments.items():
        if not replicas:
            raise _invalid_assignment(f"Cannot have replication factor of 0 for partition id {partition}.")
        if len({*replicas}) != len(replicas):
            raise _invalid_assignment(f"Duplicate replica assignment found: {_shown(replicas)} for partition {partition}")
        if min(replicas) < 0:
            raise _invalid_assignment(f"Invalid broker id in replica list: {_shown(replicas)}")
    if assignments.keys() != {*range(len(assignments))}:
        raise _invalid_assignment("partitions should be a consecutive 0-based integer sequence")
    return [assignments[partition] for partition in range(len(assignments))]


def _invalid_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _shown(values: Iterable[int]) -> str:
    """Returns numbers as a message shows them; a hostile request has many."""
    shown = [*values]
    return ", ".join(map(str, shown[:MOST_NAMED])) + (", ..." if len(shown) > MOST_NAMED else "")


def _write_topics(context: ControllerContext, planned: list[_PlannedTopic]) -> Script[dict[str, KafkaError]]:
    """Writes topics; returns the errors of those that exist by now."""
    failures: dict[str, KafkaError] = {}
    written: list[str] = []
    while planned:
        results: list[object] = yield [checked(context, plan.writes()) for plan in planned]
        repeated: list[_PlannedTopic] = []
        for plan, result in zip(planned, results, strict=True):
            raise_if_deposed(result)
            if not isinstance(result, ZooKeeperError):
                written.append(plan.name)
            elif result.path == paths.topic(plan.name) and result.code is ZooKeeperErrorCode.NODE_EXISTS:
                failures[plan.name] = _exists(plan.name)
            elif _are_configs_changed(plan, result):
                repeated.append(replace(plan, has_configs=not plan.has_configs))
            else:
                raise result
        planned = repeated
    if written:
        log.info("Created topics", count=len(written), topics=written[:MOST_NAMED])
    return failures


def _are_configs_changed(plan: _PlannedTopic, error: ZooKeeperError) -> bool:
    """Whether settings with the name of a new topic have appeared or disappeared since they were looked for."""
    code = ZooKeeperErrorCode.NO_NODE if plan.has_configs else ZooKeeperErrorCode.NODE_EXISTS
    return error.path == paths.configs("topics", plan.name) and error.code is code


# More partitions


def create_partitions(
    context: ControllerContext, growths: Sequence[Growth], take: Callable[[int], None], *, validate_only: bool
) -> Script[list[int | KafkaError]]:
    """Adds partitions to topics, each of which succeeds or fails by itself.

    Args:
        growths: no name occurs twice.
        take: is told how many partitions a topic gets; raises KafkaError if they are too many.
        validate_only: nothing is written.

    Returns:
        For each topic the number of its partitions, or one of these errors: UNKNOWN_TOPIC_OR_PARTITION;
        INVALID_TOPIC_EXCEPTION, the topic is being deleted; REASSIGNMENT_IN_PROGRESS; INVALID_PARTITIONS, as many or more
        partitions exist; INVALID_REPLICA_ASSIGNMENT; INVALID_REPLICATION_FACTOR, fewer brokers are registered than a partition
        has replicas; POLICY_VIOLATION, the znode would be too large; that of `take`.

    Raises:
        DeposedError: another broker is the controller.
        ZooKeeperError: the outcome is unknown, or ZooKeeper refuses a request.
    """
    outcomes: dict[str, int | KafkaError] = {
        growth.name: _unknown(growth.name) for growth in growths if not is_valid_topic_name(growth.name)
    }
    remaining = [growth for growth in growths if growth.name not in outcomes]
    missing = yield from _find_missing(context, [growth.name for growth in remaining])
    outcomes |= {name: _unknown(name) for name in missing}
    remaining = [growth for growth in remaining if growth.name not in missing]
    while remaining:
        found: list[Any] = yield [
            operation
            for growth in remaining
            for operation in (GetData(paths.topic(growth.name)), Exists(paths.deleted_topic(growth.name)))
        ]
        grown: list[tuple[Growth, SetData]] = []
        for growth, topic, deletion in zip(remaining, found[::2], found[1::2], strict=True):
            try:
                grown.append((growth, (yield from _grown(context, growth, topic, deletion, take))))
                outcomes[growth.name] = growth.partition_count
            except KafkaError as error:
                outcomes[growth.name] = _kept(error)
        if validate_only:
            break
        remaining = yield from _write_grown(context, grown)
    return [outcomes[growth.name] for growth in growths]


def _find_missing(context: ControllerContext, names: Iterable[str]) -> Script[set[str]]:
    """Returns the topics that do not exist. One list shows them, because a request may name thousands of them.

    The context alone does not say so: a topic may just have been created.
    """
    unknown = {name for name in names if name not in context.topics}
    if unknown:
        children = yield GetChildren(paths.TOPICS)
        unknown.difference_update(children.names)
    return unknown


def _unknown(name: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _grown(
    context: ControllerContext,
    growth: Growth,
    topic: Data | ZooKeeperError,
    deletion: object,
    take: Callable[[int], None],
) -> Script[SetData]:
    """Returns the operation that adds partitions to a topic.

    Args:
        topic, deletion: what ZooKeeper has of the topic, and of the wish to delete it.
    """
    if isinstance(topic, ZooKeeperError):
        if topic.code is ZooKeeperErrorCode.NO_NODE:
            raise _unknown(growth.name)
        raise topic
    if isinstance(deletion, ZooKeeperError):
        raise deletion
    if deletion is not None or context.is_deleting(growth.name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
    stored = yield from _read_assignment(growth.name, topic.data)
    yield PAUSE
    existing = stored.partitions
    _check_growth(growth, existing)
    take(growth.partition_count - len(existing))
    added = yield from _new_partitions(context, growth, existing)
    partitions = {**existing, **{index: ReplicaAssignment(each) for index, each in enumerate(added, len(existing))}}
    yield PAUSE
    content = yield from replace(stored, partitions=partitions).writing()
    yield PAUSE
    _check_size(len(content))
    return SetData(paths.topic(growth.name), content, topic.stat.version)


def _read_assignment(name: str, data: bytes) -> Script[TopicAssignment]:
    try:
        return (yield from TopicAssignment.reading(name, data))
    except MalformedZnodeError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None


def _check_growth(growth: Growth, existing: Mapping[int, ReplicaAssignment]) -> None:
    """Source: kafka.server.ZkAdminManager.createPartitions."""
    if any(each.adding_replicas or each.removing_replicas for each in existing.values()):
        message = f"A partition reassignment is in progress for the topic '{growth.name}'."
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, message)
    if 0 not in existing:
        message = f"Unexpected existing replica assignment for topic '{growth.name}', partition id 0 is missing."
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
    if growth.partition_count < len(existing):
        message = f"Topic currently has {len(existing)} partitions, which is higher than the requested {growth.partition_count}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if growth.partition_count == len(existing):
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {len(existing)} partitions.")


def _new_partitions(
    context: ControllerContext, growth: Growth, existing: Mapping[int, ReplicaAssignment]
) -> Script[Sequence[tuple[int, ...]]]:
    """Returns the brokers of the new partitions.

    Source: kafka.zk.AdminZkClient.createNewPartitionsAssignment.
    """
    first_replicas = existing[0].replicas
    racks = _racks(context)
    if growth.assignments is not None:
        _check_added(growth, racks, len(existing), len(first_replicas))
        return growth.assignments
    brokers = sorted(racks)
    start = next((place for place, broker_id in enumerate(brokers) if broker_id >= first_replicas[0]), 0)
    added_count = growth.partition_count - len(existing)
    assigned = assign_replicas(racks, added_count, len(first_replicas), start=start, shift=start, first_partition=len(existing))
    return (yield from in_slices(assigned))


def _check_added(growth: Growth, racks: Racks, existing_count: int, replication_factor: int) -> None:
    """Raises unless a topic can get the partitions with the brokers that the client has chosen.

    Source: kafka.server.ZkAdminManager.createPartitions, kafka.zk.AdminZkClient.validateReplicaAssignment.
    """
    assignments = growth.assignments or ()
    added_count = growth.partition_count - existing_count
    unknown = {broker_id for replicas in assignments for broker_id in replicas if broker_id not in racks}
    if unknown:
        raise _invalid_assignment(f"Unknown broker(s) in replica assignment: {_shown(sorted(unknown))}.")
    if len(assignments) != added_count:
        message = f"Increasing the number of partitions by {added_count} but {len(assignments)} assignments provided."
        raise _invalid_assignment(message)
    for partition, replicas in enumerate(assignments, existing_count):
        if not replicas:
            raise _invalid_assignment(f"Cannot have replication factor of 0 for partition id {partition}.")
        if len({*replicas}) != len(replicas):
            message = f"Duplicate brokers not allowed in replica assignment: {_shown(replicas)} for partition id {partition}."
            raise _invalid_assignment(message)
    others = {index: len(each) for index, each in enumerate(assignments, existing_count) if len(each) != replication_factor}
    if others:
        message = (
            f"Inconsistent replication factor between partitions, partition 0 has {replication_factor} while partitions "
            f"[{_shown(others)}] have replication factors [{_shown(others.values())}], respectively."
        )
        raise _invalid_assignment(message)


def _write_grown(context: ControllerContext, grown: Sequence[tuple[Growth, SetData]]) -> Script[list[Growth]]:
    """Writes assignments; returns the topics that have changed or disappeared since they were read."""
    results: list[object] = yield [checked(context, [write]) for _, write in grown]
    changed: list[Growth] = []
    written: list[str] = []
    for (growth, _), result in zip(grown, results, strict=True):
        raise_if_deposed(result)
        if not isinstance(result, ZooKeeperError):
            written.append(growth.name)
        elif result.code in (ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE):
            changed.append(growth)
        else:
            raise result
    if written:
        log.info("Added partitions to topics", count=len(written), topics=written[:MOST_NAMED])
    return changed


# Deletion


def delete_topics(context: ControllerContext, asked: Sequence[str | bytes], check: CheckDeletion) -> Script[list[Deletion]]:
    """Writes that topics shall be deleted; the controller then deletes them. A topic that is being deleted is no error.

    Args:
        asked: names, and ids as bytes.
        check: raises KafkaError unless the client may delete the topic. If the client knows the topic by its id, it is not told
            the name of a topic that is not deleted.

    Returns:
        For each topic its name and its error: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, or that of `check`.

    Raises:
        DeposedError: another broker is the controller.
        ZooKeeperError: the outcome is unknown, or ZooKeeper refuses a request.
    """
    outcomes = [_deletion(context, each, check) for each in asked]
    wanted = {each.name: None for each in outcomes if each.error is None and each.name is not None}
    missing = yield from _find_missing(context, wanted)
    for name in missing:
        del wanted[name]
    results: list[object] = yield [
        checked(context, [Check(paths.topic(name)), Create(paths.deleted_topic(name), None)]) for name in wanted
    ]
    for name, result in zip(wanted, results, strict=True):
        raise_if_deposed(result)
        if isinstance(result, ZooKeeperError):
            if result.code is ZooKeeperErrorCode.NO_NODE and result.path == paths.topic(name):
                missing.add(name)
            elif result.code is not ZooKeeperErrorCode.NODE_EXISTS:
                raise result
    deleted = [name for name in wanted if name not in missing]
    if deleted:
        log.info("Topics shall be deleted", count=len(deleted), topics=deleted[:MOST_NAMED])
    return [Deletion(each.name, _unknown(each.name)) if each.name in missing else each for each in outcomes]


def _deletion(context: ControllerContext, asked: str | bytes, check: CheckDeletion) -> Deletion:
    name = asked if isinstance(asked, str) else context.topic_names.get(asked)
    if name is None:
        return Deletion(None, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID))
    topic = context.topics.get(name)
    try:
        check(name, None if topic is None else topic.topic_id, is_named=isinstance(asked, str))
        if not is_valid_topic_name(name):
            raise _unknown(name)
    except KafkaError as error:
        return Deletion(name if isinstance(asked, str) else None, _kept(error))
    return Deletion(name, None)
