"""Topics in ZooKeeper: new ones, those that grow, those that vanish, and the assignments that the controller writes.

Rules of this file:
    A watch is left on `/brokers/topics` and on each topic, so that the next change becomes an event.
    Only the partitions that the controller does not know are taken from a znode: the assignments of the others change by
    reassignments alone.
    A znode is written with the version that was read just before, and with the keys that this release does not know.

Source: kafka.controller.KafkaController (processTopicChange, processTopicIds, processPartitionModifications,
onNewPartitionCreation, updateReplicaAssignmentForPartition) of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import structlog

from wirekafka.controller.context import ControllerContext, Topic
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.controller.writes import checked, raise_if_deposed
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition, new_topic_id
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MOST_BYTES, MalformedZnodeError
from wirekafka.zookeeper.layout.topics import ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.session import (
    Children,
    Data,
    GetChildren,
    GetData,
    Multi,
    SetData,
    WriteResult,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

MOST_LOGGED = 10
"""The most topics or partitions in one line of the log."""


class _Stored(NamedTuple):
    """The znode of a topic, and its version."""

    content: TopicAssignment
    version: int


def look_at_topics(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Reads which topics exist, forgets those that vanished, and elects leaders for the partitions of new ones.

    Source: KafkaController.processTopicChange.
    """
    children: Children = yield GetChildren(paths.TOPICS, watch=True)
    existing = set(children.names)
    vanished = [name for name in context.topics if name not in existing]
    if vanished:
        first = vanished[:MOST_LOGGED]
        log.warning("Topics that nobody asked to delete have vanished from ZooKeeper", count=len(vanished), first=first)
    for name in vanished:
        context.remove_topic(name)
        yield PAUSE
    yield from _take_new(context, batch, [name for name in children.names if name not in context.topics])


def _take_new(context: ControllerContext, batch: RequestBatch, unknown: Collection[str]) -> Script[None]:
    """Reads topics, and elects leaders for the partitions of those that exist."""
    new = yield from read_topics(context, unknown)
    if not new:
        return
    log.info("Creating topics", count=len(new), first=[topic.name for topic in new[:MOST_LOGGED]])
    names: list[TopicPartition] = []
    for topic in new:
        context.put_topic(topic)
        names += context.partitions_of(topic.name)
        yield PAUSE
    yield from _create(context, batch, names)


def look_at_partitions(context: ControllerContext, batch: RequestBatch, name: str) -> Script[None]:
    """Reads the assignment of a topic, and elects leaders for its new partitions. A topic that is being deleted does not grow.

    A topic whose content was malformed becomes known when its znode is corrected.

    Source: KafkaController.processPartitionModifications.
    """
    if name not in context.topics:
        yield from _take_new(context, batch, [name])
        return
    [data] = yield [GetData(paths.topic(name), watch=True)]
    stored = yield from _read(name, data)
    if stored is None:
        return
    topic = context.topics[name]
    topic.version = stored.version
    added = {index: each for index, each in stored.content.partitions.items() if index not in topic.assignments}
    if not added:
        return
    if context.is_deleting(name):
        first = sorted(added)[:MOST_LOGGED]
        log.warning("A topic that is being deleted gets no new partitions", topic=name, count=len(added), first=first)
        yield from _write(context, {name: _Change(removed=frozenset(added))})
        return
    log.info("Creating partitions", topic=name, count=len(added), first=sorted(added)[:MOST_LOGGED])
    topic.assignments.update(added)
    yield from _create(context, batch, [TopicPartition(name, index) for index in sorted(added)])


def _create(context: ControllerContext, batch: RequestBatch, names: list[TopicPartition]) -> Script[None]:
    """Elects the first leaders. A partition without a replica that is online gets its leader when a broker returns."""
    failures = yield from elect(context, batch, batch.settings, names, Election.OFFLINE)
    if failures:
        first = {str(name): str(error) for name, error in islice(failures.items(), MOST_LOGGED)}
        log.warning("New partitions have no leader", count=len(failures), first=first)


def read_topics(context: ControllerContext, names: Collection[str]) -> Script[list[Topic]]:
    """Reads topics, and leaves a watch on each. A topic without an id gets one.

    Returns:
        the topics, in the order of their names; without those that do not exist any more, or whose content is malformed.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: a topic could not be read or written.
    """
    found: list[Data | ZooKeeperError] = yield [GetData(paths.topic(name), watch=True) for name in names]
    topics: list[Topic] = []
    without_id: list[tuple[Topic, TopicAssignment]] = []
    for name, data in zip(names, found, strict=True):
        stored = yield from _read(name, data)
        if stored is not None:
            topic = Topic(name, stored.content.topic_id, stored.version, dict(stored.content.partitions))
            topics.append(topic)
            if topic.topic_id is None:
                without_id.append((topic, stored.content))
        yield PAUSE
    yield from _give_ids(context, without_id)
    return topics


def _read(name: str, data: Data | ZooKeeperError) -> Script[_Stored | None]:
    """Reads the znode of a topic; None if it does not exist, or the content is malformed."""
    if isinstance(data, ZooKeeperError):
        if data.code is not ZooKeeperErrorCode.NO_NODE:
            raise data
        return None
    try:
        content = yield from TopicAssignment.reading(name, data.data)
        return _Stored(content, data.stat.version)
    except MalformedZnodeError as error:
        remedy = f"correct {paths.topic(name)}, or delete it if there shall be no such topic"
        log.error("A topic is ignored until its znode is corrected", topic=name, reason=str(error), remedy=remedy)
        return None


def _give_ids(context: ControllerContext, topics: Sequence[tuple[Topic, TopicAssignment]]) -> Script[None]:
    """Gives ids to topics of a release before 2.8; a topic that somebody else writes meanwhile stays without.

    Source: KafkaController.processTopicIds, KafkaZkClient.setTopicIds.
    """
    ids: list[bytes] = []
    writes: list[Multi] = []
    for topic, content in topics:
        topic_id = new_topic_id()
        data = yield from replace(content, topic_id=topic_id).writing()
        ids.append(topic_id)
        writes.append(checked(context, [SetData(paths.topic(topic.name), data, topic.version)]))
        yield PAUSE
    outcomes: list[object] = yield writes
    for (topic, _), topic_id, outcome in zip(topics, ids, outcomes, strict=True):
        raise_if_deposed(outcome)
        if not isinstance(outcome, ZooKeeperError):
            topic.topic_id, topic.version = topic_id, topic.version + 1


@dataclass(slots=True)
class _Change:
    """What changes in the znode of a topic."""

    assignments: dict[int, ReplicaAssignment] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()


Failures = dict[str, KafkaError]
"""The topics that could not be written, and why: UNKNOWN_SERVER_ERROR, POLICY_VIOLATION."""


def write_assignments(context: ControllerContext, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> Script[Failures]:
    """Writes the replicas of partitions to the znodes of their topics, each topic once, and then to the context.

    Returns:
        the failures: UNKNOWN_SERVER_ERROR if the topic does not exist any more or its content is malformed; POLICY_VIOLATION if
        ZooKeeper does not take so much content.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the outcome is unknown, or ZooKeeper refuses a write.
    """
    changes: dict[str, _Change] = {}
    for name, assignment in assignments.items():
        changes.setdefault(name.topic, _Change()).assignments[name.partition] = assignment
    return (yield from _write(context, changes))


def _write(context: ControllerContext, changes: dict[str, _Change]) -> Script[Failures]:
    """Changes the znodes of topics; returns the failures."""
    failures: Failures = {}
    while changes:
        writes = yield from _read_and_change(changes, failures)
        outcomes: list[tuple[WriteResult, ...] | ZooKeeperError] = yield [checked(context, [each]) for each in writes.values()]
        again: dict[str, _Change] = {}
        for topic, outcome in zip(writes, outcomes, strict=True):
            raise_if_deposed(outcome)
            if isinstance(outcome, ZooKeeperError):
                if outcome.code not in (ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE):
                    raise outcome
                again[topic] = changes[topic]
            else:
                context.topics[topic].assignments.update(changes[topic].assignments)
                context.topics[topic].version = writes[topic].version + 1
        changes = again
    return failures


def _read_and_change(changes: Mapping[str, _Change], failures: Failures) -> Script[dict[str, SetData]]:
    """Returns the writes that change topics."""
    found: list[Data | ZooKeeperError] = yield [GetData(paths.topic(topic)) for topic in changes]
    writes: dict[str, SetData] = {}
    for (topic, change), data in zip(changes.items(), found, strict=True):
        stored = yield from _read(topic, data)
        yield PAUSE
        content = b"" if stored is None else (yield from _changed(stored.content, change))
        yield PAUSE
        if stored is None:
            failures[topic] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The znode of the topic is missing or damaged.")
        elif len(content) > MOST_BYTES:
            message = f"The topic would take {len(content)} bytes in ZooKeeper, which takes at most {MOST_BYTES}."
            failures[topic] = KafkaError(ErrorCode.POLICY_VIOLATION, message)
        else:
            writes[topic] = SetData(paths.topic(topic), content, stored.version)
    return writes


def _changed(content: TopicAssignment, change: _Change) -> Script[bytes]:
    merged = {**content.partitions, **change.assignments}
    partitions = {index: each for index, each in merged.items() if index not in change.removed}
    yield PAUSE
    return (yield from replace(content, partitions=partitions).writing())
