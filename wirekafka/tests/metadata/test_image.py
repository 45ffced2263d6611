"""The image of the cluster: what it takes from UpdateMetadata, and how it describes partitions to clients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.image import (
    MOST_ENDPOINTS,
    MOST_REPLICAS,
    MOST_UNTOLD,
    PARTITIONS_AT_ONCE,
    ClusterImage,
    DescribedPartition,
    Endpoint,
    LiveBroker,
    Node,
    PartitionImage,
    TopicImage,
)
from wirekafka.pending import finish
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.update_metadata import (
    UPDATE_METADATA,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

TOPIC_ID, OTHER_ID = b"t" * 16, b"o" * 16

STEPS_OF_A_TOPIC = 3
"""The steps of a small topic: its new mapping is made, replaces the old one, and is followed."""


def state(index: int, leader: int = 1, leader_epoch: int = 3, isr: Sequence[int] = (1, 2)) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=index, leader=leader, leader_epoch=leader_epoch, isr=list(isr), zk_version=7, replicas=[1, 2, 3]
    )


def broker(broker_id: int, *listeners: str) -> UpdateMetadataBroker:
    names = listeners or ("PLAINTEXT",)
    endpoints = [UpdateMetadataEndpoint(host=f"host{broker_id}", port=9000 + broker_id, listener=name) for name in names]
    return UpdateMetadataBroker(id=broker_id, endpoints=endpoints, rack=None)


def request(
    *states: UpdateMetadataPartitionState,
    topic: str = "flights",
    topic_id: bytes = TOPIC_ID,
    brokers: Sequence[UpdateMetadataBroker] = (),
    epoch: int = 1,
    controller_id: int = 1,
) -> UpdateMetadataRequest:
    topics = [UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=list(states))] if states else []
    return UpdateMetadataRequest(
        controller_id=controller_id, controller_epoch=epoch, topic_states=topics, live_brokers=list(brokers)
    )


def updated(*requests: UpdateMetadataRequest) -> ClusterImage:
    image = ClusterImage()
    for each in requests:
        finish(image.update(each))
    return image


@pytest.mark.parametrize("version", UPDATE_METADATA.versions)
def test_every_version_tells_the_brokers_and_the_partitions(version: int) -> None:
    sent = request(state(0), brokers=[broker(1)])
    if version < 5:
        sent.ungrouped_partition_states, sent.topic_states = sent.topic_states[0].partition_states, []
        sent.ungrouped_partition_states[0].topic_name = "flights"
    if version == 0:
        sent.live_brokers = [UpdateMetadataBroker(id=1, v0_host="host1", v0_port=9001)]
    is_flexible = UPDATE_METADATA.is_flexible(version)
    image = updated(decode(UpdateMetadataRequest, version, is_flexible, encode(sent, version, is_flexible)))
    assert image.brokers == {1: LiveBroker(1, {"PLAINTEXT": Endpoint("host1", 9001, "PLAINTEXT")}, None)}
    assert image.controller_id == 1
    assert image.find_partition("flights", 0) == PartitionImage(1, 3, (1, 2), 7, (1, 2, 3), ())
    assert (image.find_partition(TOPIC_ID, 0) is not None) is (version >= 7)


def test_request_names_only_the_partitions_that_changed() -> None:
    image = updated(request(state(0), state(1)), request(state(1, leader=2, leader_epoch=4)))
    partitions = image.topics["flights"].partitions
    assert {index: each.leader for index, each in partitions.items()} == {0: 1, 1: 2}


def test_index_that_the_topic_cannot_have_is_ignored() -> None:
    image = updated(request(state(0), state(MOST_UNTOLD + 2), state(-1), state(2**31 - 1)))
    assert [*image.topics["flights"].partitions] == [0, MOST_UNTOLD + 2]


@pytest.mark.parametrize("field", ["isr", "replicas", "offline_replicas"])
def test_partition_with_more_replicas_than_a_partition_can_have_is_ignored(field: str) -> None:
    overlong, longest = state(0), state(1)
    setattr(overlong, field, [1] * (MOST_REPLICAS + 1))
    setattr(longest, field, [1] * MOST_REPLICAS)
    assert [*updated(request(overlong, longest)).topics["flights"].partitions] == [1]


def test_partitions_with_many_replicas_are_read_in_a_step_each() -> None:
    states = [state(index, isr=range(PARTITIONS_AT_ONCE + 1)) for index in range(5)]
    assert sum(1 for _ in ClusterImage().update(request(*states))) == 5 + STEPS_OF_A_TOPIC


@pytest.mark.parametrize(
    "brokers",
    [
        [broker(number) for number in range(MOST_ENDPOINTS + 1)],
        [UpdateMetadataBroker(id=number) for number in range(MOST_ENDPOINTS + 1)],
        [broker(1, *map(str, range(MOST_ENDPOINTS))), broker(2)],
    ],
    ids=["brokers", "brokers without endpoints", "endpoints"],
)
def test_request_with_more_brokers_than_a_cluster_can_have_changes_nothing(brokers: list[UpdateMetadataBroker]) -> None:
    image = updated(request(brokers=[broker(1)]))
    with pytest.raises(KafkaError) as error:
        finish(image.update(request(state(0), brokers=brokers, epoch=2)))
    assert error.value.code is ErrorCode.INVALID_REQUEST
    assert ([*image.brokers], [*image.topics], image.controller_epoch) == ([1], [], 1)


def test_request_without_a_broker_ends_that_broker() -> None:
    image = updated(request(brokers=[broker(1), broker(2)]), request(brokers=[broker(2)]))
    assert [*image.brokers] == [2]


def test_image_has_all_topics_once_a_request_with_partitions_is_taken_to_its_end() -> None:
    image = updated(request(brokers=[broker(1)]))
    assert not image.has_all_topics
    assert {image.has_all_topics for _ in image.update(request(state(0)))} == {False}
    assert image.has_all_topics
    finish(image.update(request(state(1))))
    assert image.has_all_topics


def test_topics_that_the_controller_has_not_told_are_untold_until_a_request_with_partitions_is_taken_to_its_end() -> None:
    image = ClusterImage()
    image.untold = {"t", "deleted"}
    list(image.update(request()))
    assert image.untold == {"t", "deleted"}
    assert {frozenset(image.untold) for _ in image.update(request(state(0)))} == {frozenset({"t", "deleted"})}
    assert image.untold == set()


def test_image_has_all_topics_of_a_new_controller_once_that_has_told_partitions() -> None:
    image = updated(request(state(0)), request(brokers=[broker(1)], epoch=2))
    assert not image.has_all_topics
    finish(image.update(request(state(0), epoch=2)))
    assert image.has_all_topics


def of_registration(broker_epoch: int, sent: UpdateMetadataRequest) -> UpdateMetadataRequest:
    sent.broker_epoch = broker_epoch
    return sent


def with_two_topics() -> ClusterImage:
    other = request(state(0), topic="other", topic_id=OTHER_ID)
    return updated(of_registration(5, request(state(0))), of_registration(5, other))


def test_topic_that_was_deleted_while_the_broker_had_no_session_is_removed() -> None:
    image = with_two_topics()
    removed: list[tuple[str, Sequence[int]]] = []
    image.on_topic_change.append(lambda name, topic, indexes: removed.append((name, indexes)) if topic is None else None)
    finish(image.update(of_registration(9, request(state(0), state(1)))))
    assert [*image.topics] == ["flights"] and image.by_id.keys() == {TOPIC_ID}
    assert removed == [("other", [0])]


def test_later_requests_of_a_registration_remove_no_topic() -> None:
    image = with_two_topics()
    finish(image.update(of_registration(5, request(state(1)))))
    assert [*image.topics] == ["flights", "other"]


@pytest.mark.parametrize("broker_epoch", [-1, 4, 2**63 - 1])
def test_request_that_is_not_for_the_present_registration_lets_no_request_remove_topics(broker_epoch: int) -> None:
    image = with_two_topics()
    finish(image.update(of_registration(broker_epoch, request(state(1))), lambda: False))
    finish(image.update(of_registration(5, request(state(2)))))
    assert [*image.topics] == ["flights", "other"]


def test_controller_that_was_just_elected_removes_no_topic_of_a_broker_that_registers() -> None:
    image = with_two_topics()
    finish(image.update(of_registration(9, request(brokers=[broker(1)], epoch=2))))
    finish(image.update(of_registration(9, request(state(0), epoch=2))))
    assert [*image.topics] == ["flights", "other"]


def test_request_that_a_newer_controller_has_ended_removes_no_topic() -> None:
    image = with_two_topics()
    work = image.update(of_registration(9, request(state(0))))
    next(work)
    image.controller_epoch = 2
    with pytest.raises(KafkaError):
        finish(work)
    assert [*image.topics] == ["flights", "other"]


def test_topic_gets_all_partitions_of_a_request_in_one_step() -> None:
    image = ClusterImage()
    counts = {
        len(image.topics["flights"].partitions) if image.topics else 0 for _ in image.update(request(*map(state, range(900))))
    }
    assert counts == {0, 900}


def test_brokers_and_partitions_without_topics_are_read_in_short_steps() -> None:
    sent = request(brokers=[broker(number) for number in range(10 * PARTITIONS_AT_ONCE)])
    assert sum(1 for _ in ClusterImage().update(sent)) == 10
    sent = request()
    sent.ungrouped_partition_states = [state(index) for index in range(10 * PARTITIONS_AT_ONCE)]
    assert sum(1 for _ in ClusterImage().update(sent)) == 10 + 10 + 10 + STEPS_OF_A_TOPIC


def test_partitions_that_a_large_request_replaces_are_freed_in_steps() -> None:
    states = [state(index) for index in range(10 * PARTITIONS_AT_ONCE)]
    image = updated(request(*states))
    partitions = image.topics["flights"].partitions
    assert sum(1 for _ in image.update(request(*states))) == 10 + 10 + 10 + STEPS_OF_A_TOPIC
    assert image.topics["flights"].partitions == partitions


def test_large_request_with_a_partition_that_the_topic_cannot_have_is_checked_in_steps() -> None:
    states = [state(index) for index in range(10 * PARTITIONS_AT_ONCE)]
    states[0].partition_index = 1 << 30
    image = ClusterImage()
    assert sum(1 for _ in image.update(request(*states))) >= 4 * 9
    assert [*image.topics["flights"].partitions] == [*range(1, len(states))]


def test_topic_keeps_its_id_when_another_one_of_that_id_gets_a_new_one() -> None:
    image = updated(request(state(0), topic="arrivals"), request(state(0)))
    finish(image.update(request(state(0), topic="arrivals", topic_id=OTHER_ID)))
    assert image.by_id == {TOPIC_ID: image.topics["flights"], OTHER_ID: image.topics["arrivals"]}


def test_topic_is_gone_once_all_its_partitions_are_deleted() -> None:
    image = updated(request(state(0), state(1)), request(state(0, leader=-2)))
    assert [*image.topics["flights"].partitions] == [1]
    finish(image.update(request(state(1, leader=-2))))
    assert image.topics == {}
    assert image.by_id == {}


def test_topic_that_was_created_again_has_nothing_of_the_former_one() -> None:
    image = updated(request(state(0), state(1)))
    told: list[tuple[TopicImage | None, Sequence[int]]] = []
    image.on_topic_change.append(lambda name, topic, indexes: told.append((topic, indexes)))
    finish(image.update(request(state(0), topic_id=OTHER_ID)))
    assert [*image.by_id] == [OTHER_ID]
    assert [*image.topics["flights"].partitions] == [0]
    assert told == [(None, [0, 1]), (image.topics["flights"], [0])]


def test_topic_gets_an_id_and_may_lose_it_to_an_older_controller() -> None:
    image = updated(request(state(0), topic_id=bytes(16)))
    assert image.by_id == {}
    finish(image.update(request(state(1))))
    assert image.by_id == {TOPIC_ID: image.topics["flights"]}
    assert len(image.topics["flights"].partitions) == 2
    finish(image.update(request(state(1), topic_id=bytes(16))))
    assert image.by_id == {}


def test_request_of_a_former_controller_is_refused() -> None:
    image = updated(request(brokers=[broker(1)], epoch=5))
    with pytest.raises(KafkaError) as raised:
        finish(image.update(request(brokers=[broker(2)], epoch=4, controller_id=2)))
    assert raised.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
    assert [*image.brokers] == [1]
    assert image.controller_id == 1


def test_long_request_ends_when_a_newer_controller_sends_one() -> None:
    image = ClusterImage()
    former = image.update(request(*[state(index, leader=1) for index in range(500)], epoch=1))
    next(former)
    finish(image.update(request(*[state(index, leader=2) for index in range(500)], epoch=2)))
    with pytest.raises(KafkaError) as raised:
        finish(former)
    assert raised.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
    assert {each.leader for each in image.topics["flights"].partitions.values()} == {2}


def test_brokers_and_controller_are_told_when_they_change_and_only_then() -> None:
    image = ClusterImage()
    told: list[tuple[list[int], int | None]] = []
    image.on_brokers_change.append(lambda: told.append(([*image.brokers], image.controller_id)))
    for sent in (
        request(brokers=[broker(1)]),
        request(state(0), brokers=[broker(1)]),
        request(brokers=[broker(1)], controller_id=2, epoch=2),
        request(brokers=[], controller_id=-1, epoch=3),
    ):
        finish(image.update(sent))
    assert told == [([1], 1), ([1], 2), ([], None)]


def test_clients_of_a_listener_see_the_brokers_that_have_it() -> None:
    image = updated(request(brokers=[broker(2, "PLAINTEXT", "INSIDE"), broker(1)]))
    assert image.nodes("PLAINTEXT") == [Node(1, "host1", 9001, None), Node(2, "host2", 9002, None)]
    assert image.nodes("INSIDE") == [Node(2, "host2", 9002, None)]


ALL = (1, 2, 3)
LATE = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
DESCRIBED = [
    # leader, live brokers with PLAINTEXT, live brokers without, only_live, knows_listeners; error, leader, replicas, in sync
    (1, ALL, (), False, True, (ErrorCode.NONE, 1), ALL, (1, 2)),
    (1, (1,), (), False, True, (ErrorCode.NONE, 1), ALL, (1, 2)),
    (1, (1, 2), (), True, True, (ErrorCode.REPLICA_NOT_AVAILABLE, 1), (1, 2), (1, 2)),
    (1, (1, 3), (2,), True, True, (ErrorCode.REPLICA_NOT_AVAILABLE, 1), (1, 3), (1,)),
    (1, ALL, (), True, True, (ErrorCode.NONE, 1), ALL, (1, 2)),
    (1, (2, 3), (), False, True, LATE, ALL, (1, 2)),
    (-1, ALL, (), False, True, LATE, ALL, (1, 2)),
    (1, (2, 3), (1,), False, True, (ErrorCode.LISTENER_NOT_FOUND, -1), ALL, (1, 2)),
    (1, (2, 3), (1,), False, False, LATE, ALL, (1, 2)),
]


@pytest.mark.parametrize(
    ("leader", "live", "without", "only_live", "knows_listeners", "outcome", "replicas", "in_sync_replicas"), DESCRIBED
)
def test_partition_is_described_by_the_live_brokers(
    leader: int,
    live: Sequence[int],
    without: Sequence[int],
    only_live: bool,
    knows_listeners: bool,
    outcome: tuple[ErrorCode, int],
    replicas: Sequence[int],
    in_sync_replicas: Sequence[int],
) -> None:
    brokers = [broker(each) for each in live] + [broker(each, "INSIDE") for each in without]
    image = updated(request(state(0, leader=leader), brokers=brokers))
    found = image.find_partition("flights", 0)
    assert found is not None
    described = image.describe(found, "PLAINTEXT", only_live=only_live, knows_listeners=knows_listeners)
    assert described == DescribedPartition(*outcome, 3, replicas, in_sync_replicas, ())
