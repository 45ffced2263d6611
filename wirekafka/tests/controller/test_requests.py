"""The requests of the controller to the brokers."""

from __future__ import annotations

from wirekafka.controller.settings import ControllerSettings
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR
from wirekafka.wire.messages.stop_replica import STOP_REPLICA
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA

NAME = TopicPartition("t", 0)


def _stage(release: str = "3.9") -> Stage:
    stage = Stage(ControllerSettings(broker_id=1, release=release))
    for broker_id in (1, 2, 3):
        stage.add_broker(broker_id, rack=f"rack{broker_id}")
    stage.add_topic("t", {0: (1, 2)})
    stage.add_state(NAME, 1, (1, 2), leader_epoch=7)
    return stage


def test_send_after_all_kinds_sends_them_in_the_order_of_kafka() -> None:
    stage = _stage()
    batch = stage.batch()
    batch.stop_replica([2], NAME, deletes=False)
    batch.leader_and_isr([2], NAME)

    stage.run(batch.send())

    assert [(each.kind, each.version) for each in stage.sent if each.broker_id == 2] == [
        (LEADER_AND_ISR, 7),
        (UPDATE_METADATA, 8),
        (STOP_REPLICA, 4),
    ]
    assert [each.kind for each in stage.sent if each.broker_id == 3] == [UPDATE_METADATA]
    assert {each.request.broker_epoch for each in stage.sent if each.broker_id == 2} == {stage.context.live[2].epoch}
    assert {(each.request.controller_id, each.request.controller_epoch) for each in stage.sent} == {(1, EPOCH)}


def test_send_again_sends_nothing() -> None:
    stage = _stage()
    batch = stage.batch()
    batch.leader_and_isr([2], NAME)
    stage.run(batch.send())
    stage.sent.clear()

    stage.run(batch.send())

    assert stage.sent == []


def test_send_of_an_old_release_has_its_versions() -> None:
    stage = _stage("2.8")
    batch = stage.batch()
    batch.leader_and_isr([2], NAME)
    batch.stop_replica([2], NAME, deletes=True)

    stage.run(batch.send())

    assert {(each.kind.name, each.version) for each in stage.sent} == {
        ("LeaderAndIsr", 5),
        ("UpdateMetadata", 7),
        ("StopReplica", 3),
    }


def test_leader_and_isr_has_the_state_and_the_address_of_the_leader() -> None:
    stage = _stage()
    batch = stage.batch()
    batch.leader_and_isr([1, 2], NAME, is_new=True)

    stage.run(batch.send())

    state = stage.leader_and_isr(2)[NAME]
    assert (state.leader, state.leader_epoch, state.partition_epoch, state.is_new) == (1, 7, 0, True)
    request = stage.sent[0].request
    assert [(each.broker_id, each.host_name, each.port) for each in request.live_leaders] == [(1, "host1", 9092)]
    assert request.topic_states[0].topic_id == stage.context.topics["t"].topic_id


def test_leader_and_isr_added_again_stays_new_for_the_broker() -> None:
    stage = _stage()
    batch = stage.batch()
    batch.leader_and_isr([2], NAME, is_new=True)
    batch.leader_and_isr([1, 2], NAME)

    stage.run(batch.send())

    assert stage.leader_and_isr(2)[NAME].is_new
    assert not stage.leader_and_isr(1)[NAME].is_new


def test_requests_to_a_broker_that_is_not_live_are_dropped() -> None:
    stage = _stage()
    stage.remove_broker(2)
    batch = stage.batch()
    batch.leader_and_isr([2], NAME)
    batch.stop_replica([2], NAME, deletes=True)
    batch.update_metadata([2])

    stage.run(batch.send())

    assert {each.broker_id for each in stage.sent} == {1, 3}


def test_update_metadata_has_the_live_brokers_and_the_offline_replicas() -> None:
    stage = _stage()
    stage.context.offline_replicas[2] = {NAME}
    batch = stage.batch()
    batch.update_metadata([3], [NAME, TopicPartition("t", 1)])

    stage.run(batch.send())

    assert stage.told_brokers(3) == [[1, 2, 3]]
    assert {name: state.offline_replicas for name, state in stage.metadata(3).items()} == {NAME: [2]}
    broker = stage.sent[0].request.live_brokers[1]
    assert (broker.rack, [(each.host, each.port, each.listener) for each in broker.endpoints]) == (
        "rack2",
        [("host2", 9092, "PLAINTEXT")],
    )


def test_update_metadata_of_a_topic_that_is_deleted_says_so() -> None:
    stage = _stage()
    stage.context.deleting["t"] = None
    batch = stage.batch()
    batch.update_metadata([3], [NAME])

    stage.run(batch.send())

    assert stage.metadata(3)[NAME].leader == -2


def test_stop_replica_with_and_without_deletion_deletes() -> None:
    stage = _stage()
    batch = stage.batch()
    batch.stop_replica([2], NAME, deletes=True)
    batch.stop_replica([2], NAME, deletes=False)

    stage.run(batch.send())

    stop = stage.stop_replica(2)[NAME]
    assert (stop.delete_partition, stop.leader_epoch) == (True, 7)


def test_stop_replica_of_a_topic_that_is_deleted_checks_no_leader_epoch() -> None:
    stage = _stage()
    stage.context.deleting["t"] = None
    batch = stage.batch()
    batch.stop_replica([2], NAME, deletes=True)

    stage.run(batch.send())

    assert stage.stop_replica(2)[NAME].leader_epoch == -2
