"""Topics that appear, grow and vanish in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest
from structlog.testing import capture_logs

from wirekafka.controller.context import Topic
from wirekafka.controller.scripts import SLICE_SECONDS, run_script
from wirekafka.controller.topics import look_at_partitions, look_at_topics, read_topics, write_assignments
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import EPOCH, Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import PartitionState, ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    Exists,
    GetData,
    Operation,
    SetData,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

ID = bytes(range(16))


def _stage(*broker_ids: int) -> Stage:
    stage = Stage()
    for broker_id in broker_ids:
        stage.add_broker(broker_id)
    return stage


def _assignments(replicas: Mapping[int, tuple[int, ...]]) -> dict[int, ReplicaAssignment]:
    return {index: ReplicaAssignment(each) for index, each in replicas.items()}


def _create(stage: Stage, name: str, replicas: Mapping[int, tuple[int, ...]], topic_id: bytes | None = ID) -> None:
    stage.do(Create(paths.topic(name), TopicAssignment(topic_id, _assignments(replicas)).write()))


def _stored(stage: Stage, name: str) -> TopicAssignment:
    data = stage.data(paths.topic(name))
    assert data is not None
    return TopicAssignment.read(name, data.data)


def test_new_topic_gets_leaders_and_its_brokers_are_told() -> None:
    stage = _stage(1, 2, 3)
    _create(stage, "t", {0: (2, 1), 1: (3, 1)})

    stage.event(look_at_topics)

    assert stage.context.topics["t"].topic_id == ID
    assert stage.context.topic_names[ID] == "t"
    assert stage.state(TopicPartition("t", 0)) == PartitionState(2, 0, (2, 1), EPOCH)
    assert stage.leader_and_isr(1).keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert stage.leader_and_isr(2)[TopicPartition("t", 0)].is_new
    assert stage.metadata(3)[TopicPartition("t", 0)].leader == 2


def test_new_topic_without_an_online_replica_waits_for_one() -> None:
    stage = _stage(1)
    _create(stage, "t", {0: (7, 8), 1: (1, 7)})

    stage.event(look_at_topics)

    assert [*stage.context.states] == [TopicPartition("t", 1)]
    assert stage.context.topics["t"].assignments[0] == ReplicaAssignment((7, 8))


def test_topic_that_is_known_is_not_read_again() -> None:
    stage = _stage(1)
    stage.add_topic("t", {0: (1,)})
    stage.do(SetData(paths.topic("t"), TopicAssignment(ID, _assignments({0: (1, 9)})).write()))

    stage.event(look_at_topics)

    assert stage.context.replicas(TopicPartition("t", 0)) == (1,)


def test_topic_that_vanished_is_forgotten() -> None:
    stage = _stage(1)
    stage.add_topic("t", {0: (1,)})
    stage.do(Delete(paths.topic("t")))

    stage.event(look_at_topics)

    assert stage.context.topics == {} and stage.context.topic_names == {}


def test_topic_with_malformed_content_is_ignored_and_named_in_the_log() -> None:
    stage = _stage(1)
    stage.do(Create(paths.topic("bad"), b"{"))
    _create(stage, "t", {0: (1,)})

    with capture_logs() as lines:
        stage.event(look_at_topics)

    assert [*stage.context.topics] == ["t"]
    assert [line["topic"] for line in lines if line["log_level"] == "error"] == ["bad"]


def test_topic_of_a_release_without_ids_gets_one() -> None:
    stage = _stage(1)
    stage.do(Create(paths.topic("t"), b'{"version":1,"partitions":{"0":[1]},"of another release":5}'))

    stage.event(look_at_topics)

    stored = _stored(stage, "t")
    assert stored.topic_id is not None and stage.context.topic_names == {stored.topic_id: "t"}
    assert stored.unknown == {"of another release": 5}


def test_many_topics_get_ids_in_several_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the slices goes on by a millisecond with each id."""
    stage = _stage(1)
    names = [f"t{number}" for number in range(50)]
    for name in names:
        stage.do(Create(paths.topic(name), b'{"version":1,"partitions":{"0":[1]}}'))
    given: list[bytes] = []

    def give() -> bytes:
        given.append(len(given).to_bytes(16, "big"))
        return given[-1]

    monkeypatch.setattr("wirekafka.controller.topics.new_topic_id", give)
    results: list[object] = []
    script = read_topics(stage.context, names)
    run_script(stage.client, script, results.append, stage.steps.append, lambda: len(given) / 1000)
    most_at_once = 0
    while stage.steps:
        before = len(given)
        stage.steps.popleft()()
        most_at_once = max(most_at_once, len(given) - before)

    [topics] = results
    assert [topic.topic_id for topic in cast(list[Topic], topics)] == given
    assert len(given) == len(names)
    assert most_at_once <= SLICE_SECONDS * 1000 + 1


def test_look_at_topics_leaves_watches_on_the_list_and_on_each_topic() -> None:
    stage = _stage(1)
    _create(stage, "t", {0: (1,)})
    stage.event(look_at_topics)
    events: list[WatchEvent] = []
    stage.client.add_watch_listener(events.append)
    other = stage.connect()
    stage.turn()

    stage.do(SetData(paths.topic("t"), TopicAssignment(ID, {}).write()), other)
    stage.do(Create(paths.topic("u"), b""), other)

    assert [event.path for event in events] == [paths.topic("t"), paths.TOPICS]


def test_look_at_topics_by_a_deposed_controller_writes_nothing() -> None:
    stage = _stage(1)
    _create(stage, "t", {0: (1,)})
    stage.depose()

    with pytest.raises(DeposedError):
        stage.event(look_at_topics)

    assert stage.do(Exists(paths.topic_partitions("t"))) is None
    assert stage.sent == []


def test_look_at_topics_without_a_connection_raises() -> None:
    stage = _stage(1)
    _create(stage, "t", {0: (1,)})

    def lose(operation: Operation[object]) -> Fault | None:
        return Fault.REPLY_LOST if getattr(operation, "path", None) == paths.topic("t") else None

    stage.client.choose_fault = lose
    with pytest.raises(ZooKeeperError) as raised:
        stage.event(look_at_topics)
    assert raised.value.code is ZooKeeperErrorCode.CONNECTION_LOSS


# Growth


def test_topic_that_grows_gets_leaders_for_its_new_partitions() -> None:
    stage = _stage(1, 2)
    stage.add_topic("t", {0: (1, 2)}, topic_id=ID)
    stage.add_state(TopicPartition("t", 0), 1, (1, 2))
    stage.do(SetData(paths.topic("t"), TopicAssignment(ID, _assignments({0: (1, 2), 1: (2, 1)})).write()))

    stage.event(lambda context, batch: look_at_partitions(context, batch, "t"))

    assert stage.state(TopicPartition("t", 1)) == PartitionState(2, 0, (2, 1), EPOCH)
    assert stage.leader_and_isr(1).keys() == {TopicPartition("t", 1)}
    assert stage.context.topics["t"].version == 1


def test_topic_that_is_being_deleted_gets_no_new_partitions_and_its_znode_is_restored() -> None:
    stage = _stage(1)
    stage.add_topic("t", {0: (1,)}, topic_id=ID)
    stage.context.deleting["t"] = None
    stage.do(SetData(paths.topic("t"), TopicAssignment(ID, _assignments({0: (1,), 1: (1,)})).write()))

    stage.event(lambda context, batch: look_at_partitions(context, batch, "t"))

    assert _stored(stage, "t").partitions == _assignments({0: (1,)})
    assert [*stage.context.topics["t"].assignments] == [0]
    assert stage.sent == []


def test_topic_that_is_unknown_or_vanishes_does_not_grow() -> None:
    stage = _stage(1)
    stage.event(lambda context, batch: look_at_partitions(context, batch, "unknown"))
    stage.add_topic("t", {0: (1,)})
    stage.do(Delete(paths.topic("t")))
    stage.event(lambda context, batch: look_at_partitions(context, batch, "t"))
    assert stage.sent == []


# Reading and writing assignments


def test_read_topics_returns_those_that_exist() -> None:
    stage = _stage(1)
    _create(stage, "a", {0: (1,)}, ID)
    _create(stage, "b", {0: (1,)}, bytes(16))
    topics = stage.run(read_topics(stage.context, ["a", "gone", "b"]))
    assert [(topic.name, topic.topic_id, topic.version) for topic in topics] == [("a", ID, 0), ("b", bytes(16), 0)]


def test_write_assignments_keeps_what_others_have_written() -> None:
    stage = _stage(1)
    stage.add_topic("t", {0: (1,), 1: (2,)}, topic_id=ID)
    content = TopicAssignment(ID, _assignments({0: (1,), 1: (2,), 2: (3,)}), {"of another release": 5})
    stage.do(SetData(paths.topic("t"), content.write()))
    moved = ReplicaAssignment((4, 2), (4,), (2,))

    assert stage.run(write_assignments(stage.context, {TopicPartition("t", 1): moved})) == {}

    stored = _stored(stage, "t")
    assert stored.partitions == {**_assignments({0: (1,), 2: (3,)}), 1: moved}
    assert stored.unknown == {"of another release": 5}
    assert stage.context.topics["t"].assignments == {0: ReplicaAssignment((1,)), 1: moved}
    assert stage.context.topics["t"].version == 2


def test_write_assignments_of_a_topic_that_somebody_writes_at_the_same_time_reads_it_again() -> None:
    stage = _stage(1)
    stage.add_topic("t", {0: (1,)}, topic_id=ID)
    other = stage.connect()
    stage.turn()
    grown = SetData(paths.topic("t"), TopicAssignment(ID, _assignments({0: (1,), 1: (1,)})).write())
    reads: list[GetData] = []

    def write_between(operation: Operation[object]) -> None:
        if isinstance(operation, GetData):
            reads.append(operation)
            if len(reads) == 1:
                other.submit(grown, lambda result: None)

    stage.client.choose_fault = write_between
    assert stage.run(write_assignments(stage.context, {TopicPartition("t", 0): ReplicaAssignment((2,))})) == {}

    assert len(reads) == 2
    stage.client.choose_fault = lambda operation: None
    assert _stored(stage, "t").partitions == _assignments({0: (2,), 1: (1,)})


def test_write_assignments_of_a_topic_that_vanished_says_so() -> None:
    stage = _stage(1)
    stage.add_topic("t", {0: (1,)})
    stage.do(Delete(paths.topic("t")))
    failures = stage.run(write_assignments(stage.context, {TopicPartition("t", 0): ReplicaAssignment((2,))}))
    assert {name: error.code for name, error in failures.items()} == {"t": ErrorCode.UNKNOWN_SERVER_ERROR}


def test_write_assignments_that_zookeeper_would_not_take_writes_nothing() -> None:
    stage = _stage(1)
    stage.add_topic("t", dict.fromkeys(range(50), (1,)), topic_id=ID)
    many = {TopicPartition("t", index): ReplicaAssignment(tuple(range(10**5, 10**5 + 3_000))) for index in range(50)}
    failures = stage.run(write_assignments(stage.context, many))
    assert {name: error.code for name, error in failures.items()} == {"t": ErrorCode.POLICY_VIOLATION}
    assert _stored(stage, "t").partitions == _assignments(dict.fromkeys(range(50), (1,)))
