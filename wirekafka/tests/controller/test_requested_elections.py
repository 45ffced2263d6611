"""Elections that clients and old tools ask for."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from wirekafka.controller.elections import Election
from wirekafka.controller.requested_elections import MOST_LOGGED, elect_leaders, look_at_elections
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.requests import write_preferred_replica_election
from wirekafka.zookeeper.layout.topics import NO_LEADER, RECOVERING
from wirekafka.zookeeper.session import Create, WatchEvent

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


def _stage() -> Stage:
    """Returns a cluster in which brokers 2 and 3 lead partitions 0 and 1, and partition 2 has its preferred leader."""
    stage = Stage()
    for broker_id in (1, 2, 3):
        stage.add_broker(broker_id)
    stage.add_topic("t", {0: (1, 2), 1: (1, 3), 2: (2, 1)})
    stage.add_state(T0, 2, (2, 1))
    stage.add_state(T1, 3, (3,))
    stage.add_state(T2, 2, (2, 1))
    return stage


def _elect(
    stage: Stage, names: Iterable[TopicPartition] | None, election: Election = Election.PREFERRED
) -> dict[TopicPartition, ErrorCode | None]:
    outcomes = stage.event(lambda context, batch: elect_leaders(context, batch, names, election))
    return {name: None if error is None else error.code for name, error in outcomes.items()}


def test_preferred_election_of_all_partitions() -> None:
    stage = _stage()
    assert _elect(stage, None) == {T0: None, T1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, T2: ErrorCode.ELECTION_NOT_NEEDED}
    assert stage.state(T0).leader == 1 and stage.leader_and_isr(2)[T0].leader == 1


@pytest.mark.parametrize("election", [Election.PREFERRED, Election.UNCLEAN])
def test_election_of_a_partition_that_does_not_exist_is_refused(election: Election) -> None:
    stage = _stage()
    unknown = [TopicPartition("t", 9), TopicPartition("u", 0)]
    assert _elect(stage, unknown, election) == dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_election_of_a_topic_that_is_being_deleted_is_refused() -> None:
    stage = _stage()
    stage.context.deleting["t"] = None
    assert _elect(stage, [T0]) == {T0: ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert stage.state(T0).leader == 2


def test_unclean_election_gives_a_leader_to_a_partition_without_one() -> None:
    stage = _stage()
    stage.remove_broker(3)
    assert _elect(stage, [T1, T2], Election.UNCLEAN) == {T1: None, T2: ErrorCode.ELECTION_NOT_NEEDED}
    assert (stage.state(T1).leader, stage.state(T1).isr) == (1, (1,))
    assert stage.state(T1).leader_recovery_state == RECOVERING


def test_unclean_election_without_an_online_replica_fails() -> None:
    stage = _stage()
    stage.remove_broker(1)
    stage.remove_broker(3)
    assert _elect(stage, [T1], Election.UNCLEAN) == {T1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_unclean_election_of_a_leader_that_left_is_needed() -> None:
    stage = _stage()
    stage.context.states[T2].state = stage.context.states[T2].state.__class__(NO_LEADER, 3, (2,), 5)
    stage.remove_broker(2)
    assert _elect(stage, [T2], Election.UNCLEAN) == {T2: None}


def _ask(stage: Stage, data: bytes) -> None:
    stage.do(Create(paths.PREFERRED_REPLICA_ELECTION, data))
    stage.event(look_at_elections)


def test_request_in_zookeeper_is_carried_out_and_deleted() -> None:
    stage = _stage()
    _ask(stage, write_preferred_replica_election([T0, T1, TopicPartition("unknown", 0)]))
    assert stage.state(T0).leader == 1
    assert stage.data(paths.PREFERRED_REPLICA_ELECTION) is None


def test_request_in_zookeeper_that_is_malformed_is_deleted() -> None:
    stage = _stage()
    _ask(stage, b"?")
    assert stage.data(paths.PREFERRED_REPLICA_ELECTION) is None and stage.sent == []


def test_request_in_zookeeper_stays_if_the_controller_is_deposed() -> None:
    stage = _stage()
    stage.depose()
    with pytest.raises(DeposedError):
        _ask(stage, write_preferred_replica_election([T0]))
    assert stage.data(paths.PREFERRED_REPLICA_ELECTION) is not None and stage.state(T0).leader == 2


def test_look_at_elections_leaves_a_watch() -> None:
    stage = _stage()
    stage.event(look_at_elections)
    events: list[WatchEvent] = []
    stage.client.add_watch_listener(events.append)
    stage.do(Create(paths.PREFERRED_REPLICA_ELECTION, b""))
    assert [event.path for event in events] == [paths.PREFERRED_REPLICA_ELECTION]


def test_request_in_zookeeper_with_many_failures_names_the_first_of_them() -> None:
    stage = _stage()
    with capture_logs() as lines:
        _ask(stage, write_preferred_replica_election([TopicPartition("unknown", index) for index in range(50)]))
    [line] = [line for line in lines if "failures" in line]
    assert line["failures"] == 50
    assert len(line["first_failures"]) == MOST_LOGGED
