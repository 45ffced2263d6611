"""What a broker does when it becomes the controller, and when it reads everything once more."""

from __future__ import annotations

from typing import Any

import pytest

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.controller import PAUSE_MS
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.controllers import Cluster, cluster_with_topic
from wirekafka.tests.controller.stage import a_registration
from wirekafka.wire.messages.update_metadata import UpdateMetadataRequest
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_DISABLED, FinalizedFeatures
from wirekafka.zookeeper.layout.requests import write_isr_change
from wirekafka.zookeeper.layout.topics import PartitionState
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    GetChildren,
    Multi,
    Operation,
    SetData,
)

NAME = TopicPartition("t", 0)


def test_failover_tells_the_live_brokers_before_anything_else() -> None:
    cluster = cluster_with_topic()

    cluster.brokers[1].expire()

    first = cluster.brokers[2].told(3)[0]
    assert isinstance(first, UpdateMetadataRequest)
    assert ([each.id for each in first.live_brokers], first.topic_states) == ([2, 3], [])


def test_failover_elects_leaders_in_place_of_dead_ones() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[1].controller.close()
    cluster.brokers[2].expire()

    cluster.stage.do(Delete(paths.CONTROLLER))

    controller = cluster.brokers[3]
    assert cluster.state(NAME) == PartitionState(3, 1, (3, 1), 2)
    assert controller.leaders_told(3)[NAME].leader == 3
    assert controller.metadata_told(1)[NAME].leader == 3


def test_failover_removes_a_broker_that_has_restarted_meanwhile_from_the_isr() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[1].controller.close()
    cluster.brokers[2].expire()
    cluster.brokers[2].register()

    cluster.stage.do(Delete(paths.CONTROLLER))

    assert cluster.state(NAME) == PartitionState(3, 2, (3, 1), 2)


def test_failover_notices_a_restart_after_all_in_sync_replicas_had_restarted() -> None:
    cluster = Cluster(1, 2, 3, 4, 5)
    cluster.start()
    cluster.create_topic("t", {0: (2, 3)})
    for broker_id in (2, 3):
        cluster.brokers[broker_id].controller.close()

    def fail_over_after_restarts(*broker_ids: int) -> None:
        assert cluster.controller_id is not None
        cluster.brokers[cluster.controller_id].controller.close()
        for broker_id in broker_ids:
            cluster.brokers[broker_id].expire()
            cluster.brokers[broker_id].register()
        cluster.stage.do(Delete(paths.CONTROLLER))

    fail_over_after_restarts(2, 3)
    assert cluster.controller_id == 4
    assert cluster.state(NAME) == PartitionState(2, 1, (2, 3), 2)
    assert cluster.brokers[4].leaders_told(3)[NAME].leader_epoch == 1

    fail_over_after_restarts(2)
    assert cluster.state(NAME).isr == (3,)


def test_failover_resumes_a_deletion() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[1].newest(3).answer = None
    cluster.stage.do(Create(paths.deleted_topic("t"), None))
    assert cluster.stage.data(paths.topic("t")) is not None

    cluster.brokers[1].controller.close()
    cluster.stage.do(Delete(paths.CONTROLLER))

    assert cluster.stage.data(paths.topic("t")) is None
    assert cluster.stage.data(paths.deleted_topic("t")) is None


def test_failover_deletes_old_notifications() -> None:
    cluster = Cluster(1)
    cluster.stage.do(Create(paths.ISR_CHANGE_PREFIX, write_isr_change([NAME]), sequential=True))
    cluster.stage.do(Create(paths.LOG_DIR_EVENT_PREFIX, b"{}", sequential=True))

    cluster.start()

    assert cluster.stage.children(paths.ISR_CHANGES) == ()
    assert cluster.stage.children(paths.LOG_DIR_EVENTS) == ()


OPERATORS_MAY_DELETE = (paths.DELETE_TOPICS, paths.ISR_CHANGES, paths.LOG_DIR_EVENTS)


@pytest.mark.parametrize("path", OPERATORS_MAY_DELETE)
def test_failover_creates_a_znode_again_that_an_operator_has_deleted(path: str) -> None:
    cluster = Cluster(1)
    cluster.stage.do(Delete(path))
    cluster.start()
    assert cluster.controller_id == 1
    assert cluster.stage.children(path) == ()


@pytest.mark.parametrize("path", OPERATORS_MAY_DELETE)
def test_controller_creates_a_znode_again_that_an_operator_deletes_and_sees_its_children(path: str) -> None:
    cluster = cluster_with_topic()
    controller = cluster.brokers[1]
    cluster.stage.do(Delete(path))
    assert controller.context.epoch == 1
    assert cluster.stage.children(path) == ()
    cluster.stage.do(Create(f"{path}/unknown", b""))
    assert cluster.stage.children(path) == ()


def test_failover_creates_the_features() -> None:
    cluster = Cluster(1)

    cluster.start()

    found = cluster.stage.data(paths.FEATURE)
    assert found is not None
    assert FinalizedFeatures.read(found.data) == FinalizedFeatures({})


def test_failover_of_an_old_release_creates_features_with_lowest_levels() -> None:
    cluster = Cluster(1, settings=lambda broker_id: ControllerSettings(broker_id, release="2.8"))

    cluster.start()

    found = cluster.stage.data(paths.FEATURE)
    assert found is not None
    assert FinalizedFeatures.read(found.data).version == 1


def test_failover_with_features_of_an_old_release_enables_them() -> None:
    cluster = Cluster(1)
    cluster.stage.do(Create(paths.FEATURE, FinalizedFeatures({"x": 1}, FEATURES_DISABLED, version=1).write()))

    cluster.start()

    found = cluster.stage.data(paths.FEATURE)
    assert found is not None
    assert FinalizedFeatures.read(found.data) == FinalizedFeatures({})


def test_failover_that_fails_gives_up_the_controllership(logged_faults: list[str]) -> None:
    cluster = Cluster(1, 2)
    first, second = cluster.brokers.values()
    first.register()

    def fail(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        raise RuntimeError("a defect")
        yield PAUSE

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wirekafka.controller.failover.reassignment.take_over", fail)
        first.lose_connection()
        assert cluster.controller_id is None
        assert not first.controller.is_active
    second.register()
    cluster.pass_time(PAUSE_MS)

    assert cluster.controller_id == 2
    assert "a defect" in logged_faults.pop()


def test_failover_that_fails_and_whose_controller_cannot_give_up_keeps_the_connections(logged_faults: list[str]) -> None:
    cluster = Cluster(1)
    broker = cluster.brokers[1]
    failures = [RuntimeError("a defect")]

    def fail_once(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        if failures:
            raise failures.pop()
        yield PAUSE

    def lose_end(operation: Operation[Any]) -> Fault | None:
        if not isinstance(operation, Multi) or Delete(paths.CONTROLLER) not in operation.operations:
            return None
        broker.client.choose_fault = lambda operation: None
        return Fault.REQUEST_LOST

    broker.client.choose_fault = lose_end
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wirekafka.controller.failover.reassignment.take_over", fail_once)
        broker.register()
        cluster.pass_time(PAUSE_MS)

    assert broker.context.epoch == 1
    [connection] = broker.peers.channels[1]
    assert not connection.is_closed
    assert "a defect" in logged_faults.pop()


def test_failover_that_is_refused_waits_before_it_begins_again(logged_faults: list[str]) -> None:
    cluster = Cluster(1)
    broker = cluster.brokers[1]
    attempts: list[int] = []

    def refuse(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        attempts.append(context.epoch)
        assert len(attempts) < 10, "the controller tries again at once"
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a defect")
        yield PAUSE

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wirekafka.controller.failover.reassignment.take_over", refuse)
        broker.register()
        assert attempts == [1]
        assert cluster.controller_id is None
    cluster.pass_time(PAUSE_MS)

    assert cluster.controller_id == 1
    assert broker.context.epoch == 2
    assert "a defect" in logged_faults.pop()


def test_reading_once_more_removes_a_broker_that_restarted_before_the_last_write_of_a_state() -> None:
    cluster = cluster_with_topic()
    tool = cluster.stage.connect()
    cluster.turn()

    def return_and_break(operation: Operation[Any]) -> Fault | None:
        """Lets broker 3 return before its death is noticed, and a decision from before be written after."""
        if not isinstance(operation, GetChildren) or operation.path != paths.BROKER_IDS:
            return None
        cluster.brokers[1].client.choose_fault = lambda operation: None
        tool.submit(Create(paths.broker(3), a_registration(3).write(), ephemeral=True), lambda result: None)
        tool.submit(
            SetData(paths.partition_state(NAME), cluster.brokers[1].context.states[NAME].state.write()), lambda result: None
        )
        return Fault.REQUEST_LOST

    cluster.brokers[1].client.choose_fault = return_and_break
    cluster.brokers[3].expire()

    assert cluster.controller_id == 1
    assert [*cluster.brokers[1].context.live] == [1, 2, 3]
    assert cluster.state(NAME).isr == (2, 1)
