"""The first leaders of new partitions, and elections, with what they write and tell."""

from __future__ import annotations

import pytest

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.elections import Election
from wirekafka.controller.partition_states import elect, elect_offline
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import NO_LEADER, RECOVERED, RECOVERING, PartitionState, ReplicaAssignment
from wirekafka.zookeeper.session import Create, Delete, SetData

NAME = TopicPartition("t", 0)


def _stage(*, unclean: bool = False, release: str = "3.9", brokers: tuple[int, ...] = (1, 2, 3)) -> Stage:
    stage = Stage(ControllerSettings(broker_id=1, release=release, unclean_leader_election=lambda: unclean))
    for broker_id in brokers:
        stage.add_broker(broker_id)
    return stage


def _elect(stage: Stage, election: Election, *names: TopicPartition) -> dict[TopicPartition, ErrorCode]:
    failures = stage.event(lambda context, batch: elect(context, batch, stage.settings, names or [NAME], election))
    return {name: error.code for name, error in failures.items()}


def _elect_offline(stage: Stage) -> dict[TopicPartition, ErrorCode]:
    failures = stage.event(lambda context, batch: elect_offline(context, batch, stage.settings))
    return {name: error.code for name, error in failures.items()}


def test_new_partition_has_all_live_replicas_in_sync_and_is_told_as_new() -> None:
    stage = _stage(brokers=(1, 3))
    stage.add_topic("t", {0: (2, 3, 1)})

    assert _elect(stage, Election.OFFLINE) == {}

    assert stage.state(NAME) == PartitionState(3, 0, (3, 1), EPOCH)
    assert {broker_id: stage.leader_and_isr(broker_id)[NAME].is_new for broker_id in (1, 3)} == {1: True, 3: True}
    assert stage.metadata(1)[NAME].offline_replicas == [2]


def test_new_partition_without_a_live_replica_gets_its_leader_when_a_broker_comes() -> None:
    stage = _stage(brokers=(1,))
    stage.add_topic("t", {0: (2, 3)})
    assert _elect_offline(stage) == {NAME: ErrorCode.LEADER_NOT_AVAILABLE}

    stage.add_broker(3)

    assert _elect_offline(stage) == {}
    assert stage.state(NAME) == PartitionState(3, 0, (3,), EPOCH)


def test_new_partition_whose_state_exists_already_takes_that_state() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 9, (9, 2), leader_epoch=6)
    del stage.context.states[NAME]

    assert _elect(stage, Election.OFFLINE) == {}

    assert stage.state(NAME) == PartitionState(2, 7, (2,), EPOCH)
    assert not stage.leader_and_isr(2)[NAME].is_new


def test_offline_leader_is_replaced_and_only_live_replicas_are_told() -> None:
    stage = _stage(brokers=(2, 3))
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 1, (1, 2), leader_epoch=4)

    assert _elect_offline(stage) == {}

    assert stage.state(NAME) == PartitionState(2, 5, (2,), EPOCH)
    assert stage.leader_and_isr(2)[NAME].leader_epoch == 5
    assert stage.leader_and_isr(3) == {}
    assert stage.metadata(3)[NAME].leader == 2


def test_elect_offline_leaves_partitions_with_a_leader_and_deleted_topics() -> None:
    stage = _stage(brokers=(2,))
    stage.add_topic("deleted", {0: (1, 2)})
    stage.add_topic("led", {0: (1, 2)})
    deleted, led = TopicPartition("deleted", 0), TopicPartition("led", 0)
    stage.add_state(deleted, 1, (1, 2))
    stage.add_state(led, 2, (2,))
    stage.context.deleting["deleted"] = None

    assert _elect_offline(stage) == {}

    assert stage.context.states[deleted].version == stage.context.states[led].version == 0
    assert stage.sent == []


@pytest.mark.parametrize(
    ("is_enabled", "election", "leader"),
    [
        (False, Election.OFFLINE, None),
        (True, Election.OFFLINE, 2),
        (False, Election.UNCLEAN, 2),
        (True, Election.REASSIGN, None),
        (True, Election.PREFERRED, None),
        (True, Election.CONTROLLED_SHUTDOWN, None),
    ],
)
def test_election_is_unclean_only_if_the_topic_or_the_operator_allows_it(
    is_enabled: bool, election: Election, leader: int | None
) -> None:
    stage = _stage(unclean=is_enabled, brokers=(2, 3))
    stage.add_topic("t", {0: (1, 2, 3)})
    stage.add_state(NAME, 1, (1,), leader_epoch=4)

    failures = _elect(stage, election)

    if leader is None:
        assert stage.context.states[NAME].version == 0
        expected = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert failures == {NAME: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if election is Election.PREFERRED else expected}
    else:
        assert failures == {}
        assert stage.state(NAME) == PartitionState(leader, 5, (leader,), EPOCH, RECOVERING)
        assert stage.leader_and_isr(3)[NAME].leader_recovery_state == RECOVERING


@pytest.mark.parametrize(
    ("own", "of_the_cluster", "is_elected"),
    [(b"true", False, True), (b"false", True, False), (None, True, True), (None, False, False)],
)
def test_own_setting_of_a_topic_decides_before_that_of_the_cluster(
    own: bytes | None, of_the_cluster: bool, is_elected: bool
) -> None:
    stage = _stage(unclean=of_the_cluster, brokers=(2,))
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 1, (1,))
    if own is not None:
        stage.do(Create("/config/topics/t", b'{"version":1,"config":{"unclean.leader.election.enable":"' + own + b'"}}'))

    assert (_elect_offline(stage) == {}) == is_elected


def test_settings_of_a_topic_that_cannot_be_read_allow_no_unclean_election() -> None:
    stage = _stage(unclean=True, brokers=(2,))
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 1, (1,))
    stage.do(Create("/config/topics/t", b"{"))

    assert _elect_offline(stage) == {NAME: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_unclean_election_of_an_old_release_has_no_recovery_state() -> None:
    stage = _stage(unclean=True, brokers=(2,), release="3.1")
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 1, (1,))

    assert _elect_offline(stage) == {}

    assert stage.state(NAME).leader_recovery_state == RECOVERED


def test_no_election_is_unclean_while_an_in_sync_replica_shuts_down() -> None:
    stage = _stage(unclean=True, brokers=(2, 3))
    stage.add_topic("t", {0: (1, 2, 3)})
    stage.add_state(NAME, 1, (1, 2))
    stage.context.shutting_down.add(2)

    assert _elect_offline(stage) == {NAME: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_leader_that_shuts_down_is_not_offline() -> None:
    stage = _stage(unclean=True)
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 1, (1,))
    stage.context.shutting_down.add(1)

    assert _elect_offline(stage) == {}

    assert stage.context.states[NAME].version == 0


def test_controlled_shutdown_tells_the_former_leader_but_no_other_broker_that_shuts_down() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2, 3)})
    stage.add_state(NAME, 1, (1, 2, 3))
    stage.context.shutting_down.update((1, 2))

    assert _elect(stage, Election.CONTROLLED_SHUTDOWN) == {}

    assert stage.state(NAME) == PartitionState(3, 1, (3,), EPOCH)
    assert [broker_id for broker_id in (1, 2, 3) if stage.leader_and_isr(broker_id)] == [1, 3]


def test_reassignment_elects_no_replica_that_is_removed() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2, 3)}).assignments[0] = ReplicaAssignment((1, 2, 3), (3,), (1,))
    stage.add_state(NAME, 1, (1, 2, 3))

    assert _elect(stage, Election.REASSIGN) == {}

    assert stage.state(NAME) == PartitionState(2, 1, (1, 2, 3), EPOCH)


def test_election_of_a_state_that_changed_elsewhere_is_repeated_with_the_new_state() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2, 3)})
    stage.add_state(NAME, 2, (2, 1, 3))
    stage.do(SetData(paths.partition_state(NAME), PartitionState(2, 8, (2, 1), 3).write()))

    assert _elect(stage, Election.PREFERRED) == {}

    assert stage.state(NAME) == PartitionState(1, 9, (2, 1), EPOCH)
    assert stage.leader_and_isr(1)[NAME].partition_epoch == 2


def test_state_of_a_later_controller_ends_the_election() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 2, (1, 2))
    stage.do(SetData(paths.partition_state(NAME), PartitionState(2, 8, (1, 2), EPOCH + 1).write()))

    with pytest.raises(DeposedError):
        _elect(stage, Election.PREFERRED)


def test_partition_whose_znode_was_deleted_is_unknown() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 2, (1, 2))
    stage.do(Delete(paths.partition_state(NAME)))

    assert _elect(stage, Election.PREFERRED) == {NAME: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert NAME not in stage.leader_and_isr(1)


def test_partition_that_does_not_exist_is_unknown() -> None:
    assert _elect(_stage(), Election.OFFLINE) == {NAME: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_malformed_state_gets_no_leader() -> None:
    stage = _stage()
    stage.add_topic("t", {0: (1, 2)})
    for path in (paths.topic_partitions("t"), paths.partition(NAME)):
        stage.do(Create(path, None))
    stage.do(Create(paths.partition_state(NAME), b"{}"))

    assert _elect(stage, Election.OFFLINE) == {NAME: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_election_without_a_candidate_leaves_the_other_partitions_alone() -> None:
    stage = _stage(brokers=(1, 2))
    stage.add_topic("t", {0: (1, 2), 1: (3,), 2: (2, 1)})
    names = stage.context.partitions_of("t")
    stage.add_state(names[0], NO_LEADER, (2,))
    stage.add_state(names[1], 3, (3,))
    stage.add_state(names[2], NO_LEADER, (1, 2))

    assert _elect_offline(stage) == {names[1]: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}

    assert [stage.state(name).leader for name in names] == [2, 3, 2]


def test_elect_offline_of_one_topic_looks_at_its_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.add_broker(1)
    for topic in ("t", "u"):
        stage.add_topic(topic, {0: (1,)})

    def refuse(context: ControllerContext) -> None:
        raise AssertionError("all partitions are looked at")

    monkeypatch.setattr(ControllerContext, "all_partitions", refuse)
    stage.event(lambda context, batch: elect_offline(context, batch, stage.settings, ["t", "unknown"]))

    assert [*stage.context.states] == [TopicPartition("t", 0)]
