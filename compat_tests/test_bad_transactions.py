"""Invalid transactions by raw requests: every request gets Kafka's error code.

Each case is a function that sends its requests and returns their error codes. The table at the end has the answers of both
brokers, for the protocol before transactions v2 and for transactions v2 (KIP-890).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import OLD, V2, RawProducer, ask, name_of
from compat_tests.harness.waiting import wait_until


@dataclass
class Stage:
    """The topic of a case, with two partitions, and its producers on one connection."""

    connection: RawConnection
    topic: str
    protocol: str

    def producer(self, suffix: str = "") -> RawProducer:
        """Makes a producer that is not initialised."""
        return RawProducer(self.connection, self.topic + suffix, self.protocol)

    def ready(self, suffix: str = "") -> RawProducer:
        """Makes a producer that is initialised."""
        producer = self.producer(suffix)
        assert producer.init() == "NONE"
        return producer

    def open(self, suffix: str = "") -> RawProducer:
        """Makes a producer with a record in an open transaction."""
        producer = self.ready(suffix)
        if self.protocol == OLD:
            assert producer.add(self.topic) == "NONE"
        # Apache Kafka names the leader of a new partition a moment before it leads.
        wait_until(lambda: producer.produce(self.topic) == "NONE", timeout_s=60, what="a record is taken")
        return producer

    def await_coordinators(self) -> None:
        """Waits until there are coordinators; the first requests create the internal topics."""

        def are_there() -> bool:
            found = [ask(self.connection, "find_coordinator", 3, key_type=kind, key=self.topic) for kind in (0, 1)]
            return [name_of(each.error_code) for each in found] == ["NONE", "NONE"]

        wait_until(are_there, timeout_s=60, what="the coordinators are known")


@pytest.fixture
def stage(broker: Broker, topic: str, protocol: str) -> Iterator[Stage]:
    create_topic(broker.bootstrap, topic, 2)
    with RawConnection(broker.address) as connection:
        stage = Stage(connection, topic, protocol)
        stage.await_coordinators()
        yield stage


def init_with_a_timeout_of_zero(stage: Stage) -> list[str]:
    return [stage.producer().init(0)]


def init_with_too_long_a_timeout(stage: Stage) -> list[str]:
    return [stage.producer().init(900_000), stage.producer().init(900_001)]


def init_with_an_empty_transactional_id(stage: Stage) -> list[str]:
    return [stage.producer().init(transactional_id="")]


def init_with_an_id_and_no_epoch(stage: Stage) -> list[str]:
    return [stage.producer().init(producer_id=5, producer_epoch=-1), stage.producer().init(producer_id=-1, producer_epoch=5)]


def init_with_an_id_that_nobody_gave(stage: Stage) -> list[str]:
    return [stage.producer().init(producer_id=987_654, producer_epoch=3)]


def init_with_the_id_of_another(stage: Stage) -> list[str]:
    mine, other = stage.ready(), stage.ready("-other")
    return [mine.init(producer_id=other.producer_id, producer_epoch=other.epoch)]


def init_with_the_epoch_it_has(stage: Stage) -> list[str]:
    producer = stage.ready()
    before = (producer.producer_id, producer.epoch)
    code = producer.init(keeps_id=True)
    assert (producer.producer_id, producer.epoch) == (before[0], before[1] + 1)
    return [code]


def init_with_an_epoch_that_was(stage: Stage) -> list[str]:
    first, _ = stage.ready(), stage.ready()
    codes = [first.init(keeps_id=True)]
    first.versions["init_producer_id"] = 3
    return [*codes, first.init(keeps_id=True)]


def init_with_an_epoch_to_come(stage: Stage) -> list[str]:
    producer = stage.ready()
    return [producer.init(producer_id=producer.producer_id, producer_epoch=producer.epoch + 5)]


def init_during_a_transaction(stage: Stage) -> list[str]:
    producer = stage.open()
    return [producer.init(keeps_id=True), producer.commit()]


def init_with_an_epoch_that_was_during_a_transaction(stage: Stage) -> list[str]:
    """A fenced producer sends InitProducerId during the transaction of its successor: the transaction ends, the request fails."""
    old, new = stage.ready(), stage.open()
    return [old.init(keeps_id=True), new.commit(), old.init(keeps_id=True)]


def end_of_nothing(stage: Stage) -> list[str]:
    return [stage.ready("-a").commit(), stage.ready("-b").abort()]


def end_of_an_id_that_nobody_has(stage: Stage) -> list[str]:
    producer = stage.producer()
    producer.producer_id, producer.epoch = 987_654, 0
    return [producer.commit(), producer.abort()]


def end_with_wrong_epochs(stage: Stage) -> list[str]:
    producer = stage.open()
    wrong = [producer.commit(producer_epoch=producer.epoch + n) for n in (3, -1)]
    return [*wrong, producer.commit(producer_id=producer.producer_id + 1000), producer.commit()]


def end_with_wrong_epochs_in_the_oldest_version(stage: Stage) -> list[str]:
    producer = stage.open()
    stage.ready()
    producer.versions["end_txn"] = 1
    return [producer.commit()]


def end_twice(stage: Stage) -> list[str]:
    committed, aborted = stage.open("-a"), stage.open("-b")
    codes = []
    for producer, is_commit in ((committed, True), (aborted, False)):
        before = producer.epoch
        codes += [producer.end(is_commit=is_commit), producer.end(is_commit=is_commit, producer_epoch=before)]
        codes += [producer.end(is_commit=not is_commit, producer_epoch=before)]
    return codes


def end_again_with_the_epoch_that_the_end_gave(stage: Stage) -> list[str]:
    producer = stage.open()
    return [producer.commit(), producer.commit(), producer.abort(), producer.commit()]


def add_of_partitions_that_are_not(stage: Stage) -> list[str]:
    producer = stage.ready()
    return [producer.add(stage.topic, [0, 7]), producer.add("no-such-topic"), producer.add(stage.topic, [0, 1])]


def add_of_no_partition(stage: Stage) -> list[str]:
    """The request opens a transaction even though it adds no partition."""
    producer = stage.ready()
    own = {"transactional_id": stage.topic, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    ask(stage.connection, "add_partitions_to_txn", 3, topics=[], **own)
    state = ask(stage.connection, "describe_transactions", 0, transactional_ids=[stage.topic]).transaction_states[0]
    return [state.transaction_state, producer.commit()]


def add_with_wrong_epochs(stage: Stage) -> list[str]:
    producer = stage.ready()
    stage.ready()
    codes = [producer.add(stage.topic, producer_epoch=producer.epoch + n) for n in (-1, 0, 2)]
    codes.append(producer.add(stage.topic, producer_id=producer.producer_id + 1000))
    codes.append(producer.add(stage.topic, transactional_id="nobody's"))
    return codes


def add_offsets_with_wrong_epochs(stage: Stage) -> list[str]:
    producer = stage.ready()
    stage.ready()
    codes = [producer.add_offsets(stage.topic, producer_epoch=producer.epoch + n) for n in (-1, 0, 2)]
    codes.append(producer.add_offsets(stage.topic, producer_id=producer.producer_id + 1000))
    codes.append(producer.add_offsets(stage.topic, transactional_id="nobody's"))
    codes.append(producer.add_offsets(""))
    return codes


def produce_without_adding(stage: Stage) -> list[str]:
    producer = stage.ready()
    codes = [producer.produce(stage.topic)]
    producer.versions["produce"] = min(producer.versions["produce"], 10)
    return [*codes, producer.produce(stage.topic, partition=1)]


def produce_after_the_end(stage: Stage) -> list[str]:
    producer = stage.open()
    return [producer.commit(), producer.add(stage.topic, [1]), producer.produce(stage.topic)]


def produce_with_wrong_epochs(stage: Stage) -> list[str]:
    producer = stage.open()
    return [producer.produce(stage.topic, producer_epoch=producer.epoch + n) for n in (-1, 5)]


def produce_with_an_id_that_nobody_has(stage: Stage) -> list[str]:
    producer = stage.producer()
    producer.producer_id, producer.epoch = 987_654, 0
    return [producer.produce(stage.topic)]


def produce_with_the_id_of_another(stage: Stage) -> list[str]:
    mine, other = stage.open(), stage.open("-other")
    return [mine.produce(stage.topic, producer_id=other.producer_id, producer_epoch=other.epoch, base_sequence=1, partition=1)]


def produce_without_the_transactional_id(stage: Stage) -> list[str]:
    producer = stage.open()
    return [producer.produce(stage.topic, transactional_id=None)]


def produce_of_a_batch_that_is_not_transactional(stage: Stage) -> list[str]:
    producer = stage.open()
    codes = [producer.produce(stage.topic, is_transactional=False)]
    codes.append(producer.produce(stage.topic, is_transactional=False, transactional_id=None))
    return [*codes, producer.produce(stage.topic, is_transactional=False, partition=1)]


def produce_of_a_control_batch(stage: Stage) -> list[str]:
    return [stage.open().produce(stage.topic, is_control=True)]


def produce_out_of_sequence(stage: Stage) -> list[str]:
    producer = stage.open()
    return [producer.produce(stage.topic, base_sequence=7), producer.produce(stage.topic), producer.abort()]


def produce_that_begins_out_of_sequence(stage: Stage) -> list[str]:
    producer = stage.open()
    codes = [producer.commit()]
    if stage.protocol == OLD:
        codes.append(producer.add(stage.topic))
    return [*codes, producer.produce(stage.topic, base_sequence=5)]


def everything_after_a_second_producer_came(stage: Stage) -> list[str]:
    first = stage.open()
    second = stage.ready()
    codes = [first.produce(stage.topic), first.produce(stage.topic, partition=1, base_sequence=0)]
    codes += [first.add(stage.topic, [1]), first.add_offsets(stage.topic), first.commit_offsets(stage.topic, stage.topic, 1)]
    codes += [first.commit(), first.abort(), first.init(keeps_id=True)]
    if stage.protocol == OLD:
        assert second.add(stage.topic) == "NONE"
    return [*codes, second.produce(stage.topic), second.commit()]


def offsets_of_a_group_that_was_not_added(stage: Stage) -> list[str]:
    return [stage.open().commit_offsets(stage.topic, stage.topic, 1)]


def offsets_with_members_that_are_not(stage: Stage) -> list[str]:
    producer, group = stage.open(), stage.topic
    codes = [producer.add_offsets(group)]
    codes.append(producer.commit_offsets(group, stage.topic, 1, generation_id=3, member_id="nobody"))
    codes.append(producer.commit_offsets(group, stage.topic, 1, generation_id=3, member_id=""))
    codes.append(producer.commit_offsets(group, stage.topic, 1, generation_id=-1, member_id="nobody"))
    codes.append(producer.commit_offsets(group, stage.topic, 1, group_instance_id="nobody's", member_id="nobody"))
    return [*codes, producer.commit_offsets(group, stage.topic, 1)]


def joined(stage: Stage, instance: str | None = None, member_id: str = "") -> tuple[str, int]:
    """Makes a group of one member; returns the member's id and the generation."""
    values = {
        "group_id": stage.topic,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    answer = ask(stage.connection, "join_group", 5, **values)
    if name_of(answer.error_code) == "MEMBER_ID_REQUIRED":
        answer = ask(stage.connection, "join_group", 5, **{**values, "member_id": answer.member_id})
    assert name_of(answer.error_code) == "NONE"
    values = {"group_id": stage.topic, "generation_id": answer.generation_id, "member_id": answer.member_id}
    given = [{"member_id": answer.member_id, "assignment": b""}]
    synced = ask(stage.connection, "sync_group", 3, **values, group_instance_id=instance, assignments=given)
    assert name_of(synced.error_code) == "NONE"
    return answer.member_id, answer.generation_id


def offsets_of_a_generation_that_was(stage: Stage) -> list[str]:
    """KIP-447: a member of an old generation cannot commit offsets."""
    producer, group = stage.open(), stage.topic
    member, generation = joined(stage)
    codes = [producer.add_offsets(group)]
    codes.append(producer.commit_offsets(group, stage.topic, 1, generation_id=generation, member_id=member))
    _, after = joined(stage, member_id=member)
    assert after == generation + 1
    codes += [
        producer.commit_offsets(group, stage.topic, 1, generation_id=value, member_id=member)
        for value in (generation, after + 1, after)
    ]
    codes.append(producer.commit_offsets(group, stage.topic, 1, generation_id=after, member_id="nobody"))
    return [*codes, producer.commit_offsets(group, stage.topic, 1)]


def offsets_of_an_instance_that_was_replaced(stage: Stage) -> list[str]:
    producer, group = stage.open(), stage.topic
    first, generation = joined(stage, "instance")
    _, after = joined(stage, "instance")
    own: dict[str, Any] = {"generation_id": generation, "group_instance_id": "instance"}
    return [
        producer.add_offsets(group),
        producer.commit_offsets(group, stage.topic, 1, **{**own, "generation_id": after}, member_id=first),
        producer.commit_offsets(group, stage.topic, 1, **own, member_id=first),
    ]


def offsets_with_wrong_epochs(stage: Stage) -> list[str]:
    producer, group = stage.open(), stage.topic
    codes = [producer.add_offsets(group)]
    codes += [producer.commit_offsets(group, stage.topic, 1, producer_epoch=producer.epoch + n) for n in (-1, 5, 0, -1)]
    codes.append(producer.commit_offsets(group, stage.topic, 1, producer_id=producer.producer_id + 1000))
    codes.append(producer.commit_offsets(group, stage.topic, 1, transactional_id="nobody's"))
    return codes


def offsets_of_what_is_not_there(stage: Stage) -> list[str]:
    producer, group = stage.open(), stage.topic
    codes = [producer.add_offsets(group)]
    codes.append(producer.commit_offsets(group, "no-such-topic", 1))
    codes.append(producer.commit_offsets(group, stage.topic, 1, partition=7))
    codes.append(producer.commit_offsets(group, stage.topic, 1, metadata="x" * 4097))
    codes.append(producer.commit_offsets("", stage.topic, 1))
    return codes


def offsets_that_are_not_settled(stage: Stage) -> list[str]:
    """KIP-447: a request for stable offsets gets UNSTABLE_OFFSET_COMMIT until the transaction ends."""
    producer, group = stage.open(), stage.topic
    if stage.protocol == OLD:
        assert producer.add_offsets(group) == "NONE"
    codes = [producer.commit_offsets(group, stage.topic, 1)]

    def fetched(*, is_stable: bool) -> str:
        topics = [{"name": stage.topic, "partition_indexes": [0]}]
        answer = ask(stage.connection, "offset_fetch", 7, group_id=group, topics=topics, require_stable=is_stable)
        (place,) = answer.topics[0].partitions
        return f"{name_of(place.error_code)} {place.committed_offset}"

    codes += [fetched(is_stable=True), fetched(is_stable=False), producer.abort()]
    wait_until(lambda: fetched(is_stable=True) == "NONE -1", timeout_s=60, what="the transaction is aborted here too")
    return codes


def markers_with_wrong_epochs(stage: Stage) -> list[str]:
    stage.ready()
    producer = stage.open()

    def written(**values: object) -> str:
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "transaction_result": False,
            "topics": [{"name": stage.topic, "partition_indexes": [0]}],
            "coordinator_epoch": 5,
        }
        answer = ask(stage.connection, "write_txn_markers", 1, markers=[{**marker, **values}])
        return name_of(answer.markers[0].topics[0].partitions[0].error_code)

    def places(topic: str, partition: int) -> list[dict[str, object]]:
        return [{"name": topic, "partition_indexes": [partition]}]

    codes = [written(producer_epoch=producer.epoch - 1), written(topics=places("no-such-topic", 0))]
    codes += [written(topics=places(stage.topic, 7)), written(), written(coordinator_epoch=4)]
    return codes


def markers_of_nobody(stage: Stage) -> list[str]:
    places = [{"name": stage.topic, "partition_indexes": [0]}]

    def written(producer_id: int, producer_epoch: int) -> str:
        values = {"producer_id": producer_id, "producer_epoch": producer_epoch, "topics": places, "coordinator_epoch": 0}
        answer = ask(stage.connection, "write_txn_markers", 1, markers=[{**values, "transaction_result": False}])
        return name_of(answer.markers[0].topics[0].partitions[0].error_code)

    stage.open()
    return [written(-1, 0), written(987_654, -1), written(-1, -1)]


def descriptions_of_what_is_not_there(stage: Stage) -> list[str]:
    described = ask(stage.connection, "describe_transactions", 0, transactional_ids=["nobody's", ""]).transaction_states
    asked = [{"name": "no-such-topic", "partition_indexes": [0]}, {"name": stage.topic, "partition_indexes": [7]}]
    producers = ask(stage.connection, "describe_producers", 0, topics=asked).topics
    listed = ask(stage.connection, "list_transactions", 0, state_filters=["Nowhere", "Ongoing"], producer_id_filters=[])
    found = [name_of(state.error_code) for state in described]
    found += [name_of(partition.error_code) for topic in producers for partition in topic.partitions]
    return [*found, name_of(listed.error_code), *listed.unknown_state_filters]


def coordinators_of_what_is_not(stage: Stage) -> list[str]:
    found = ask(stage.connection, "find_coordinator", 4, key_type=1, coordinator_keys=["", stage.topic]).coordinators
    other = ask(stage.connection, "find_coordinator", 3, key_type=7, key="x")
    return [*(name_of(each.error_code) for each in found), name_of(other.error_code)]


Case = Callable[[Stage], list[str]]

EXPECTED: dict[Case, str | tuple[str, str]] = {
    init_with_a_timeout_of_zero: "INVALID_TRANSACTION_TIMEOUT",
    init_with_too_long_a_timeout: "NONE, INVALID_TRANSACTION_TIMEOUT",
    init_with_an_empty_transactional_id: "INVALID_REQUEST",
    init_with_an_id_and_no_epoch: "INVALID_REQUEST, INVALID_REQUEST",
    init_with_an_id_that_nobody_gave: "NONE",
    init_with_the_id_of_another: "PRODUCER_FENCED",
    init_with_the_epoch_it_has: "NONE",
    init_with_an_epoch_that_was: "PRODUCER_FENCED, INVALID_PRODUCER_EPOCH",
    init_with_an_epoch_to_come: "PRODUCER_FENCED",
    init_with_an_epoch_that_was_during_a_transaction: (
        "PRODUCER_FENCED, PRODUCER_FENCED, PRODUCER_FENCED",
        "PRODUCER_FENCED, INVALID_TXN_STATE, PRODUCER_FENCED",
    ),
    init_during_a_transaction: "NONE, INVALID_TXN_STATE",
    end_of_nothing: ("INVALID_TXN_STATE, INVALID_TXN_STATE", "INVALID_TXN_STATE, NONE"),
    end_of_an_id_that_nobody_has: "INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_ID_MAPPING",
    end_with_wrong_epochs: "PRODUCER_FENCED, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, NONE",
    end_with_wrong_epochs_in_the_oldest_version: "INVALID_PRODUCER_EPOCH",
    end_twice: "NONE, NONE, INVALID_TXN_STATE, NONE, NONE, INVALID_TXN_STATE",
    end_again_with_the_epoch_that_the_end_gave: (
        "NONE, NONE, INVALID_TXN_STATE, NONE",
        "NONE, INVALID_TXN_STATE, NONE, INVALID_TXN_STATE",
    ),
    add_of_partitions_that_are_not: "OPERATION_NOT_ATTEMPTED UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, NONE NONE",
    add_of_no_partition: "Ongoing, NONE",
    add_with_wrong_epochs: (
        "PRODUCER_FENCED, PRODUCER_FENCED, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, INVALID_PRODUCER_ID_MAPPING"
    ),
    add_offsets_with_wrong_epochs: (
        "PRODUCER_FENCED, PRODUCER_FENCED, PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING, "
        "INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED"
    ),
    produce_without_adding: ("TRANSACTION_ABORTABLE, INVALID_TXN_STATE", "NONE, INVALID_TXN_STATE"),
    produce_after_the_end: ("NONE, NONE, TRANSACTION_ABORTABLE", "NONE, NONE, NONE"),
    produce_with_wrong_epochs: "INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_EPOCH",
    produce_with_an_id_that_nobody_has: "INVALID_PRODUCER_ID_MAPPING",
    produce_with_the_id_of_another: "INVALID_PRODUCER_ID_MAPPING",
    produce_without_the_transactional_id: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    produce_of_a_batch_that_is_not_transactional: "INVALID_TXN_STATE, INVALID_TXN_STATE, NONE",
    produce_of_a_control_batch: "INVALID_RECORD",
    produce_out_of_sequence: "OUT_OF_ORDER_SEQUENCE_NUMBER, NONE, NONE",
    produce_that_begins_out_of_sequence: ("NONE, NONE, OUT_OF_ORDER_SEQUENCE_NUMBER", "NONE, OUT_OF_ORDER_SEQUENCE_NUMBER"),
    everything_after_a_second_producer_came: (
        "INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, PRODUCER_FENCED, "
        "INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, PRODUCER_FENCED, PRODUCER_FENCED, NONE, NONE"
    ),
    offsets_of_a_group_that_was_not_added: ("TRANSACTION_ABORTABLE", "NONE"),
    offsets_with_members_that_are_not: "NONE, ILLEGAL_GENERATION, ILLEGAL_GENERATION, NONE, NONE, NONE",
    offsets_of_a_generation_that_was: "NONE, NONE, ILLEGAL_GENERATION, ILLEGAL_GENERATION, NONE, UNKNOWN_MEMBER_ID, NONE",
    offsets_of_an_instance_that_was_replaced: "NONE, FENCED_INSTANCE_ID, FENCED_INSTANCE_ID",
    offsets_with_wrong_epochs: (
        "NONE, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_EPOCH, NONE, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, NONE"
    ),
    offsets_of_what_is_not_there: (
        "NONE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, INVALID_GROUP_ID"
    ),
    offsets_that_are_not_settled: "NONE, UNSTABLE_OFFSET_COMMIT -1, NONE -1, NONE",
    markers_with_wrong_epochs: (
        "INVALID_PRODUCER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, NONE, TRANSACTION_COORDINATOR_FENCED"
    ),
    markers_of_nobody: "UNKNOWN_SERVER_ERROR, UNKNOWN_SERVER_ERROR, UNKNOWN_SERVER_ERROR",
    descriptions_of_what_is_not_there: (
        "TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, NONE, Nowhere"
    ),
    coordinators_of_what_is_not: "NONE, NONE, INVALID_REQUEST",
}
"""The answers of both brokers: one text for both protocols, or one for the old protocol and one for v2."""


@pytest.mark.parametrize("protocol", [OLD, V2])
@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case.__name__)
def test_each_step_is_answered_with_kafkas_own_error_code(stage: Stage, case: Case) -> None:
    expected = EXPECTED[case]
    if isinstance(expected, tuple):
        expected = expected[stage.protocol == V2]
    assert ", ".join(case(stage)) == expected
