"""The controllers of brokers: their competition, their events, and what they do when they lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from wirekafka.controller.competition import compete
from wirekafka.controller.context import ControllerContext, Topic
from wirekafka.controller.controller import PAUSE_MS
from wirekafka.controller.reactions import reaction_to
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import PAUSE, Script
from wirekafka.controller.settings import AutoRebalance, ControllerSettings
from wirekafka.controller.writes import multi, write_states
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.controllers import Broker, Cluster, cluster_with_topic
from wirekafka.wire.messages.update_metadata import UpdateMetadataRequest
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration
from wirekafka.zookeeper.layout.requests import write_isr_change
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import (
    Create,
    Data,
    Delete,
    GetData,
    Multi,
    Operation,
    R,
    SetData,
    Stat,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

NAME = TopicPartition("t", 0)


def _returning(value: str) -> Callable[[ControllerContext, RequestBatch], Script[str]]:
    def event(context: ControllerContext, batch: RequestBatch) -> Script[str]:
        yield PAUSE
        return value

    return event


def _writing(leader: int) -> Callable[[ControllerContext, RequestBatch], Script[str]]:
    """Returns an event that makes a broker the leader of the partition."""

    def event(context: ControllerContext, batch: RequestBatch) -> Script[str]:
        yield from write_states(context, {NAME: replace(context.states[NAME].state, leader=leader)})
        batch.update_metadata(context.live, [NAME])
        return "written"

    return event


def _enter(broker: Broker, event: Callable[[ControllerContext, RequestBatch], Script[Any]]) -> list[Any]:
    """Enters an event; returns the list that receives its results."""
    results: list[Any] = []
    broker.controller.enter(event, results.append)
    return results


def _codes(results: list[Any]) -> list[ErrorCode]:
    return [result.code for result in results if isinstance(result, KafkaError)]


def _lose_first(broker: Broker, fault: Fault, kind: type[Operation[Any]]) -> None:
    """Loses the connection of a broker at its next operation of a kind."""
    faults = [fault]

    def choose(operation: Operation[Any]) -> Fault | None:
        return faults.pop() if faults and isinstance(operation, kind) else None

    broker.client.choose_fault = choose


# The competition


def test_compete_without_a_controller_becomes_it() -> None:
    cluster = Cluster(1)

    controller = cluster.start()

    assert cluster.controller_id == 1
    assert cluster.epoch == b"1"
    assert controller.controller.is_active
    assert controller.context.epoch == 1
    assert [*controller.context.live] == [1]
    assert controller.changes == [True]


def test_compete_before_the_registration_does_nothing() -> None:
    cluster = Cluster(1)

    cluster.brokers[1].lose_connection()

    assert cluster.controller_id is None


def test_compete_with_a_controller_waits_for_its_end() -> None:
    cluster = Cluster(1, 2)
    first, second = cluster.start(), cluster.brokers[2]
    assert not second.controller.is_active

    first.expire()

    assert second.controller.is_active
    assert second.context.epoch == 2
    assert not first.controller.is_active
    assert first.changes == [True, False]


def test_compete_that_zookeeper_refuses_fails_instead_of_trying_again_at_once() -> None:
    script = compete(1, 2, 3)
    epoch = Data(b"1", Stat(*[0] * len(fields(Stat))))
    missing = ZooKeeperError(ZooKeeperErrorCode.NO_NODE)
    assert isinstance(next(script), list)
    assert isinstance(script.send([None, None, epoch, missing, epoch]), Multi)

    refusal = ZooKeeperError(ZooKeeperErrorCode.NO_AUTH, paths.CONTROLLER, (ZooKeeperErrorCode.NO_AUTH,))
    with pytest.raises(ZooKeeperError) as raised:
        script.throw(refusal)

    assert raised.value.code is ZooKeeperErrorCode.NO_AUTH


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST, Fault.REQUEST_LATE])
def test_compete_with_an_unknown_outcome_reads_it_back(fault: Fault) -> None:
    cluster = Cluster(1)
    _lose_first(cluster.brokers[1], fault, Multi)

    cluster.start()

    assert cluster.controller_id == 1
    assert cluster.epoch == b"1"
    assert cluster.brokers[1].context.epoch == 1


def test_compete_with_a_kraft_controller_does_not_happen() -> None:
    cluster = Cluster(1)
    cluster.stage.do(Create(paths.CONTROLLER, ControllerRegistration(3000, 0, kraft_controller_epoch=1).write()))

    cluster.start()

    assert cluster.controller_id == 3000
    assert not cluster.brokers[1].controller.is_active


def test_compete_while_the_cluster_migrates_begins_when_the_migration_has_ended() -> None:
    cluster = Cluster(1)
    cluster.stage.do(Create(paths.MIGRATION, b"{}"))
    cluster.start()
    assert cluster.controller_id is None

    cluster.stage.do(Delete(paths.MIGRATION))

    assert cluster.controller_id == 1


def test_controller_whose_znode_an_operator_deletes_competes_again() -> None:
    cluster = Cluster(1)
    controller = cluster.start()

    cluster.stage.do(Delete(paths.CONTROLLER))

    assert cluster.controller_id == 1
    assert controller.context.epoch == 2
    assert controller.changes == [True, False, True]


# Events


def test_events_that_are_removed_before_they_begin_do_not_fill_the_queue() -> None:
    cluster = cluster_with_topic()
    controller = cluster.brokers[1].controller
    results: list[Any] = []
    cluster.brokers[1].client.lose_connection()
    removals = [controller.enter(_returning(str(number)), results.append) for number in range(3)]

    for remove in removals[:2]:
        remove()
    assert not controller.is_idle
    removals[2]()

    assert controller.is_idle
    cluster.turn()
    assert results == []


# Changes in ZooKeeper


def test_malformed_topic_that_is_corrected_gets_leaders_and_its_deletion_begins() -> None:
    cluster = Cluster(1)
    controller = cluster.start()
    for name in ("t", "u"):
        cluster.stage.do(Create(paths.topic(name), b"{"))
    assert [*controller.context.topics] == []

    for name in ("t", "u"):
        if name == "u":
            controller.newest(1).answer = None
            cluster.stage.do(Create(paths.deleted_topic(name), None))
        content = TopicAssignment(name.encode().rjust(16, b"\0"), {0: ReplicaAssignment((1,))}).write()
        cluster.stage.do(SetData(paths.topic(name), content))

    assert cluster.state(NAME).leader == 1
    assert controller.context.is_deleting("u")


def test_change_of_one_topic_does_not_go_through_all_topics() -> None:
    cluster = cluster_with_topic()

    class Topics(dict[str, Topic]):
        """Topics that are found by name only."""

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("the event goes through all topics")

    context = cluster.brokers[1].context
    context.topics = Topics(context.topics)
    batch = RequestBatch(context, ControllerSettings(1), cluster.stage)
    reaction = reaction_to(paths.topic("t"))
    assert reaction is not None
    content = TopicAssignment(b"t".rjust(16, b"\0"), {index: ReplicaAssignment((2,)) for index in range(2)}).write()
    cluster.stage.do(SetData(paths.topic("t"), content))

    cluster.stage.run(reaction.event(context, batch))

    assert [*context.topics["t"].assignments] == [0, 1]


def test_topic_that_appears_gets_leaders_that_the_brokers_learn() -> None:
    cluster = cluster_with_topic()

    assert cluster.state(NAME) == PartitionState(2, 0, (2, 3, 1), 1)
    told = cluster.brokers[1].leaders_told(3)[NAME]
    assert (told.leader, told.is_new) == (2, True)
    assert cluster.brokers[1].metadata_told(3)[NAME].leader == 2


def test_topic_that_appears_after_the_request_to_delete_it_was_seen_is_deleted() -> None:
    cluster = cluster_with_topic()
    controller = cluster.brokers[1]
    cluster.create_topic("u", {0: (2,)})
    controller.context.remove_topic("u")
    cluster.stage.do(Create(paths.deleted_topic("u"), None))
    assert cluster.stage.data(paths.deleted_topic("u")) is not None

    cluster.create_topic("v", {0: (2,)})

    assert cluster.stage.children(paths.TOPICS) == ("t", "v")
    assert cluster.stage.data(paths.deleted_topic("u")) is None


def test_topic_that_grows_gets_leaders_for_its_new_partitions() -> None:
    cluster = cluster_with_topic()
    assignments = {index: ReplicaAssignment((3, 1)) for index in range(2)}

    cluster.stage.do(SetData(paths.topic("t"), TopicAssignment(b"t".rjust(16, b"\0"), assignments).write()))

    assert cluster.state(TopicPartition("t", 1)).leader == 3
    assert cluster.brokers[1].leaders_told(1)[TopicPartition("t", 1)].leader == 3


def test_broker_that_dies_loses_its_leaderships() -> None:
    cluster = cluster_with_topic()

    cluster.brokers[2].expire()

    assert cluster.state(NAME) == PartitionState(3, 1, (3, 1), 1)
    assert cluster.brokers[1].leaders_told(3)[NAME].leader == 3
    assert [each.id for each in cluster.brokers[1].told(3)[-1].live_brokers] == [1, 3]
    assert cluster.brokers[1].newest(2).is_closed


def test_broker_that_returns_gets_a_new_connection_and_its_replicas() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[2].expire()

    cluster.brokers[2].register()

    kinds = [type(request) for request in cluster.brokers[1].newest(2).seen]
    assert kinds[0] is UpdateMetadataRequest
    assert cluster.brokers[1].leaders_told(2)[NAME].leader == 3
    assert len(cluster.brokers[1].peers.channels[2]) == 2


def test_broker_whose_deletion_failed_returns_and_deletes() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[2].expire()
    cluster.stage.do(Create(paths.deleted_topic("t"), None))
    assert cluster.stage.data(paths.topic("t")) is not None

    cluster.brokers[2].register()

    assert cluster.stage.data(paths.topic("t")) is None


def test_topic_that_is_deleted_before_the_controller_knows_it_is_deleted() -> None:
    cluster = cluster_with_topic()
    content = TopicAssignment(b"u".rjust(16, b"\0"), {0: ReplicaAssignment((3,))}).write()
    # The controller looks at deletions first, because of the first one, and finds the other one too.
    for operation in (
        Create(paths.deleted_topic("t"), None),
        Create(paths.topic("u"), content),
        Create(paths.deleted_topic("u"), None),
    ):
        cluster.stage.client.submit(operation, lambda result: None)
    cluster.turn()

    assert cluster.stage.children(paths.TOPICS) == ()
    assert cluster.stage.children(paths.DELETE_TOPICS) == ()


def test_isr_that_a_leader_has_changed_by_itself_is_told_to_all() -> None:
    cluster = cluster_with_topic()
    shrunk = replace(cluster.state(NAME), isr=(2, 1))
    cluster.stage.do(SetData(paths.partition_state(NAME), shrunk.write()))

    cluster.stage.do(Create(paths.ISR_CHANGE_PREFIX, write_isr_change([NAME]), sequential=True))

    assert cluster.brokers[1].metadata_told(3)[NAME].isr == [2, 1]
    assert cluster.stage.children(paths.ISR_CHANGES) == ()


def test_reassignment_is_complete_when_the_isr_has_grown() -> None:
    cluster = Cluster(1, 2, 3)
    controller = cluster.start()
    cluster.create_topic("t", {0: (1,)})
    moving = TopicAssignment(b"t".rjust(16, b"\0"), {0: ReplicaAssignment((2, 1), (2,), (1,))})
    cluster.stage.do(SetData(paths.topic("t"), moving.write()))
    controller.lose_connection()
    assert [*controller.context.reassigning] == [NAME]

    def grow(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        yield from write_states(context, {NAME: replace(context.states[NAME].state, isr=(1, 2))})
        batch.update_metadata(context.live, [NAME])

    _enter(controller, grow)
    cluster.turn()

    assert (cluster.state(NAME).leader, cluster.state(NAME).isr) == (2, (2,))
    found = cluster.stage.do(GetData(paths.topic("t")))
    assert TopicAssignment.read("t", found.data).partitions == {0: ReplicaAssignment((2,))}


# Events


def test_enter_returns_the_result_after_the_requests_were_sent() -> None:
    cluster = cluster_with_topic()
    results = _enter(cluster.brokers[1], _writing(3))
    assert results == []

    cluster.turn()

    assert results == ["written"]
    assert cluster.brokers[1].metadata_told(2)[NAME].leader == 3


def test_enter_of_a_broker_that_is_not_the_controller_is_refused_later() -> None:
    cluster = cluster_with_topic()
    results = _enter(cluster.brokers[2], _returning("x"))
    assert results == []

    cluster.turn()

    assert _codes(results) == [ErrorCode.NOT_CONTROLLER]


def test_enter_of_an_event_that_refuses_returns_its_error() -> None:
    cluster = cluster_with_topic()

    def refuse(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
        yield PAUSE

    results = _enter(cluster.brokers[1], refuse)
    cluster.turn()

    assert _codes(results) == [ErrorCode.INVALID_REQUEST]
    assert cluster.brokers[1].controller.is_active


def test_enter_whose_end_fails_goes_on_with_the_next_event(logged_faults: list[str]) -> None:
    cluster = cluster_with_topic()

    def fail(result: object) -> None:
        raise RuntimeError("a defect")

    cluster.brokers[1].controller.enter(_returning("x"), fail)
    results = _enter(cluster.brokers[1], _returning("y"))
    cluster.turn()

    assert results == ["y"]
    assert "a defect" in logged_faults.pop()


def test_event_receives_the_exception_of_an_operation_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with_topic()
    client = cluster.brokers[1].client
    submit = client.submit

    def refuse(operation: Operation[R], callback: Callable[[R | ZooKeeperError], None]) -> None:
        if isinstance(operation, GetData):
            raise ValueError("cannot be encoded")
        submit(operation, callback)

    def event(context: ControllerContext, batch: RequestBatch) -> Script[str]:
        try:
            yield GetData("/")
        except ValueError as error:
            return str(error)
        return "sent"

    monkeypatch.setattr(client, "submit", refuse)
    results = _enter(cluster.brokers[1], event)
    cluster.turn()

    assert results == ["cannot be encoded"]


def test_event_that_fails_lets_everything_be_read_again_after_a_pause(logged_faults: list[str]) -> None:
    cluster = cluster_with_topic()

    def fail(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        context.topics.clear()
        raise RuntimeError("a defect")
        yield PAUSE

    failed, waiting = _enter(cluster.brokers[1], fail), _enter(cluster.brokers[1], _writing(3))
    cluster.turn()
    assert _codes(failed) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert waiting == []

    cluster.pass_time(PAUSE_MS)

    assert waiting == ["written"]
    assert [*cluster.brokers[1].context.topics] == ["t"]
    assert cluster.epoch == b"1"
    assert "a defect" in logged_faults.pop()


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.REQUEST_LOST, Fault.REQUEST_LATE])
def test_event_with_a_lost_connection_lets_everything_be_read_again(fault: Fault) -> None:
    cluster = cluster_with_topic()
    controller = cluster.brokers[1]
    _lose_first(controller, fault, Multi)

    failed, waiting = _enter(controller, _writing(3)), _enter(controller, _returning("x"))
    cluster.turn()

    assert _codes(failed) == [ErrorCode.REQUEST_TIMED_OUT]
    assert waiting == ["x"]
    assert controller.context.states[NAME].state == cluster.state(NAME)
    assert cluster.epoch == b"1"
    assert len(controller.peers.channels[2]) == 1, "the correlation ids of the connection ascend"
    assert controller.changes == [True]


def test_connection_that_is_back_sets_all_watches_again() -> None:
    cluster = cluster_with_topic()

    cluster.brokers[1].lose_connection()
    cluster.brokers[2].expire()
    cluster.create_topic("u", {0: (1,)})

    assert cluster.state(NAME).leader == 3
    assert cluster.state(TopicPartition("u", 0)).leader == 1


def test_connection_that_is_back_before_everything_was_read_sets_all_watches_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every pause is a turn of the loop, so that the connection can break and be back while no operation is in progress.
    monkeypatch.setattr("wirekafka.controller.scripts.SLICE_SECONDS", 0.0)
    cluster = cluster_with_topic()
    for number in range(20):
        cluster.create_topic(f"many-{number}", {0: (1,)})
    controller, context = cluster.brokers[1], cluster.brokers[1].context

    controller.client.lose_connection()
    while controller.context is context:
        cluster.stage.steps.popleft()()
    controller.lose_connection()
    cluster.brokers[2].expire()

    assert cluster.state(NAME).leader == 3


def test_connection_that_is_back_remembers_who_shuts_down() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[1].context.shutting_down.add(3)

    cluster.brokers[1].lose_connection()

    assert cluster.brokers[1].context.shutting_down == {3}


def test_connection_that_is_back_remembers_failed_directories() -> None:
    cluster = cluster_with_topic()
    cluster.brokers[1].context.offline_replicas[3] = {NAME}
    cluster.brokers[1].newest(3).answer = None

    cluster.brokers[1].lose_connection()

    assert cluster.brokers[1].context.offline_replicas == {3: {NAME}}
    assert cluster.brokers[1].metadata_told(2)[NAME].offline_replicas == [3]


# Deposed controllers


def test_deposed_controller_that_does_not_know_it_changes_nothing() -> None:
    cluster = cluster_with_topic()
    former, newer = cluster.brokers[1], cluster.brokers[2]
    former.client.cut(requests=False)
    assert former.client.session_id is not None
    cluster.stage.server.expire_session(former.client.session_id)
    cluster.turn()
    assert newer.controller.is_active
    before = cluster.state(NAME)

    results = _enter(former, _writing(1))
    cluster.turn()
    assert former.controller.is_active, "no message of ZooKeeper arrives"
    former.client.heal()
    cluster.turn()

    assert cluster.state(NAME) == before
    assert _codes(results) == [ErrorCode.REQUEST_TIMED_OUT]
    assert not former.controller.is_active


def test_controller_that_learns_of_its_end_by_a_write_resigns() -> None:
    cluster = cluster_with_topic()
    controller = cluster.brokers[1]

    def depose_and_write(context: ControllerContext, batch: RequestBatch) -> Script[None]:
        yield SetData(paths.CONTROLLER_EPOCH, b"9")
        batch.update_metadata([3], [NAME])
        yield from multi(context, [Create("/x", b"")])

    sent = len(controller.told(3))
    results, waiting = _enter(controller, depose_and_write), _enter(controller, _returning("x"))
    cluster.turn()

    assert _codes(results) == _codes(waiting) == [ErrorCode.NOT_CONTROLLER]
    assert cluster.stage.data("/x") is None
    assert controller.changes[:2] == [True, False]
    assert [each.controller_epoch for each in controller.told(3)[sent:] if each.controller_epoch == 1] == []


def test_event_in_progress_when_the_session_ends_sends_nothing() -> None:
    cluster = cluster_with_topic()
    controller = cluster.brokers[1]
    connections = [controller.newest(broker_id) for broker_id in (1, 2, 3)]

    def expire_and_tell(context: ControllerContext, batch: RequestBatch) -> Script[str]:
        controller.controller.resign("the test ends its term")
        batch.update_metadata(context.live, [NAME])
        yield PAUSE
        return "told"

    seen = [len(connection.seen) for connection in connections]
    results = _enter(controller, expire_and_tell)
    cluster.turn()

    assert _codes(results) == [ErrorCode.NOT_CONTROLLER]
    assert [len(connection.seen) for connection in connections] == seen


def test_session_that_expires_drops_everything_until_the_next_registration() -> None:
    cluster = Cluster(1)
    controller = cluster.start()
    assert controller.client.session_id is not None
    cluster.stage.server.expire_session(controller.client.session_id)
    waiting = _enter(controller, _writing(1))

    cluster.turn()

    assert _codes(waiting) == [ErrorCode.NOT_CONTROLLER]
    assert cluster.controller_id is None
    assert not controller.controller.is_active
    controller.register()
    assert controller.context.epoch == 2


def test_close_ends_the_competition() -> None:
    cluster = Cluster(1)
    controller = cluster.start()
    waiting = _enter(controller, _returning("x"))

    controller.controller.close()
    cluster.stage.do(Delete(paths.CONTROLLER))

    assert _codes(waiting) == [ErrorCode.NOT_CONTROLLER]
    assert cluster.controller_id is None
    assert controller.newest(1).is_closed


# Timers and settings


def test_balance_moves_leaders_back_after_a_while() -> None:
    def settings(broker_id: int) -> ControllerSettings:
        return ControllerSettings(broker_id, auto_rebalance=AutoRebalance(interval_s=60, imbalance_percent=0))

    cluster = Cluster(1, 2, settings=settings)
    controller = cluster.start()
    cluster.create_topic("t", {0: (2, 1)})
    for interval_ms in (5_000, 60_000):
        _enter(controller, _writing(1))
        cluster.turn()
        assert cluster.state(NAME).leader == 1

        cluster.pass_time(interval_ms)

        assert cluster.state(NAME).leader == 2


def test_unclean_election_that_is_allowed_at_last_elects() -> None:
    allowed: set[str] = set()
    cluster = Cluster(
        1, 2, settings=lambda broker_id: ControllerSettings(broker_id, unclean_leader_election=lambda: bool(allowed))
    )
    controller = cluster.start()
    cluster.create_topic("t", {0: (2, 1)})
    _enter(controller, partial(_shrink, isr=(2,)))
    cluster.brokers[2].expire()
    assert cluster.state(NAME).leader == -1

    allowed.add("t")
    controller.controller.note_unclean_election("t")
    cluster.turn()

    assert cluster.state(NAME).leader == 1


def _shrink(context: ControllerContext, batch: RequestBatch, isr: tuple[int, ...]) -> Script[None]:
    yield from write_states(context, {NAME: replace(context.states[NAME].state, isr=isr)})
