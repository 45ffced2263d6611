"""What clients ask for in the znodes of topics."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from wirekafka.controller.administration import (
    CreatedTopic,
    Deletion,
    Dice,
    Growth,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
)
from wirekafka.controller.scripts import Script, run_script
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.controller.stage import Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.topics import ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Delete, Multi, Operation, SetData, ZooKeeperError

T = TypeVar("T")

TOPIC_ID = b"i" * 16
DICE = Dice(below=lambda count: 0, topic_id=lambda: TOPIC_ID)


def new(
    name: str = "flights",
    partition_count: int = 2,
    replication_factor: int = 2,
    assignments: Mapping[int, tuple[int, ...]] | None = None,
    **configs: str,
) -> NewTopic:
    values = {key.replace("_", "."): value for key, value in configs.items()}
    return NewTopic(name, partition_count, replication_factor, assignments, values)


def a_stage(*broker_ids: int) -> Stage:
    stage = Stage()
    for broker_id in broker_ids or (1, 2, 3):
        stage.add_broker(broker_id)
    return stage


def create(stage: Stage, *topics: NewTopic, validate_only: bool = False) -> list[CreatedTopic | KafkaError]:
    return stage.run(create_topics(stage.context, topics, DICE, validate_only=validate_only))


def stored(stage: Stage, name: str) -> TopicAssignment | None:
    found = stage.data(paths.topic(name))
    return None if found is None else TopicAssignment.read(name, found.data)


def configs_of(stage: Stage, name: str) -> dict[str, str] | None:
    found = stage.data(paths.configs("topics", name))
    return None if found is None else dict(EntityConfigs.read(name, found.data).values)


def codes(outcomes: list[Any]) -> list[ErrorCode]:
    return [each.code if isinstance(each, KafkaError) else ErrorCode.NONE for each in outcomes]


# New topics


def test_new_topic_has_its_replicas_its_id_and_its_settings() -> None:
    stage = a_stage()
    assert create(stage, new(cleanup_policy="compact")) == [CreatedTopic(TOPIC_ID, 2, 2)]
    assert stored(stage, "flights") == TopicAssignment(TOPIC_ID, {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 3))})
    assert configs_of(stage, "flights") == {"cleanup.policy": "compact"}


def test_new_topic_without_settings_has_an_empty_znode_of_settings() -> None:
    """As Apache Kafka's (AdminZkClient.createTopicWithAssignment), which tools read."""
    stage = a_stage()
    create(stage, new())
    assert configs_of(stage, "flights") == {}


def test_new_topic_has_the_brokers_that_the_client_has_chosen() -> None:
    stage = a_stage()
    assert create(stage, new(assignments={1: (3, 2), 0: (2, 9)})) == [CreatedTopic(TOPIC_ID, 2, 2)]
    found = stored(stage, "flights")
    assert found is not None
    assert [found.partitions[index].replicas for index in (0, 1)] == [(2, 9), (3, 2)]


def test_replicas_are_in_different_racks() -> None:
    stage = Stage()
    for broker_id, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        stage.add_broker(broker_id, rack=rack)
    create(stage, new(partition_count=8))
    found = stored(stage, "flights")
    assert found is not None
    assert all({each // 3 for each in partition.replicas} == {0, 1} for partition in found.partitions.values())


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        (new("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (new(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (new("cities"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'cities' already exists."),
        (new("doomed"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'doomed' is marked for deletion."),
        (new("my_topic"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'my_topic' collides with existing topics: my.topic"),
        (new(partition_count=0), ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."),
        (new(replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."),
        (
            new(replication_factor=4),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor: 4 larger than available brokers: 3.",
        ),
        (
            new(assignments={0: (1, 2), 1: (1,)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "All partitions should have the same number of replicas",
        ),
        (new(assignments={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Duplicate replica assignment found: 1, 1"),
        (new(assignments={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Cannot have replication factor of 0"),
        (new(assignments={0: (-1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Invalid broker id"),
        (
            new(assignments={1: (1,), 2: (2,)}),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (new(password="x" * 1_000_000), ErrorCode.POLICY_VIOLATION, "The topic would take"),
        (new(assignments={0: tuple(range(200_000))}), ErrorCode.POLICY_VIOLATION, "The topic would take"),
    ],
)
def test_topic_that_cannot_be_created_is_refused_and_leaves_nothing(topic: NewTopic, error: ErrorCode, message: str) -> None:
    stage = a_stage()
    stage.add_topic("cities", {0: (1,)})
    stage.add_topic("my.topic", {0: (1,)})
    stage.add_topic("doomed", {0: (1,)})
    stage.do(Create(paths.deleted_topic("doomed"), None))
    before = stage.children(paths.TOPICS)
    [refused, created] = create(stage, topic, new("other"))
    assert isinstance(refused, KafkaError)
    assert refused.code is error
    assert str(refused.message).startswith(message)
    assert isinstance(created, CreatedTopic)
    assert {*stage.children(paths.TOPICS)} == {*before, "other"}
    assert stage.children("/config/topics") == ("other",)


def test_without_brokers_no_topic_is_created() -> None:
    stage = Stage()
    assert codes(create(stage, new(replication_factor=1))) == [ErrorCode.INVALID_REPLICATION_FACTOR]


def test_topics_of_one_request_may_not_collide() -> None:
    stage = a_stage()
    outcomes = create(stage, new("a.b"), new("a_b"), new("a-b"))
    assert codes(outcomes) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


def test_validation_alone_writes_nothing() -> None:
    stage = a_stage()
    outcomes = create(stage, new(), new("bad", replication_factor=4), validate_only=True)
    assert codes(outcomes) == [ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR]
    assert stage.children(paths.TOPICS) == stage.children("/config/topics") == ()


def test_settings_that_were_left_behind_are_replaced() -> None:
    stage = a_stage()
    stage.do(Create(paths.configs("topics", "flights"), EntityConfigs({"retention.ms": "1"}).write()))
    assert codes(create(stage, new(cleanup_policy="compact"))) == [ErrorCode.NONE]
    assert configs_of(stage, "flights") == {"cleanup.policy": "compact"}


def interfere(stage: Stage, act: Callable[[], object]) -> None:
    """Lets something happen after the first reads of the script, and before its first multi."""
    acts = [act]

    def choose(operation: object) -> Fault | None:
        if acts:
            acts.pop()()
        return None

    stage.client.choose_fault = choose


@pytest.mark.parametrize("is_left", [False, True])
def test_settings_that_appear_or_disappear_meanwhile_do_not_hinder(is_left: bool) -> None:
    stage = a_stage()
    other = stage.connect()
    path, content = paths.configs("topics", "flights"), EntityConfigs({"retention.ms": "1"}).write()
    if is_left:
        stage.do(Create(path, content))
    stage.turn()
    interfere(stage, lambda: other.submit(Delete(path) if is_left else Create(path, content), lambda result: None))
    assert codes(create(stage, new(cleanup_policy="compact"))) == [ErrorCode.NONE]
    assert configs_of(stage, "flights") == {"cleanup.policy": "compact"}


def longest_turn_ms(stage: Stage, script: Script[Any]) -> float:
    """Runs a script; returns the CPU time of its longest turn of the loop, without garbage collection."""
    longest = 0.0
    results: list[Any] = []
    gc.disable()
    try:
        stage.steps.append(lambda: run_script(stage.client, script, results.append, stage.steps.append))
        while stage.steps:
            step = stage.steps.popleft()
            began = time.thread_time()
            step()
            longest = max(longest, time.thread_time() - began)
    finally:
        gc.enable()
    assert len(results) == 1
    return longest * 1000


MOST_MS = 2 * 50
"""A tolerance: the same work takes up to twice the CPU time if other work shares the caches (2026-11)."""


def test_large_topics_do_not_hold_the_loop() -> None:
    stage = a_stage()
    creation = create_topics(stage.context, [new(partition_count=9_999, replication_factor=3)], DICE, validate_only=False)
    assert longest_turn_ms(stage, creation) < MOST_MS
    found = stored(stage, "flights")
    assert found is not None
    assert len(found.partitions) == 9_999
    growth = create_partitions(stage.context, [Growth("flights", 12_000, None)], lambda count: None, validate_only=False)
    assert longest_turn_ms(stage, growth) < MOST_MS


def test_deposed_controller_creates_nothing() -> None:
    stage = a_stage()
    stage.depose()
    with pytest.raises(DeposedError):
        create(stage, new())
    assert stage.children(paths.TOPICS) == stage.children("/config/topics") == ()


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST])
def test_creation_whose_outcome_is_unknown_can_be_repeated(fault: Fault) -> None:
    stage = a_stage()
    stage.client.choose_fault = lambda operation: fault if isinstance(operation, Multi) else None
    with pytest.raises(ZooKeeperError):
        create(stage, new(cleanup_policy="compact"))
    stage.client.choose_fault = lambda operation: None
    stage.client.tick()
    stage.turn()
    expected = ErrorCode.NONE if fault is Fault.REQUEST_LOST else ErrorCode.TOPIC_ALREADY_EXISTS
    assert codes(create(stage, new(cleanup_policy="compact"))) == [expected]
    assert stored(stage, "flights") is not None
    assert configs_of(stage, "flights") == {"cleanup.policy": "compact"}


# More partitions


def grow(stage: Stage, *growths: Growth, validate_only: bool = False, take: Any = lambda count: None) -> list[int | KafkaError]:
    return stage.run(create_partitions(stage.context, growths, take, validate_only=validate_only))


def test_added_partitions_continue_the_round_of_the_first_replica() -> None:
    """The first replica of partition 0 is on the second broker, so that of partition 2 is two brokers later."""
    stage = a_stage(1, 2, 3)
    stage.add_topic("flights", {0: (2, 3), 1: (3, 1)})
    assert grow(stage, Growth("flights", 4, None)) == [4]
    found = stored(stage, "flights")
    assert found is not None
    assert {index: each.replicas for index, each in found.partitions.items()} == {0: (2, 3), 1: (3, 1), 2: (1, 3), 3: (2, 3)}
    assert found.topic_id == stage.context.topics["flights"].topic_id


def test_added_partitions_have_the_brokers_that_the_client_has_chosen() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (2, 3)})
    assert grow(stage, Growth("flights", 3, [(3, 1), (1, 2)])) == [3]
    found = stored(stage, "flights")
    assert found is not None
    assert [found.partitions[index].replicas for index in range(3)] == [(2, 3), (3, 1), (1, 2)]


@pytest.mark.parametrize(
    ("growth", "error", "message"),
    [
        (Growth("none", 4, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'none' does not exist."),
        (Growth("a/b", 4, None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'a/b' does not exist."),
        (Growth("doomed", 4, None), ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion."),
        (
            Growth("moving", 4, None),
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            "A partition reassignment is in progress for the topic 'moving'.",
        ),
        (
            Growth("flights", 1, None),
            ErrorCode.INVALID_PARTITIONS,
            "Topic currently has 2 partitions, which is higher than the requested 1.",
        ),
        (Growth("flights", 2, None), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partitions."),
        (
            Growth("flights", 3, [(1, 9)]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unknown broker(s) in replica assignment: 9.",
        ),
        (
            Growth("flights", 4, [(1, 2)]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Increasing the number of partitions by 2 but 1 assignments provided.",
        ),
        (
            Growth("flights", 3, [()]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Cannot have replication factor of 0 for partition id 2.",
        ),
        (
            Growth("flights", 3, [(1, 1)]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Duplicate brokers not allowed in replica assignment: 1, 1 for partition id 2.",
        ),
        (
            Growth("flights", 4, [(1, 2), (1,)]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Inconsistent replication factor between partitions, partition 0 has 2 while partitions [3] have replication "
            "factors [1], respectively.",
        ),
        (
            Growth("wide", 3, None),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor: 4 larger than available brokers: 3.",
        ),
    ],
)
def test_topic_that_cannot_grow_stays_as_it_is(growth: Growth, error: ErrorCode, message: str) -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1, 2), 1: (2, 3)})
    stage.add_topic("wide", {0: (1, 2, 3, 4)})
    stage.add_topic("doomed", {0: (1,)})
    stage.do(Create(paths.deleted_topic("doomed"), None))
    moving = TopicAssignment(TOPIC_ID, {0: ReplicaAssignment((1, 2), adding_replicas=(2,))})
    stage.do(Create(paths.topic("moving"), moving.write()))
    before = [stage.data(paths.topic(name)) for name in stage.children(paths.TOPICS)]
    [refused] = grow(stage, growth)
    assert isinstance(refused, KafkaError)
    assert (refused.code, refused.message) == (error, message)
    assert before == [stage.data(paths.topic(name)) for name in stage.children(paths.TOPICS)]


def test_growth_that_is_only_validated_writes_nothing() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    assert grow(stage, Growth("flights", 4, None), validate_only=True) == [4]
    found = stored(stage, "flights")
    assert found is not None
    assert [*found.partitions] == [0]


def test_growth_counts_the_added_partitions() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    taken: list[int] = []

    def take(count: int) -> None:
        taken.append(count)
        raise KafkaError(ErrorCode.POLICY_VIOLATION)

    assert codes(grow(stage, Growth("flights", 4, None), take=take)) == [ErrorCode.POLICY_VIOLATION]
    assert taken == [3]


def test_growth_keeps_what_changed_meanwhile() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    other = stage.connect()
    stage.turn()
    changed = TopicAssignment(TOPIC_ID, {0: ReplicaAssignment((3,))}, {"extension": 1})
    interfere(stage, lambda: other.submit(SetData(paths.topic("flights"), changed.write()), lambda result: None))
    assert grow(stage, Growth("flights", 2, None)) == [2]
    found = stored(stage, "flights")
    assert found is not None
    assert [found.partitions[index].replicas for index in (0, 1)] == [(3,), (1,)]
    assert found.unknown == {"extension": 1}


def test_deposed_controller_adds_no_partitions() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    stage.depose()
    with pytest.raises(DeposedError):
        grow(stage, Growth("flights", 4, None))
    found = stored(stage, "flights")
    assert found is not None
    assert [*found.partitions] == [0]


def in_one_step(stage: Stage, script: Script[T]) -> T:
    """Runs a script that asks ZooKeeper one thing at most."""

    def counted() -> Script[T]:
        received: Any = None
        asked: list[object] = []
        while True:
            try:
                step = script.send(received)
            except StopIteration as ended:
                result: T = ended.value
                return result
            asked += [step] if isinstance(step, Operation) else step or ()
            assert len(asked) <= 1
            received = yield step

    return stage.run(counted())


def test_topics_that_do_not_exist_are_refused_together() -> None:
    stage = a_stage()
    names = [f"none-{number}" for number in range(100)]
    growths = [Growth(name, 4, None) for name in names]
    outcomes = in_one_step(stage, create_partitions(stage.context, growths, lambda count: None, validate_only=False))
    assert codes(outcomes) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 100
    deletions = in_one_step(stage, delete_topics(stage.context, names, allow))
    assert codes([each.error for each in deletions]) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 100


def test_topic_that_the_controller_has_not_seen_yet_can_grow_and_be_deleted() -> None:
    stage = a_stage()
    create(stage, new("flights"))
    assert "flights" not in stage.context.topics
    assert grow(stage, Growth("flights", 4, None)) == [4]
    assert delete(stage, "flights") == [Deletion("flights", None)]


# Deletion


def allow(name: str, topic_id: bytes | None, *, is_named: bool) -> None:
    """Allows everything."""


def delete(stage: Stage, *asked: str | bytes, check: Any = allow) -> list[Deletion]:
    return stage.run(delete_topics(stage.context, asked, check))


def test_topics_are_deleted_by_name_and_by_id() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    stage.add_topic("cities", {0: (1,)}, topic_id=TOPIC_ID)
    assert delete(stage, "flights", TOPIC_ID) == [Deletion("flights", None), Deletion("cities", None)]
    assert stage.children(paths.DELETE_TOPICS) == ("cities", "flights")


def test_topic_that_is_being_deleted_is_no_error() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    delete(stage, "flights")
    assert delete(stage, "flights") == [Deletion("flights", None)]


def test_topic_that_does_not_exist_is_not_deleted() -> None:
    stage = a_stage()
    stage.add_topic("gone", {0: (1,)})
    stage.do(Delete(paths.topic("gone")))
    outcomes = delete(stage, "none", "a/b", b"?" * 16, "gone")
    assert [each.name for each in outcomes] == ["none", "a/b", None, "gone"]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes([each.error for each in outcomes]) == [unknown, unknown, ErrorCode.UNKNOWN_TOPIC_ID, unknown]
    assert stage.children(paths.DELETE_TOPICS) == ()


def test_topic_that_the_client_may_not_delete_stays_and_its_name_is_not_told() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)}, topic_id=TOPIC_ID)

    def check(name: str, topic_id: bytes | None, *, is_named: bool) -> None:
        assert (name, topic_id) == ("flights", TOPIC_ID)
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    outcomes = delete(stage, "flights", TOPIC_ID, check=check)
    assert [each.name for each in outcomes] == ["flights", None]
    assert codes([each.error for each in outcomes]) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    assert stage.children(paths.DELETE_TOPICS) == ()


def test_deposed_controller_deletes_nothing() -> None:
    stage = a_stage()
    stage.add_topic("flights", {0: (1,)})
    stage.depose()
    with pytest.raises(DeposedError):
        delete(stage, "flights")
    assert stage.children(paths.DELETE_TOPICS) == ()
