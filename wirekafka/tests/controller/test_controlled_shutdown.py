"""Controlled shutdowns."""

from __future__ import annotations

import pytest

from wirekafka.controller.brokers import look_at_brokers
from wirekafka.controller.controlled_shutdown import shut_down
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.wire.messages.controlled_shutdown import ControlledShutdownRequest
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import PartitionState
from wirekafka.zookeeper.session import Delete

LED, FOLLOWED, ALONE, LAST = (TopicPartition("t", index) for index in range(4))


def _stage() -> Stage:
    stage = Stage()
    for broker_id in (1, 2, 3):
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2, 3), 1: (2, 1), 2: (1,), 3: (1, 2)})
    stage.add_state(LED, 1, (1, 2, 3), leader_epoch=4)
    stage.add_state(FOLLOWED, 2, (2, 1))
    stage.add_state(ALONE, 1, (1,))
    stage.add_state(LAST, 1, (1,))
    return stage


def _shut_down(stage: Stage, broker_id: int = 1, broker_epoch: int | None = None) -> list[TopicPartition]:
    epoch = stage.context.live[broker_id].epoch if broker_epoch is None else broker_epoch
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch)
    response = stage.event(lambda context, batch: shut_down(context, batch, stage.settings, request))
    assert response.error_code == ErrorCode.NONE
    return [TopicPartition(each.topic_name, each.partition_index) for each in response.remaining_partitions]


def test_leaderships_move_and_the_broker_leaves_the_in_sync_replicas() -> None:
    stage = _stage()

    assert _shut_down(stage) == [LAST]

    assert stage.state(LED) == PartitionState(2, 5, (2, 3), EPOCH)
    assert stage.state(FOLLOWED) == PartitionState(2, 1, (2,), EPOCH)
    assert stage.leader_and_isr(1)[LED].leader == 2
    assert {*stage.stop_replica(1)} == {FOLLOWED}
    assert stage.context.states[ALONE].version == stage.context.states[LAST].version == 0


def test_second_request_returns_what_remains() -> None:
    stage = _stage()
    _shut_down(stage)
    assert _shut_down(stage) == [LAST]
    assert stage.state(LED).leader_epoch == 5


def test_broker_that_shuts_down_gets_no_leadership() -> None:
    stage = _stage()
    _shut_down(stage, 2)

    assert _shut_down(stage) == [FOLLOWED, LAST]

    assert stage.state(LED) == PartitionState(3, 6, (3,), EPOCH)


def test_partitions_move_at_once_when_the_broker_is_gone() -> None:
    stage = _stage()
    _shut_down(stage)
    stage.do(Delete(paths.broker(1)))

    stage.event(lambda context, batch: look_at_brokers(context, batch, stage.settings))

    assert stage.context.shutting_down == set()
    assert stage.context.states[LED].version == stage.context.states[FOLLOWED].version == 1


def test_topic_that_is_deleted_does_not_move() -> None:
    stage = _stage()
    stage.context.deleting["t"] = None
    assert _shut_down(stage) == []
    assert stage.context.states[LED].version == 0


@pytest.mark.parametrize("broker_epoch", [0, 1 << 40])
def test_another_registration_cannot_shut_the_broker_down(broker_epoch: int) -> None:
    stage = _stage()
    with pytest.raises(KafkaError, match="STALE_BROKER_EPOCH"):
        _shut_down(stage, broker_epoch=broker_epoch)
    assert stage.context.shutting_down == set()


def test_request_without_a_broker_epoch_is_accepted() -> None:
    assert _shut_down(_stage(), broker_epoch=-1) == [LAST]


def test_broker_that_is_not_registered_is_not_available() -> None:
    with pytest.raises(KafkaError, match="BROKER_NOT_AVAILABLE"):
        _shut_down(_stage(), 9, 0)
