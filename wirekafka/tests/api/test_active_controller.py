"""The answers of a member whose controller is active, with the real controller over a model of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from wirekafka.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wirekafka.api.create_partitions import CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic
from wirekafka.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wirekafka.api.elect_leaders import ElectLeadersRequest, TopicPartitions
from wirekafka.api.list_partition_reassignments import ListPartitionReassignmentsRequest, ListPartitionReassignmentsTopics
from wirekafka.api.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import GROUP_METADATA_TOPIC, ZERO_TOPIC_ID, TopicPartition
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import Caller, run, wait_for
from wirekafka.tests.api.ruling import RulingBroker, rule
from wirekafka.tests.api.test_members import codes_of
from wirekafka.tests.controller.controllers import accept
from wirekafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wirekafka.wire.messages.alter_partition import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
)
from wirekafka.wire.messages.controlled_shutdown import ControlledShutdownRequest
from wirekafka.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from wirekafka.wire.types import Message
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FinalizedFeatures

TIMEOUT_MS = 5_000
NAME = TopicPartition("flights", 0)


def play(test: Callable[[RulingBroker], Any], path: Path, **settings: str) -> None:
    """Runs a test with a broker whose controller is active."""

    async def body(caller: Caller) -> None:
        outcome = test(rule(caller))
        if outcome is not None:
            await outcome

    run(body, path, **settings)


def new(name: str = "flights", partitions: int = 2, factor: int = 2, **fields: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def creation(*topics: CreatableTopic, **fields: Any) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[*topics], **{"timeout_ms": TIMEOUT_MS, **fields})


def codes(results: list[Any]) -> list[tuple[str, ErrorCode]]:
    return [(each.name, ErrorCode.of(each.error_code)) for each in results]


# CreateTopics


@pytest.mark.parametrize("version", range(8))
def test_topic_is_created_with_leaders(tmp_path: Path, version: int) -> None:
    def test(broker: RulingBroker) -> None:
        [result] = broker.ask(creation(new(configs=[CreatableTopicConfig(name="retention.ms", value="5")])), version).topics
        assert (result.name, result.error_code) == ("flights", 0)
        stored = broker.stored_topic("flights")
        assert stored is not None
        assert broker.stored_configs("flights") == {"retention.ms": "5"}
        assert all(broker.member.image.topics["flights"].partitions[index].leader > 0 for index in (0, 1))
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (2, 2)
            assert {each.name: each.value for each in result.configs}["retention.ms"] == "5"
        if version >= 7:
            assert result.topic_id == stored.topic_id

    play(test, tmp_path)


def test_defaults_of_a_new_topic_are_the_brokers(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        [result] = broker.ask(creation(new(partitions=-1, factor=-1)), 7).topics
        assert (result.num_partitions, result.replication_factor) == (3, 1)

    play(test, tmp_path, num_partitions="3")


def assigned(*replicas: tuple[int, list[int]]) -> list[CreatableReplicaAssignment]:
    return [CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in replicas]


def config(name: str, value: str | None) -> list[CreatableTopicConfig]:
    return [CreatableTopicConfig(name=name, value=value)]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (new("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("cities"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new("cities", configs=config("no.such", "1")), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (new(factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (new(configs=config("no.such", "1")), ErrorCode.INVALID_CONFIG),
        (new(configs=config("retention.ms", "x")), ErrorCode.INVALID_CONFIG),
        (new(configs=config("retention.ms", None)), ErrorCode.INVALID_CONFIG),
        (new(assignments=assigned((0, [1]))), ErrorCode.INVALID_REQUEST),
        (new(partitions=-1, factor=-1, assignments=assigned((0, [1]), (0, [2]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(partitions=-1, factor=-1, assignments=assigned((0, [1, 1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_topic_that_is_refused_hinders_no_other(tmp_path: Path, topic: CreatableTopic, error: ErrorCode) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new("cities")), 7)
        results = broker.ask(creation(topic, new("rivers")), 7).topics
        assert codes(results) == [(topic.name, error), ("rivers", ErrorCode.NONE)]
        assert results[0].error_message
        assert (results[0].num_partitions, results[0].replication_factor, results[0].configs) == (-1, -1, [])

    play(test, tmp_path)


def test_topic_that_is_named_twice_is_refused_once(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        results = broker.ask(creation(new(), new("cities"), new()), 7).topics
        assert codes(results) == [("flights", ErrorCode.INVALID_REQUEST), ("cities", ErrorCode.NONE)]
        assert broker.stored_topic("flights") is None

    play(test, tmp_path)


def test_validation_of_topics_creates_none(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        results = broker.ask(creation(new(), new("bad", factor=9), validate_only=True), 7).topics
        assert codes(results) == [("flights", ErrorCode.NONE), ("bad", ErrorCode.INVALID_REPLICATION_FACTOR)]
        assert (results[0].num_partitions, results[0].topic_id) == (2, ZERO_TOPIC_ID)
        assert broker.stored_topic("flights") is None

    play(test, tmp_path)


def test_creation_waits_until_this_broker_has_heard_of_the_leaders(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        broker.is_told = False
        begun = trio.current_time()
        pending = broker.begin(creation(new(), new("bad", factor=9)), 7)
        results = (await wait_for(pending)).topics
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1000)
        assert codes(results) == [("flights", ErrorCode.REQUEST_TIMED_OUT), ("bad", ErrorCode.INVALID_REPLICATION_FACTOR)]
        assert (results[0].num_partitions, results[0].configs) == (-1, [])
        assert broker.stored_topic("flights") is not None

    play(test, tmp_path)


def test_creation_without_timeout_is_answered_at_once(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.is_told = False
        assert codes(broker.ask(creation(new(), timeout_ms=0), 7).topics) == [("flights", ErrorCode.REQUEST_TIMED_OUT)]
        assert broker.stored_topic("flights") is not None

    play(test, tmp_path)


class Allowing:
    """An authorizer that allows some operations only."""

    def __init__(self, *allowed: tuple[Operation, Resource]) -> None:
        self._allowed = allowed

    def is_authorized(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether it is allowed."""
        return (operation, resource) in self._allowed


def play_allowing(test: Callable[[RulingBroker], None], path: Path, *allowed: tuple[Operation, Resource]) -> None:
    """Runs a test whose client may do some operations only, after the creation of the topic `flights`."""

    async def body(caller: Caller) -> None:
        broker = rule(caller)
        broker.ask(creation(new()), 7)
        caller.client.authorizer = Allowing(*allowed)
        test(broker)

    run(body, path)


def test_client_without_permission_creates_nothing(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        results = broker.ask(creation(new("rivers"), new("cities")), 7).topics
        assert codes(results) == [("rivers", ErrorCode.TOPIC_AUTHORIZATION_FAILED), ("cities", ErrorCode.NONE)]
        assert results[1].topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (results[1].num_partitions, results[1].configs) == (-1, [])
        assert broker.stored_topic("rivers") is None

    play_allowing(test, tmp_path, (Operation.CREATE, Resource.topic("cities")))


def test_many_topics_are_created_by_many_events(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        results = broker.ask(creation(*(new(f"t{number}", partitions=1, factor=1) for number in range(210))), 7).topics
        assert codes(results) == [(f"t{number}", ErrorCode.NONE) for number in range(210)]
        assert broker.events == 5

    play(test, tmp_path)


@pytest.mark.parametrize(
    "topics",
    [
        [new(partitions=100_000)],
        [new(f"t{number}", partitions=-1) for number in range(10_001)],
        [new("a", partitions=1), new("b", partitions=10_000)],
        [new(configs=config("retention.ms", "5") * 10_000)],
    ],
)
def test_too_large_creation_is_refused_as_a_whole(tmp_path: Path, topics: list[CreatableTopic]) -> None:
    def test(broker: RulingBroker) -> None:
        results = broker.ask(creation(*topics), 7).topics
        assert {code for _, code in codes(results)} == {ErrorCode.POLICY_VIOLATION}
        assert len(results) == len(topics)
        assert broker.events == 0

    play(test, tmp_path)


def test_client_that_goes_away_begins_nothing_more(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        broker = rule(caller)
        pending = caller.ask(creation(new()), 7)
        assert isinstance(pending, Pending)
        pending.abandon()
        broker.cluster.turn()
        assert broker.stored_topic("flights") is None

    run(body, tmp_path)


# CreatePartitions


def growth(*topics: CreatePartitionsTopic, **fields: Any) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(topics=[*topics], **{"timeout_ms": TIMEOUT_MS, **fields})


def to(count: int, name: str = "flights", *replicas: list[int]) -> CreatePartitionsTopic:
    assignments = [CreatePartitionsAssignment(broker_ids=each) for each in replicas] or None
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_with_leaders(tmp_path: Path, version: int) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(), new("cities")), 7)
        results = broker.ask(growth(to(5), to(3, "cities", [3, 1])), version).results
        assert codes(results) == [("flights", ErrorCode.NONE), ("cities", ErrorCode.NONE)]
        assert all(broker.member.image.topics["flights"].partitions[index].leader > 0 for index in range(5))
        assert broker.member.image.topics["cities"].partitions[2].replicas == (3, 1)

    play(test, tmp_path)


def test_growth_that_is_refused_hinders_no_other(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(), new("cities"), new(GROUP_METADATA_TOPIC)), 7)
        asked = growth(to(2), to(9, "none"), to(9, "twice"), to(9, "twice"), to(9, GROUP_METADATA_TOPIC), to(3, "cities"))
        assert codes(broker.ask(asked, 3).results) == [
            ("flights", ErrorCode.INVALID_PARTITIONS),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("twice", ErrorCode.INVALID_REQUEST),
            (GROUP_METADATA_TOPIC, ErrorCode.INVALID_REQUEST),
            ("cities", ErrorCode.NONE),
        ]

    play(test, tmp_path)


def test_growth_by_too_many_partitions_is_refused(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(), new("cities"), new("rivers")), 7)
        asked = growth(to(9_000), to(2_000_000_000, "cities"), to(2_000, "rivers"), validate_only=True)
        assert codes(broker.ask(asked, 3).results) == [
            ("flights", ErrorCode.NONE),
            ("cities", ErrorCode.POLICY_VIOLATION),
            ("rivers", ErrorCode.POLICY_VIOLATION),
        ]

    play(test, tmp_path)


def test_growth_waits_until_this_broker_has_heard_of_the_leaders(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        broker.is_told = False
        begun = trio.current_time()
        response = await wait_for(broker.begin(growth(to(5)), 3))
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1000)
        assert codes(response.results) == [("flights", ErrorCode.REQUEST_TIMED_OUT)]
        stored = broker.stored_topic("flights")
        assert stored is not None
        assert len(stored.partitions) == 5

    play(test, tmp_path)


def test_validation_of_a_growth_adds_nothing(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        assert codes(broker.ask(growth(to(5), validate_only=True), 3).results) == [("flights", ErrorCode.NONE)]
        stored = broker.stored_topic("flights")
        assert stored is not None
        assert len(stored.partitions) == 2

    play(test, tmp_path)


# DeleteTopics


def deletion(*topics: str | bytes, **fields: Any) -> DeleteTopicsRequest:
    states = [DeleteTopicState(name=each) if isinstance(each, str) else DeleteTopicState(topic_id=each) for each in topics]
    return DeleteTopicsRequest(topics=states, **{"timeout_ms": TIMEOUT_MS, **fields})


def test_topics_are_deleted_by_name_and_by_id(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        [_, cities] = broker.ask(creation(new(), new("cities")), 7).topics
        responses = (await broker.answer(deletion("flights", cities.topic_id), 6)).responses
        assert codes(responses) == [("flights", ErrorCode.NONE), ("cities", ErrorCode.NONE)]
        assert responses[1].topic_id == cities.topic_id
        assert broker.stage.children(paths.TOPICS) == ()
        assert not broker.member.image.topics

    play(test, tmp_path)


@pytest.mark.parametrize("version", range(6))
def test_topic_is_deleted_by_name_in_older_versions(tmp_path: Path, version: int) -> None:
    async def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        request = DeleteTopicsRequest(topic_names=["flights"], timeout_ms=TIMEOUT_MS)
        assert codes((await broker.answer(request, version)).responses) == [("flights", ErrorCode.NONE)]

    play(test, tmp_path)


def test_deletion_that_is_refused_hinders_no_other(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        made = broker.ask(creation(new(), new("cities"), new(GROUP_METADATA_TOPIC)), 7).topics
        asked = deletion(
            "flights", made[0].topic_id, "none", b"?" * 16, GROUP_METADATA_TOPIC, "cities", "twice", "twice", ZERO_TOPIC_ID
        )
        assert codes((await broker.answer(asked, 6)).responses) == [
            ("flights", ErrorCode.INVALID_REQUEST),
            ("flights", ErrorCode.NONE),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
            (GROUP_METADATA_TOPIC, ErrorCode.INVALID_REQUEST),
            ("cities", ErrorCode.NONE),
            ("twice", ErrorCode.INVALID_REQUEST),
            (None, ErrorCode.INVALID_REQUEST),
        ]

    play(test, tmp_path)


def test_deletion_waits_until_this_broker_has_heard_of_it(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        broker.is_told = False
        begun = trio.current_time()
        response = await wait_for(broker.begin(deletion("flights"), 6))
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1000)
        assert codes(response.responses) == [("flights", ErrorCode.REQUEST_TIMED_OUT)]

    play(test, tmp_path)


@pytest.mark.parametrize("returns", [True, False])
def test_deletion_waits_a_second_until_the_name_is_free(tmp_path: Path, returns: bool) -> None:
    async def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(factor=3)), 7)
        slow = broker.own.newest(3)
        slow.answer = None
        found: list[Any] = []
        pending = broker.begin(deletion("flights"), 6)
        assert not broker.member.image.topics
        pending.then(found.append)
        begun = trio.current_time()
        while not found:
            if returns and trio.current_time() - begun > 0.5:
                slow.answer = accept
                while slow.requests:
                    slow.end(accept(slow.requests[0].request))
            await trio.sleep(0.01)
            broker.cluster.turn()
        assert trio.current_time() - begun == pytest.approx(0.5 if returns else 1.0, abs=0.1)
        assert codes(found[0].responses) == [("flights", ErrorCode.NONE)]
        again = ErrorCode.NONE if returns else ErrorCode.TOPIC_ALREADY_EXISTS
        assert codes(broker.ask(creation(new()), 7).topics) == [("flights", again)]

    play(test, tmp_path)


@pytest.mark.parametrize(("version", "error"), [(6, ErrorCode.TOPIC_DELETION_DISABLED), (2, ErrorCode.INVALID_REQUEST)])
def test_deletion_can_be_disabled(tmp_path: Path, version: int, error: ErrorCode) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        request = deletion("flights") if version == 6 else DeleteTopicsRequest(topic_names=["flights"])
        assert codes(broker.ask(request, version).responses) == [("flights", error)]
        assert broker.stored_topic("flights") is not None

    play(test, tmp_path, delete_topic_enable="false")


def test_client_without_permission_deletes_nothing_and_learns_no_name(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        topic_id = broker.member.image.topics["flights"].topic_id
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert codes(broker.ask(deletion(topic_id), 6).responses) == [(None, denied)]
        assert codes(broker.ask(deletion("flights", "none"), 6).responses) == [("flights", denied), ("none", denied)]
        assert broker.stored_topic("flights") is not None

    play_allowing(test, tmp_path)


# ElectLeaders


def election(*partitions: int, type_: int = 0, **fields: Any) -> ElectLeadersRequest:
    wanted = [TopicPartitions(topic="flights", partitions=[*partitions])]
    return ElectLeadersRequest(election_type=type_, topic_partitions=wanted, **{"timeout_ms": TIMEOUT_MS, **fields})


def elected(response: Any) -> list[tuple[str, int, ErrorCode]]:
    return [
        (topic.topic, each.partition_id, ErrorCode.of(each.error_code))
        for topic in response.replica_election_results
        for each in topic.partition_result
    ]


def with_moved_leader(broker: RulingBroker) -> None:
    """Creates a topic with two partitions; broker 3 leads partition 0 instead of broker 2, which has returned meanwhile."""
    broker.ask(creation(new(partitions=-1, factor=-1, assignments=assigned((0, [2, 3]), (1, [1, 3])))), 7)
    broker.cluster.brokers[2].expire()
    broker.cluster.brokers[2].register()
    follow(broker, NAME, (3, 2))


def follow(broker: RulingBroker, name: TopicPartition, isr: tuple[int, ...]) -> None:
    """Lets the leader of a partition change the in-sync replicas by AlterPartition."""
    response = broker.ask(in_sync(broker, name, isr), 3)
    assert [each.error_code for topic in response.topics for each in topic.partitions] == [0]


def in_sync(broker: RulingBroker, name: TopicPartition, isr: tuple[int, ...]) -> AlterPartitionRequest:
    context = broker.own.context
    stored, topic_id = context.states[name], context.topics[name.topic].topic_id
    assert topic_id is not None
    partition = AlterPartitionPartition(
        partition_index=name.partition,
        leader_epoch=stored.state.leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=each, broker_epoch=context.live[each].epoch) for each in isr],
        partition_epoch=stored.version,
    )
    leader = stored.state.leader
    topic = AlterPartitionTopic(topic_id=topic_id, partitions=[partition])
    return AlterPartitionRequest(broker_id=leader, broker_epoch=context.live[leader].epoch, topics=[topic])


def test_preferred_leaders_are_elected(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        with_moved_leader(broker)
        assert broker.member.image.topics["flights"].partitions[0].leader == 3
        assert elected(broker.ask(election(0, 1, 9), 2)) == [
            ("flights", 0, ErrorCode.NONE),
            ("flights", 1, ErrorCode.ELECTION_NOT_NEEDED),
            ("flights", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert broker.member.image.topics["flights"].partitions[0].leader == 2

    play(test, tmp_path)


@pytest.mark.parametrize("version", range(3))
def test_election_of_all_partitions_leaves_out_those_that_need_none(tmp_path: Path, version: int) -> None:
    def test(broker: RulingBroker) -> None:
        with_moved_leader(broker)
        request = ElectLeadersRequest(topic_partitions=None, timeout_ms=TIMEOUT_MS)
        assert elected(broker.ask(request, version)) == [("flights", 0, ErrorCode.NONE)]
        assert elected(broker.ask(request, version)) == []

    play(test, tmp_path)


def test_election_waits_until_this_broker_has_heard_of_the_leaders(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        with_moved_leader(broker)
        broker.is_told = False
        begun = trio.current_time()
        response = await wait_for(broker.begin(election(0, 1), 2))
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1000)
        assert elected(response) == [
            ("flights", 0, ErrorCode.REQUEST_TIMED_OUT),
            ("flights", 1, ErrorCode.ELECTION_NOT_NEEDED),
        ]
        assert broker.cluster.state(NAME).leader == 2

    play(test, tmp_path)


def test_leader_that_is_away_is_not_elected_and_any_other_is_by_an_unclean_election(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(partitions=-1, factor=-1, assignments=assigned((0, [2, 3])))), 7)
        broker.cluster.brokers[3].expire()
        broker.cluster.brokers[2].expire()
        broker.cluster.brokers[3].register()
        assert elected(broker.ask(election(0), 2)) == [("flights", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)]
        assert elected(broker.ask(election(0, type_=1), 2)) == [("flights", 0, ErrorCode.NONE)]
        assert broker.cluster.state(NAME).leader == 3

    play(test, tmp_path)


# Reassignments


def reassignment(replicas: list[int] | None, partition: int = 0) -> AlterPartitionReassignmentsRequest:
    wish = ReassignablePartition(partition_index=partition, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="flights", partitions=[wish])])


def outcome(response: Any) -> ErrorCode:
    [topic] = response.responses
    [partition] = topic.partitions
    return ErrorCode.of(partition.error_code)


def listed(broker: RulingBroker, *partitions: int) -> list[tuple[int, list[int], list[int], list[int]]]:
    asked = [ListPartitionReassignmentsTopics(name="flights", partition_indexes=[*partitions])] if partitions else None
    response = broker.ask(ListPartitionReassignmentsRequest(topics=asked), 0)
    assert response.error_code == 0
    return [
        (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    ]


def test_reassignment_begins_is_listed_and_ends_when_the_target_is_in_sync(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(partitions=-1, factor=-1, assignments=assigned((0, [1, 2]), (1, [2, 3])))), 7)
        assert outcome(broker.ask(reassignment([1, 3]), 0)) is ErrorCode.NONE
        assert listed(broker) == listed(broker, 0, 1, 9) == [(0, [1, 3, 2], [3], [2])]
        assert listed(broker, 1) == []
        follow(broker, NAME, (1, 2, 3))
        assert listed(broker) == []
        stored = broker.stored_topic("flights")
        assert stored is not None
        assert stored.partitions[0].replicas == (1, 3)

    play(test, tmp_path)


def test_reassignment_can_be_cancelled(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(partitions=-1, factor=-1, assignments=assigned((0, [1, 2])))), 7)
        assert outcome(broker.ask(reassignment(None), 0)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        broker.ask(reassignment([1, 3]), 0)
        assert outcome(broker.ask(reassignment(None), 0)) is ErrorCode.NONE
        assert listed(broker) == []

    play(test, tmp_path)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (reassignment([1, 9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (reassignment([]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (reassignment([1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (reassignment([1], partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_impossible_reassignment_is_refused(tmp_path: Path, request_: Message, error: ErrorCode) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        assert outcome(broker.ask(request_, 0)) is error

    play(test, tmp_path)


# Requests of brokers


def test_leader_that_does_not_know_the_present_state_is_refused(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(partitions=-1, factor=-1, assignments=assigned((0, [1, 2])))), 7)
        stale = in_sync(broker, NAME, (1, 2))
        follow(broker, NAME, (1,))
        [topic] = broker.ask(stale, 3).topics
        assert topic.partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
        stale.broker_epoch -= 1
        assert broker.ask(stale, 3).error_code == ErrorCode.STALE_BROKER_EPOCH

    play(test, tmp_path)


def test_broker_that_shuts_down_leads_nothing_but_what_nobody_else_can(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new(partitions=-1, factor=-1, assignments=assigned((0, [2, 3]), (1, [2, 1])))), 7)
        follow(broker, TopicPartition("flights", 1), (2,))
        epoch = broker.own.context.live[2].epoch
        response = broker.ask(ControlledShutdownRequest(broker_id=2, broker_epoch=epoch), 3)
        assert response.error_code == 0
        assert [(each.topic_name, each.partition_index) for each in response.remaining_partitions] == [("flights", 1)]
        assert broker.cluster.state(NAME).leader == 3
        stale = ControlledShutdownRequest(broker_id=2, broker_epoch=epoch - 1)
        assert broker.ask(stale, 3).error_code == ErrorCode.STALE_BROKER_EPOCH

    play(test, tmp_path)


def test_blocks_of_producer_ids_follow_each_other(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        epoch = broker.own.context.live[3].epoch
        request = AllocateProducerIdsRequest(broker_id=3, broker_epoch=epoch)
        blocks = [broker.ask(request, 0) for _ in range(2)]
        assert [(each.producer_id_start, each.producer_id_len) for each in blocks] == [(0, 1000), (1000, 1000)]
        stale = AllocateProducerIdsRequest(broker_id=3, broker_epoch=epoch - 1)
        assert broker.ask(stale, 0).error_code == ErrorCode.STALE_BROKER_EPOCH

    play(test, tmp_path)


# UpdateFeatures


def features(*levels: tuple[str, int], **fields: Any) -> UpdateFeaturesRequest:
    updates = [FeatureUpdateKey(feature=name, max_version_level=level) for name, level in levels]
    return UpdateFeaturesRequest(feature_updates=updates, **{"timeout_ms": TIMEOUT_MS, **fields})


def support_features(broker: RulingBroker) -> None:
    """Lets all brokers register that they support transactions of version 2."""
    for broker_id, live in broker.own.context.live.items():
        supported = {"transaction.version": {"min_version": 1, "max_version": 2}}
        registration = replace(live.registration, features=supported)
        broker.own.context.live[broker_id] = replace(live, registration=registration)


def test_features_are_changed_when_this_broker_follows_them(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        support_features(broker)
        pending = broker.begin(features(("transaction.version", 2)), 1)
        assert isinstance(pending, Pending)
        found = broker.stage.data(paths.FEATURE)
        assert found is not None
        finalized = FinalizedFeatures.read(found.data).features
        assert finalized == {"transaction.version": 2}
        broker.member.topics.cluster_features.follow(finalized, found.stat.version)
        response = await wait_for(pending)
        assert response.error_code == 0
        assert codes_of_features(response) == [("transaction.version", 0)]

    play(test, tmp_path)


def codes_of_features(response: Any) -> list[tuple[str, int]]:
    return [(each.feature, each.error_code) for each in response.results]


def test_features_that_this_broker_does_not_follow_in_time_have_failed(tmp_path: Path) -> None:
    async def test(broker: RulingBroker) -> None:
        support_features(broker)
        begun = trio.current_time()
        response = await wait_for(broker.begin(features(("transaction.version", 2)), 1))
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1000)
        assert response.error_code == ErrorCode.FEATURE_UPDATE_FAILED

    play(test, tmp_path)


def test_features_that_brokers_do_not_support_are_refused(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        response = broker.ask(features(("transaction.version", 2)), 1)
        assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert "Broker 1 does not support this feature." in response.error_message
        support_features(broker)
        valid = broker.ask(features(("transaction.version", 2), validate_only=True), 1)
        assert valid.error_code == 0

    play(test, tmp_path)


# Deposed


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (creation(new("cities"), new("rivers")), 7),
        (growth(to(5)), 3),
        (deletion("flights"), 6),
        (election(0), 2),
        (reassignment([1, 3]), 0),
        (ListPartitionReassignmentsRequest(topics=None), 0),
        (AlterPartitionRequest(), 3),
        (AllocateProducerIdsRequest(broker_id=1), 0),
        (UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="transaction.version", max_version_level=1)]), 1),
    ],
)
def test_controller_that_was_deposed_meanwhile_says_so(tmp_path: Path, request_: Message, version: int) -> None:
    def test(broker: RulingBroker) -> None:
        broker.ask(creation(new()), 7)
        before = broker.stored_topic("flights")
        broker.own.controller.resign("the test says so")
        broker.member.local_controller = cast(Any, Believing(broker))
        found = {code for code in codes_of(broker.ask(request_, version)) if code}
        assert found == {ErrorCode.NOT_CONTROLLER}
        assert broker.stored_topic("flights") == before

    play(test, tmp_path)


def test_controller_that_was_deposed_meanwhile_shuts_no_broker_down(tmp_path: Path) -> None:
    def test(broker: RulingBroker) -> None:
        broker.own.controller.resign("the test says so")
        broker.member.local_controller = cast(Any, Believing(broker))
        assert broker.ask(ControlledShutdownRequest(broker_id=2), 3).error_code == ErrorCode.STALE_CONTROLLER_EPOCH

    play(test, tmp_path)


class Believing:
    """A controller that was deposed after the handler has looked."""

    is_active = True

    def __init__(self, broker: RulingBroker) -> None:
        self._controller = broker.own.controller

    def enter(self, event: Any, end: Any) -> Callable[[], object]:
        """Enters an event."""
        return self._controller.enter(event, end)
