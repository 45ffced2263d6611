"""Brokers that come, die, return and change, and their log directories."""

from __future__ import annotations

import pytest

from wirekafka.config.endpoints import Listener
from wirekafka.controller.brokers import look_at_brokers, look_at_log_dir_events, note_leader_and_isr, read_brokers
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, NOW_MS, Stage, a_registration
from wirekafka.wire.messages.leader_and_isr import (
    LEADER_AND_ISR,
    LeaderAndIsrPartitionError,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from wirekafka.wire.messages.stop_replica import STOP_REPLICA
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import BrokerRegistration, Endpoint
from wirekafka.zookeeper.layout.requests import write_log_dir_event
from wirekafka.zookeeper.layout.topics import NO_LEADER, RECOVERING, PartitionState
from wirekafka.zookeeper.session import Create, Delete, SetData

NAME = TopicPartition("t", 0)


def _stage(*, unclean: bool = False, brokers: tuple[int, ...] = (1, 2, 3)) -> Stage:
    stage = Stage(ControllerSettings(broker_id=1, unclean_leader_election=lambda: unclean))
    for broker_id in brokers:
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2, 3)})
    return stage


def _die(stage: Stage, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        stage.do(Delete(paths.broker(broker_id)))


def _register(stage: Stage, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        stage.do(Create(paths.broker(broker_id), a_registration(broker_id).write(), ephemeral=True))


def _look(stage: Stage) -> None:
    stage.event(lambda context, batch: look_at_brokers(context, batch, stage.settings))


def _answer(stage: Stage, broker_id: int, code: ErrorCode) -> None:
    error = LeaderAndIsrPartitionError(partition_index=0, error_code=code)
    topic = LeaderAndIsrTopicError(topic_id=stage.context.topics["t"].topic_id or b"", partition_errors=[error])
    response = LeaderAndIsrResponse(topics=[topic])
    stage.event(lambda context, batch: note_leader_and_isr(context, batch, stage.settings, broker_id, response))


# Death


def test_dead_leader_is_replaced_by_one_write() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(2, 1, (2, 3), EPOCH)
    assert stage.context.states[NAME].version == 1
    assert stage.leader_and_isr(3)[NAME].leader == 2
    assert stage.told_brokers(3) == [[2, 3]]


def test_dead_follower_leaves_the_in_sync_replicas() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 2)

    _look(stage)

    assert stage.state(NAME) == PartitionState(1, 1, (1, 3), EPOCH)


def test_last_in_sync_replica_that_dies_stays_in_sync_without_a_leader() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1,))
    _die(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(NO_LEADER, 1, (1,), EPOCH)
    assert stage.metadata(2)[NAME].leader == NO_LEADER


def test_last_in_sync_replica_that_dies_is_replaced_uncleanly_if_the_topic_allows_it() -> None:
    stage = _stage(unclean=True)
    stage.add_state(NAME, 1, (1,))
    _die(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(2, 2, (2,), EPOCH, RECOVERING)


def test_death_of_a_broker_without_replicas_is_told() -> None:
    stage = _stage(brokers=(1, 2, 3, 4))
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 4)

    _look(stage)

    assert stage.told_brokers(1) == [[1, 2, 3]]
    assert stage.context.states[NAME].version == 0


def test_death_ends_a_controlled_shutdown_and_forgets_failed_directories() -> None:
    stage = _stage()
    stage.context.shutting_down.add(2)
    stage.context.offline_replicas[2] = {NAME}
    _die(stage, 2)

    _look(stage)

    assert stage.context.shutting_down == set()
    assert stage.context.offline_replicas == {}


def test_replicas_of_a_topic_that_is_deleted_are_not_elected_when_a_broker_dies() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    stage.context.deleting["t"] = None
    _die(stage, 1)

    _look(stage)

    assert stage.context.states[NAME].version == 0


# Arrival


def test_broker_that_comes_learns_everything_and_the_others_learn_it() -> None:
    stage = _stage(brokers=(1, 2))
    stage.add_topic("other", {0: (1,)})
    stage.add_state(NAME, 1, (1, 2), leader_epoch=3)
    other = TopicPartition("other", 0)
    stage.add_state(other, 1, (1,))
    _register(stage, 3)

    _look(stage)

    assert stage.leader_and_isr(3)[NAME].leader_epoch == 3
    assert {*stage.metadata(3)} == {NAME, other}
    assert stage.told_brokers(1) == stage.told_brokers(3) == [[1, 2, 3], [1, 2, 3]]
    assert [each.kind for each in stage.sent if each.broker_id == 3] == [UPDATE_METADATA, LEADER_AND_ISR, UPDATE_METADATA]
    assert stage.leader_and_isr(1) == {}
    assert stage.context.states[NAME].version == 0


def test_last_in_sync_replica_that_comes_leads() -> None:
    stage = _stage(brokers=(2, 3))
    stage.add_state(NAME, NO_LEADER, (1,), leader_epoch=3)
    _register(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(1, 4, (1,), EPOCH)
    assert stage.leader_and_isr(1)[NAME].leader_epoch == 4


def test_first_broker_of_a_new_partition_leads_it() -> None:
    stage = _stage(brokers=())
    _register(stage, 2)

    _look(stage)

    assert stage.state(NAME) == PartitionState(2, 0, (2,), EPOCH)


# Return with a new epoch


def test_leader_that_returned_leaves_the_in_sync_replicas_before_it_comes_back() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 1)
    _register(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(2, 1, (2, 3), EPOCH)
    assert stage.leader_and_isr(1)[NAME].isr == [2, 3]
    assert STOP_REPLICA not in [each.kind for each in stage.sent]
    told = [each.request.broker_epoch for each in stage.sent if each.broker_id == 1 and each.kind is LEADER_AND_ISR]
    assert told == [stage.context.live[1].epoch]


def test_follower_that_returned_leaves_the_in_sync_replicas_before_it_comes_back() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 3)
    _register(stage, 3)

    _look(stage)

    assert stage.state(NAME) == PartitionState(1, 1, (1, 2), EPOCH)
    assert stage.leader_and_isr(3)[NAME].isr == [1, 2]
    assert stage.metadata(1)[NAME].offline_replicas == []


@pytest.mark.parametrize("unclean", [False, True])
def test_last_in_sync_replica_that_returned_leads_in_a_new_epoch_and_no_election_is_unclean(unclean: bool) -> None:
    stage = _stage(unclean=unclean)
    stage.add_state(NAME, 1, (1,))
    _die(stage, 1)
    _register(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(1, 2, (1,), EPOCH)


def test_all_in_sync_replicas_gone_at_once_keeps_the_one_that_returned() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2))
    _die(stage, 1, 2)
    _register(stage, 2)

    _look(stage)

    assert stage.state(NAME) == PartitionState(2, 2, (2,), EPOCH)


def test_broker_that_died_is_not_elected_when_another_returned() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 1, 2)
    _register(stage, 1)

    _look(stage)

    assert stage.state(NAME) == PartitionState(3, 1, (3,), EPOCH)
    assert stage.context.states[NAME].version == 1


# Changes


def test_changed_endpoint_is_told_to_all_brokers() -> None:
    stage = _stage(brokers=(1, 2))
    stage.add_state(NAME, 1, (1, 2))
    changed = BrokerRegistration((Endpoint(Listener("PLAINTEXT", "elsewhere", 9), "PLAINTEXT"),), NOW_MS)
    stage.do(SetData(paths.broker(2), changed.write()))

    _look(stage)

    assert stage.context.live[2].registration == changed
    assert stage.told_brokers(1) == [[1, 2]]
    assert stage.context.states[NAME].version == 0


def test_look_without_a_change_tells_nothing() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _look(stage)
    assert stage.sent == []


def test_malformed_registration_is_ignored() -> None:
    stage = _stage(brokers=(1,))
    stage.do(Create(paths.broker(2), b"{}", ephemeral=True))
    assert [*stage.run(read_brokers())] == [1]


@pytest.mark.parametrize("name", ["2147483648", "x", "²", "99999999999999999999"])
def test_registration_whose_id_fits_in_no_request_is_ignored(name: str) -> None:
    stage = _stage(brokers=(1,))
    stage.do(Create(f"{paths.BROKER_IDS}/{name}", a_registration(1).write(), ephemeral=True))
    assert [*stage.run(read_brokers())] == [1]


def test_deposed_controller_removes_nobody() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    _die(stage, 1)
    stage.depose()

    with pytest.raises(DeposedError):
        _look(stage)

    assert stage.state(NAME) == PartitionState(1, 0, (1, 2, 3), EPOCH)


# Becoming the controller


# Log directories


def test_failed_directory_lets_the_controller_ask_for_all_replicas_of_the_broker() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    stage.do(Create(paths.LOG_DIR_EVENT_PREFIX, write_log_dir_event(1), sequential=True))
    stage.do(Create(paths.LOG_DIR_EVENT_PREFIX, b"malformed", sequential=True))

    stage.event(look_at_log_dir_events)

    assert {*stage.leader_and_isr(1)} == {NAME}
    assert stage.leader_and_isr(2) == {}
    assert stage.children(paths.LOG_DIR_EVENTS) == ()


def test_storage_error_of_a_leader_moves_the_leadership_and_stops_the_replica() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))

    _answer(stage, 1, ErrorCode.KAFKA_STORAGE_ERROR)

    assert stage.state(NAME) == PartitionState(2, 1, (2, 3), EPOCH)
    assert stage.leader_and_isr(1) == {}
    assert NAME in stage.stop_replica(1)
    assert stage.metadata(3)[NAME].offline_replicas == [1]


def test_storage_error_that_is_known_changes_nothing() -> None:
    stage = _stage()
    stage.add_state(NAME, 2, (2, 3))
    stage.context.offline_replicas[1] = {NAME}

    _answer(stage, 1, ErrorCode.KAFKA_STORAGE_ERROR)

    assert stage.sent == []


def test_replica_whose_directory_works_again_is_online() -> None:
    stage = _stage()
    stage.add_state(NAME, 2, (2, 3))
    stage.context.offline_replicas[1] = {NAME}

    _answer(stage, 1, ErrorCode.NONE)

    assert stage.context.is_online(1, NAME)


def test_storage_error_by_name_of_an_old_release_is_understood() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    error = LeaderAndIsrPartitionError(topic_name="t", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    response = LeaderAndIsrResponse(partition_errors=[error])

    stage.event(lambda context, batch: note_leader_and_isr(context, batch, stage.settings, 2, response))

    assert stage.state(NAME) == PartitionState(1, 1, (1, 3), EPOCH)


def test_refused_leader_and_isr_changes_nothing() -> None:
    stage = _stage()
    stage.add_state(NAME, 1, (1, 2, 3))
    response = LeaderAndIsrResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)

    stage.event(lambda context, batch: note_leader_and_isr(context, batch, stage.settings, 2, response))

    assert stage.context.offline_replicas == {}
