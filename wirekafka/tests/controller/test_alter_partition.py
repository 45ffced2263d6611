"""AlterPartition as the controller answers it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import structlog

from wirekafka.controller.alter_partition import alter_partition
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.wire.messages.alter_partition import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import RECOVERED, RECOVERING, PartitionState
from wirekafka.zookeeper.session import SetData

NAME = TopicPartition("t", 0)


def _stage(*, isr: tuple[int, ...] = (1, 2), recovery_state: int = RECOVERED) -> Stage:
    stage = Stage()
    for broker_id in (1, 2, 3, 4):
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2, 3)})
    stage.add_state(NAME, 1, isr, leader_epoch=4, recovery_state=recovery_state)
    return stage


def _ask(
    stage: Stage,
    isr: Sequence[int],
    *,
    version: int = 3,
    broker_id: int = 1,
    broker_epoch: int | None = None,
    leader_epoch: int = 4,
    partition_epoch: int = 0,
    recovery_state: int = RECOVERED,
    epochs: dict[int, int] | None = None,
    topic_id: bytes | None = None,
    index: int = 0,
) -> AlterPartitionResponse:
    live = stage.context.live
    known = {each: live[each].epoch for each in isr if each in live} | (epochs or {})
    states = [BrokerState(broker_id=each, broker_epoch=known.get(each, -1)) for each in isr]
    partition = AlterPartitionPartition(
        partition_index=index,
        leader_epoch=leader_epoch,
        new_isr=[*isr] if version < 3 else [],
        new_isr_with_epochs=states if version >= 3 else [],
        leader_recovery_state=recovery_state,
        partition_epoch=partition_epoch,
    )
    topic = AlterPartitionTopic(partitions=[partition])
    if version >= 2:
        topic.topic_id = topic_id or stage.context.topics["t"].topic_id or b""
    else:
        topic.topic_name = "t"
    request = AlterPartitionRequest(
        broker_id=broker_id,
        broker_epoch=live[broker_id].epoch if broker_epoch is None else broker_epoch,
        topics=[topic],
    )
    return stage.event(lambda context, batch: alter_partition(context, batch, request, version))


def _answer(response: AlterPartitionResponse) -> AlterPartitionPartitionResponse:
    assert response.error_code == ErrorCode.NONE
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_new_in_sync_replicas_are_written_answered_and_told(version: int) -> None:
    stage = _stage()

    response = _ask(stage, (1, 2, 3), version=version)

    assert _answer(response) == AlterPartitionPartitionResponse(
        partition_index=0, leader_id=1, leader_epoch=4, isr=[1, 2, 3], partition_epoch=1
    )
    assert (response.topics[0].topic_name == "t") == (version < 2)
    assert stage.state(NAME) == PartitionState(1, 4, (1, 2, 3), EPOCH)
    assert stage.metadata(4)[NAME].isr == [1, 2, 3]
    assert stage.leader_and_isr(1) == {}


def test_same_in_sync_replicas_are_answered_without_a_write() -> None:
    stage = _stage()
    stage.context.states[NAME].version = 7  # An earlier answer was lost, so the leader has an older partition epoch.

    answer = _answer(_ask(stage, (1, 2), partition_epoch=6))

    assert (answer.error_code, answer.partition_epoch) == (ErrorCode.NONE, 7)


@pytest.mark.parametrize("broker_epoch", [-1, 0, 1 << 40])
def test_another_registration_of_the_leader_is_refused(broker_epoch: int) -> None:
    stage = _stage()
    assert _ask(stage, (1,), broker_epoch=broker_epoch).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert stage.context.states[NAME].version == 0


def test_leader_that_is_not_registered_is_refused() -> None:
    stage = _stage()
    epoch = stage.context.live.pop(1).epoch
    assert _ask(stage, (2,), broker_epoch=epoch, broker_id=1).error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "code"),
    [
        (5, 0, ErrorCode.NOT_CONTROLLER),
        (4, 1, ErrorCode.NOT_CONTROLLER),
        (3, 0, ErrorCode.FENCED_LEADER_EPOCH),
        (3, -1, ErrorCode.FENCED_LEADER_EPOCH),
        (4, -1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_epochs_of_the_leader_are_compared(leader_epoch: int, partition_epoch: int, code: ErrorCode) -> None:
    stage = _stage()
    answer = _answer(_ask(stage, (1,), leader_epoch=leader_epoch, partition_epoch=partition_epoch))
    assert answer.error_code == code
    assert stage.context.states[NAME].version == 0


@pytest.mark.parametrize("isr", [(2, 3), (1, 2, 4), (), (1, 1)])
def test_in_sync_replicas_have_the_leader_and_only_replicas_of_the_partition(isr: tuple[int, ...]) -> None:
    stage = _stage()
    assert _answer(_ask(stage, isr)).error_code == ErrorCode.INVALID_REQUEST
    assert stage.context.states[NAME].version == 0


def test_only_the_leader_may_ask() -> None:
    assert _answer(_ask(_stage(), (1, 2, 3), broker_id=2)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("before", "wanted", "isr", "code"),
    [
        (RECOVERING, RECOVERED, (1,), ErrorCode.NONE),
        (RECOVERING, RECOVERED, (1, 2), ErrorCode.NONE),
        (RECOVERING, RECOVERING, (1, 2), ErrorCode.INVALID_REQUEST),
        (RECOVERED, RECOVERING, (1,), ErrorCode.INVALID_REQUEST),
    ],
)
def test_leader_recovers_alone_and_once(before: int, wanted: int, isr: tuple[int, ...], code: ErrorCode) -> None:
    stage = _stage(isr=(1,), recovery_state=before)
    assert _answer(_ask(stage, isr, recovery_state=wanted)).error_code == code
    assert stage.state(NAME).leader_recovery_state == (wanted if code == ErrorCode.NONE else before)


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.OPERATION_NOT_ATTEMPTED), (2, ErrorCode.INELIGIBLE_REPLICA)])
@pytest.mark.parametrize("reason", ["dead", "shutting down", "directory"])
def test_replica_that_cannot_serve_is_ineligible(version: int, code: ErrorCode, reason: str) -> None:
    stage = _stage()
    if reason == "dead":
        del stage.context.live[3]
    elif reason == "shutting down":
        stage.context.shutting_down.add(3)
    else:
        stage.context.offline_replicas[3] = {NAME}

    assert _answer(_ask(stage, (1, 2, 3), version=version)).error_code == code

    assert stage.context.states[NAME].version == 0


@pytest.mark.parametrize(("epoch", "code"), [(-1, ErrorCode.NONE), (0, ErrorCode.INELIGIBLE_REPLICA)])
def test_replica_that_has_restarted_since_it_caught_up_is_ineligible(epoch: int, code: ErrorCode) -> None:
    stage = _stage()
    assert _answer(_ask(stage, (1, 2, 3), epochs={3: epoch})).error_code == code


def test_leader_that_shuts_down_may_remove_a_follower() -> None:
    stage = _stage()
    stage.context.shutting_down.add(1)
    assert _answer(_ask(stage, (1,))).error_code == ErrorCode.NONE
    assert stage.state(NAME).isr == (1,)


def test_unknown_topic_id_is_answered() -> None:
    assert _answer(_ask(_stage(), (1,), topic_id=b"x" * 16)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_unknown_partition_is_answered() -> None:
    assert _answer(_ask(_stage(), (1,), index=9)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_state_that_changed_elsewhere_refuses_the_request() -> None:
    stage = _stage()
    changed = PartitionState(2, 5, (1, 2), EPOCH)
    stage.do(SetData(paths.partition_state(NAME), changed.write()))
    assert _answer(_ask(stage, (1,))).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert stage.state(NAME) == changed


def test_deposed_controller_changes_nothing() -> None:
    stage = _stage()
    stage.depose()
    with pytest.raises(DeposedError):
        _ask(stage, (1,))
    assert stage.state(NAME).isr == (1, 2)


def test_refusals_of_many_partitions_are_logged_in_one_line() -> None:
    stage = _stage()
    live, topic_id = stage.context.live[1], stage.context.topics["t"].topic_id or b""
    for index in range(1, 30):
        stage.add_state(TopicPartition("t", index), 1, (1, 2), leader_epoch=4)
    partitions = [AlterPartitionPartition(partition_index=index, leader_epoch=3) for index in range(30)]
    request = AlterPartitionRequest(
        broker_id=1, broker_epoch=live.epoch, topics=[AlterPartitionTopic(topic_id=topic_id, partitions=partitions)]
    )
    with structlog.testing.capture_logs() as lines:
        stage.event(lambda context, batch: alter_partition(context, batch, request, 3))
    (line,) = lines
    assert (line["event"], line["count"], len(line["first"])) == ("The controller refuses new in-sync replicas", 30, 10)
