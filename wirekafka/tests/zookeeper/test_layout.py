"""Kafka's znodes: what a broker of Kafka 3.9 wrote is read, and written again byte for byte."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.config.endpoints import Listener
from wirekafka.names import TopicPartition, parse_topic_id
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_DISABLED, FinalizedFeatures, ProducerIdBlock
from wirekafka.zookeeper.layout.configs import EntityConfigs, read_config_change, write_config_change
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.membership import (
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    read_cluster_id,
    read_controller_epoch,
    write_cluster_id,
    write_controller_epoch,
)
from wirekafka.zookeeper.layout.requests import (
    read_isr_change,
    read_log_dir_event,
    read_preferred_replica_election,
    read_reassignment,
    reading_isr_change,
    reading_preferred_replica_election,
    reading_reassignment,
    write_isr_change,
    write_log_dir_event,
    write_preferred_replica_election,
    write_reassignment,
    writing_reassignment,
)
from wirekafka.zookeeper.layout.topics import (
    LEADER_DURING_DELETE,
    PARTITIONS_A_STEP,
    RECOVERING,
    PartitionState,
    ReplicaAssignment,
    TopicAssignment,
)

T0 = TopicPartition("t", 0)
TOPIC_ID = parse_topic_id("fKpZDIKwRyyuOOFJKK4zkA")
PLAIN = Endpoint(Listener("PLAINTEXT", "localhost", 9092), "PLAINTEXT")
INTERNAL = Endpoint(Listener("INTERNAL", "::1", 9093), "SSL")


class Sample(NamedTuple):
    """The content of a znode, and what it means."""

    data: str
    value: object
    read: Callable[[bytes], object]
    write: Callable[[Any], bytes]


def read_broker(data: bytes) -> BrokerRegistration:
    return BrokerRegistration.read(1, data)


def read_topic(data: bytes) -> TopicAssignment:
    return TopicAssignment.read("t", data)


def read_state(data: bytes) -> PartitionState:
    return PartitionState.read(T0, data)


def read_configs(data: bytes) -> EntityConfigs:
    return EntityConfigs.read("/config/topics/t", data)


def read_change(data: bytes) -> str:
    return read_config_change("/config/changes/config_change_0000000000", data)


def read_isr(data: bytes) -> list[TopicPartition]:
    return read_isr_change("/isr_change_notification/isr_change_0000000000", data)


def read_log_dir(data: bytes) -> int:
    return read_log_dir_event("/log_dir_event_notification/log_dir_event_0000000000", data)


# The bytes are those of Kafka 3.9: read from ZooKeeper, or written by the classes of kafka.zk.
SAMPLES = [
    Sample('{"version":"1","id":"BUE8DeVHQ7aS0qmjbGVvlA"}', "BUE8DeVHQ7aS0qmjbGVvlA", read_cluster_id, write_cluster_id),
    Sample(
        '{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://localhost:9092"],'
        '"jmx_port":-1,"port":9092,"host":"localhost","version":5,"timestamp":"1700000000000"}',
        BrokerRegistration((PLAIN,), 1_700_000_000_000),
        read_broker,
        BrokerRegistration.write,
    ),
    Sample(
        '{"features":{},"listener_security_protocol_map":{"INTERNAL":"SSL"},"endpoints":["INTERNAL://[::1]:9093"],"rack":"r1",'
        '"jmx_port":9999,"port":-1,"host":null,"version":5,"timestamp":"1"}',
        BrokerRegistration((INTERNAL,), 1, "r1", {}, 9999),
        read_broker,
        BrokerRegistration.write,
    ),
    Sample(
        '{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}',
        ControllerRegistration(1, 1_700_000_000_000),
        ControllerRegistration.read,
        ControllerRegistration.write,
    ),
    Sample(
        '{"version":2,"brokerid":3000,"timestamp":"17","kraftControllerEpoch":0}',
        ControllerRegistration(3000, 17, 0),
        ControllerRegistration.read,
        ControllerRegistration.write,
    ),
    Sample("7", 7, read_controller_epoch, write_controller_epoch),
    Sample(
        '{"partitions":{"0":[1,2,3],"1":[2,3]},"topic_id":"fKpZDIKwRyyuOOFJKK4zkA","adding_replicas":{"0":[3]},'
        '"removing_replicas":{"0":[1,2]},"version":3}',
        TopicAssignment(TOPIC_ID, {0: ReplicaAssignment((1, 2, 3), (3,), (1, 2)), 1: ReplicaAssignment((2, 3))}),
        read_topic,
        TopicAssignment.write,
    ),
    Sample(
        '{"partitions":{},"adding_replicas":{},"removing_replicas":{},"version":3}',
        TopicAssignment(None, {}),
        read_topic,
        TopicAssignment.write,
    ),
    Sample(
        '{"partitions":{"11":[1],"12":[1],"0":[1],"1":[1],"2":[1],"3":[1],"4":[1],"5":[1],"6":[1],"7":[1],"8":[1],"9":[1],'
        '"10":[1]},"topic_id":"fKpZDIKwRyyuOOFJKK4zkA","adding_replicas":{},"removing_replicas":{},"version":3}',
        TopicAssignment(TOPIC_ID, {partition: ReplicaAssignment((1,)) for partition in range(13)}),
        read_topic,
        TopicAssignment.write,
    ),
    Sample(
        '{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2,3]}',
        PartitionState(1, 0, (1, 2, 3), 1),
        read_state,
        PartitionState.write,
    ),
    Sample(
        '{"controller_epoch":4,"leader":2,"version":1,"leader_recovery_state":1,"leader_epoch":3,"isr":[2]}',
        PartitionState(2, 3, (2,), 4, RECOVERING),
        read_state,
        PartitionState.write,
    ),
    Sample(
        '{"controller_epoch":4,"leader":-2,"version":1,"leader_epoch":3,"isr":[]}',
        PartitionState(LEADER_DURING_DELETE, 3, (), 4),
        read_state,
        PartitionState.write,
    ),
    Sample('{"version":1,"config":{}}', EntityConfigs({}), read_configs, EntityConfigs.write),
    Sample(
        '{"version":1,"config":{"compression.type":"gzip","cleanup.policy":"compact","min.insync.replicas":"2","retention.ms":"1"}}',
        EntityConfigs({"retention.ms": "1", "cleanup.policy": "compact", "min.insync.replicas": "2", "compression.type": "gzip"}),
        read_configs,
        EntityConfigs.write,
    ),
    Sample(
        '{"version":1,"config":{"a":"\\u0001\\u001F\x7f\u2028\U0001f600é\\"\\\\\\n/\\\\u001f"}}',
        EntityConfigs({"a": '\x01\x1f\x7f\u2028\U0001f600é"\\\n/\\u001f'}),
        read_configs,
        EntityConfigs.write,
    ),
    Sample('{"version":2,"entity_path":"users/a%40b/clients/c"}', "users/a%40b/clients/c", read_change, write_config_change),
    Sample(
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]},{"topic":"u","partition":7,"replicas":[3]}]}',
        {T0: (1, 2), TopicPartition("u", 7): (3,)},
        read_reassignment,
        write_reassignment,
    ),
    Sample(
        '{"version":1,"partitions":[{"topic":"t","partition":0}]}',
        [T0],
        read_preferred_replica_election,
        write_preferred_replica_election,
    ),
    Sample('{"version":1,"partitions":[{"topic":"t","partition":0}]}', [T0], read_isr, write_isr_change),
    Sample('{"version":1,"broker":3,"event":1}', 3, read_log_dir, write_log_dir_event),
    Sample(
        '{"features":{},"version":2,"status":1}',
        FinalizedFeatures({}),
        FinalizedFeatures.read,
        FinalizedFeatures.write,
    ),
    Sample(
        '{"features":{"group.version":{"max_version_level":1}},"version":2,"status":1}',
        FinalizedFeatures({"group.version": 1}),
        FinalizedFeatures.read,
        FinalizedFeatures.write,
    ),
    Sample(
        '{"features":{"f":{"max_version_level":3,"min_version_level":3}},"version":1,"status":0}',
        FinalizedFeatures({"f": 3}, FEATURES_DISABLED, 1),
        FinalizedFeatures.read,
        FinalizedFeatures.write,
    ),
    Sample(
        '{"version":1,"broker":1,"block_start":"9223372036854774000","block_end":"9223372036854774999"}',
        ProducerIdBlock(1, 9_223_372_036_854_774_000, 9_223_372_036_854_774_999),
        ProducerIdBlock.read,
        ProducerIdBlock.write,
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda each: f"{each.read.__qualname__}-{each.data[:20]}")
def test_content_that_kafka_wrote_is_read(sample: Sample) -> None:
    assert sample.read(sample.data.encode()) == sample.value


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda each: f"{each.read.__qualname__}-{each.data[:20]}")
def test_content_is_written_byte_for_byte_as_kafka_writes_it(sample: Sample) -> None:
    assert sample.write(sample.value).decode() == sample.data


OLDER = [
    (
        '{"jmx_port":-1,"timestamp":"5","host":"h","version":1,"port":9092}',
        BrokerRegistration((Endpoint(Listener("PLAINTEXT", "h", 9092), "PLAINTEXT"),), 5),
        read_broker,
    ),
    (
        '{"jmx_port":-1,"timestamp":"5","endpoints":["PLAINTEXT://h:1","SSL://h:2"],"host":"h","version":3,"rack":"x","port":1}',
        BrokerRegistration(
            (Endpoint(Listener("PLAINTEXT", "h", 1), "PLAINTEXT"), Endpoint(Listener("SSL", "h", 2), "SSL")), 5, "x"
        ),
        read_broker,
    ),
    (
        '{"version":5,"jmx_port":-1,"endpoints":[],"rack":null,"features":{"f":{"min_version":1,"max_version":2}}}',
        BrokerRegistration((), features={"f": {"min_version": 1, "max_version": 2}}),
        read_broker,
    ),
    ('{"version":1,"brokerid":2,"timestamp":"3"}', ControllerRegistration(2, 3), ControllerRegistration.read),
    ('{"version":1,"partitions":{"0":[1]}}', TopicAssignment(None, {0: ReplicaAssignment((1,))}), read_topic),
    (
        '{"version":2,"partitions":{"0":[1,2]},"adding_replicas":{"0":[2]},"removing_replicas":{}}',
        TopicAssignment(None, {0: ReplicaAssignment((1, 2), (2,))}),
        read_topic,
    ),
    ('{"version":1,"entity_type":"topics","entity_name":"t"}', "topics/t", read_change),
    ("", EntityConfigs({}), read_configs),
    ('{"version":1}', EntityConfigs({}), read_configs),
    ("", None, ProducerIdBlock.read),
]


@pytest.mark.parametrize(("data", "value", "read"), OLDER)
def test_content_of_older_brokers_is_read(data: str, value: object, read: Callable[[bytes], object]) -> None:
    assert read(data.encode()) == value


READERS: list[tuple[str, Callable[[bytes], object]]] = [
    ("/cluster/id", read_cluster_id),
    ("/brokers/ids/1", read_broker),
    ("/controller", ControllerRegistration.read),
    ("/controller_epoch", read_controller_epoch),
    ("/brokers/topics/t", read_topic),
    ("/brokers/topics/t/partitions/0/state", read_state),
    ("/config/topics/t", read_configs),
    ("/config/changes/config_change_0000000000", read_change),
    ("/admin/reassign_partitions", read_reassignment),
    ("/admin/preferred_replica_election", read_preferred_replica_election),
    ("/isr_change_notification/isr_change_0000000000", read_isr),
    ("/log_dir_event_notification/log_dir_event_0000000000", read_log_dir),
    ("/feature", FinalizedFeatures.read),
    ("/latest_producer_id_block", ProducerIdBlock.read),
]


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"\xff", b"null", b"[" * 100_000, b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"a":1e999}']
)
@pytest.mark.parametrize(("path", "read"), READERS)
def test_content_that_is_not_a_json_object_is_refused_with_the_path(
    path: str, read: Callable[[bytes], object], data: bytes
) -> None:
    with pytest.raises(MalformedZnodeError, match=f"znode {path} is malformed"):
        read(data)


MALFORMED = [
    (read_cluster_id, '{"version":"1"}', "id is missing"),
    (read_cluster_id, '{"version":"1","id":5}', "id is not a text: 5"),
    (read_broker, '{"version":5,"jmx_port":-1}', "endpoints is missing"),
    (read_broker, '{"version":0,"jmx_port":-1}', "the version of the registration is 0"),
    (read_broker, '{"version":5,"jmx_port":-1,"endpoints":["localhost:1"]}', "PLAINTEXT://127.0.0.1:9092"),
    (read_broker, '{"version":5,"jmx_port":-1,"endpoints":[1]}', "endpoints is not an array of texts"),
    (
        read_broker,
        '{"version":5,"jmx_port":-1,"endpoints":["A://h:1"],"listener_security_protocol_map":{}}',
        "has no protocol of A",
    ),
    (read_broker, '{"version":5,"jmx_port":-1,"endpoints":[],"timestamp":"x"}', "timestamp is not a number in text"),
    (ControllerRegistration.read, '{"brokerid":"1"}', "brokerid is not an integer: '1'"),
    (ControllerRegistration.read, '{"brokerid":true}', "brokerid is not an integer: True"),
    (ControllerRegistration.read, '{"brokerid":2147483648}', "brokerid is not an integer: 2147483648"),
    (read_controller_epoch, "", "it is not an integer: ''"),
    (read_controller_epoch, "1.5", "it is not an integer: '1.5'"),
    (read_controller_epoch, "2147483648", "it is not an integer: '2147483648'"),
    (read_topic, '{"partitions":{"x":[1]}}', "partitions has a partition that is not a number of 31 bits: 'x'"),
    (read_topic, '{"partitions":{"2147483648":[1]}}', "partitions has a partition that is not a number of 31 bits"),
    (read_topic, '{"partitions":{"0":1}}', "0 is not an array: 1"),
    (read_topic, '{"partitions":[]}', "partitions is not an object"),
    (read_topic, '{"partitions":{},"topic_id":"abc"}', "topic id"),
    (read_state, '{"leader":1,"leader_epoch":0,"isr":[1]}', "controller_epoch is missing"),
    (read_state, '{"leader":1,"leader_epoch":0,"isr":["1"],"controller_epoch":1}', "isr is not an integer: '1'"),
    (
        read_state,
        '{"leader":1,"leader_epoch":0,"isr":[],"controller_epoch":1,"leader_recovery_state":2}',
        "leader_recovery_state is 2",
    ),
    (read_configs, '{"config":{"a":1}}', "a is not a text: 1"),
    (read_change, '{"version":3,"entity_path":"topics/t"}', "the version of the notification is 3"),
    (read_change, '{"version":2,"entity_path":"topics"}', "the notification names no entity"),
    (read_change, '{"version":2,"entity_path":"topics/"}', "the notification names no entity"),
    (read_reassignment, '{"partitions":[{"topic":"t","partition":0}]}', "replicas is missing"),
    (read_preferred_replica_election, '{"partitions":[0]}', "partitions is not an object: 0"),
    (FinalizedFeatures.read, '{"features":{},"version":3,"status":1}', "version 3 with status 1"),
    (FinalizedFeatures.read, '{"features":{},"version":2,"status":2}', "version 2 with status 2"),
    (FinalizedFeatures.read, '{"features":{"f":{"max_version_level":0}},"version":2,"status":1}', "not positive"),
    (FinalizedFeatures.read, '{"features":{"f":{"max_version_level":1}},"version":1,"status":1}', "min_version_level is missing"),
    (ProducerIdBlock.read, '{"broker":1,"block_start":0,"block_end":"999"}', "block_start is not a text: 0"),
    (
        ProducerIdBlock.read,
        '{"broker":1,"block_start":"0","block_end":"9223372036854775808"}',
        "block_end is not a number in text",
    ),
]


@pytest.mark.parametrize(("read", "data", "reason"), MALFORMED)
def test_malformed_content_is_refused_with_the_reason(read: Callable[[bytes], object], data: str, reason: str) -> None:
    with pytest.raises(MalformedZnodeError) as raised:
        read(data.encode())
    assert reason in raised.value.reason


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
UNKNOWN = st.dictionaries(st.text().map("wirekafka.".__add__), JSON_VALUES, max_size=3)
INT_32 = st.integers(-(1 << 31), (1 << 31) - 1)
IDS = st.lists(INT_32, max_size=4).map(tuple)
NAMES = st.text("abcXYZ019.-_", min_size=1, max_size=20)
LISTENERS = st.lists(
    st.builds(
        Listener,
        st.text("ABCXYZ019_", min_size=1, max_size=8),
        st.sampled_from(["", "h", "10.0.0.1", "::1"]),
        st.integers(0, 65535),
    ),
    max_size=8,
    unique_by=lambda each: each.name,
)
ENDPOINTS = LISTENERS.flatmap(
    lambda listeners: st.tuples(
        *(st.builds(Endpoint, st.just(each), st.sampled_from(["PLAINTEXT", "SSL"])) for each in listeners)
    )
)
MOMENT = st.none() | st.integers(0, (1 << 63) - 1)
ROUND_TRIPS: list[tuple[st.SearchStrategy[Any], Callable[[bytes], object]]] = [
    (
        st.builds(
            BrokerRegistration,
            ENDPOINTS,
            MOMENT,
            st.none() | st.text(),
            st.dictionaries(NAMES, st.fixed_dictionaries({"min_version": INT_32, "max_version": INT_32})),
            INT_32,
            UNKNOWN,
        ),
        read_broker,
    ),
    (st.builds(ControllerRegistration, INT_32, MOMENT, st.none() | st.integers(0, 99), UNKNOWN), ControllerRegistration.read),
    (
        st.builds(
            TopicAssignment,
            st.none() | st.binary(min_size=16, max_size=16),
            st.dictionaries(st.integers(0, 99_999), st.builds(ReplicaAssignment, IDS, IDS, IDS)),
            UNKNOWN,
        ),
        read_topic,
    ),
    (st.builds(PartitionState, INT_32, INT_32, IDS, INT_32, st.integers(0, 1), UNKNOWN), read_state),
    (st.builds(EntityConfigs, st.dictionaries(st.text(), st.text()), UNKNOWN), read_configs),
    (
        st.builds(FinalizedFeatures, st.dictionaries(NAMES, st.integers(1, 99)), st.integers(0, 1), st.integers(1, 2), UNKNOWN),
        FinalizedFeatures.read,
    ),
    (st.builds(ProducerIdBlock, INT_32, st.integers(0, 1 << 62), st.integers(0, 1 << 62), UNKNOWN), ProducerIdBlock.read),
]


@given(st.data())
@settings(max_examples=150)
def test_content_survives_a_round_trip_with_unknown_keys(data: st.DataObject) -> None:
    values, read = data.draw(st.sampled_from(ROUND_TRIPS))
    value = data.draw(values)
    written = value.write()
    assert read(written) == value


@given(st.data())
@settings(max_examples=150)
def test_json_of_any_form_is_read_or_refused(data: st.DataObject) -> None:
    _, read = data.draw(st.sampled_from(READERS))
    keys = ["version", "partitions", "isr", "leader", "features", "config", "id", "brokerid", "endpoints", "block_end", "broker"]
    content = data.draw(st.dictionaries(st.sampled_from(keys), JSON_VALUES))
    with contextlib.suppress(MalformedZnodeError):
        read(json.dumps(content).encode())


def test_unknown_keys_are_written_after_the_known_ones() -> None:
    data = b'{"wirekafka":{"elr":[2]},"leader":1,"version":1,"x":1.50,"leader_epoch":0,"isr":[],"controller_epoch":1}'
    state = read_state(data)
    assert state.unknown == {"wirekafka": {"elr": [2]}, "x": 1.5}
    written = b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[],"wirekafka":{"elr":[2]},"x":1.5}'
    assert state.write() == written


def test_paths_are_kafkas() -> None:
    assert paths.partition_state(TopicPartition("t", 3)) == "/brokers/topics/t/partitions/3/state"
    assert paths.topic_partitions("t") == "/brokers/topics/t/partitions"
    assert paths.broker(7) == "/brokers/ids/7"
    assert paths.deleted_topic("t") == "/admin/delete_topics/t"
    assert paths.configs("users", f"{paths.sanitize('a b')}/clients/{paths.sanitize('c*')}") == "/config/users/a%20b/clients/c%2A"
    assert paths.configs("brokers", paths.DEFAULT_ENTITY) == "/config/brokers/<default>"
    assert paths.parents("/brokers/topics/t") == ["/brokers", "/brokers/topics"]
    assert paths.parents("/controller") == []


@pytest.mark.parametrize(
    ("name", "sanitized"),
    [
        ("user", "user"),
        ("a b", "a%20b"),
        ("*", "%2A"),
        ("~.-_", "%7E.-_"),
        ("CN=é,O=x/y", "CN%3D%C3%A9%2CO%3Dx%2Fy"),
        ("+%", "%2B%25"),
    ],
)
def test_names_are_sanitized_as_kafka_does_it(name: str, sanitized: str) -> None:
    assert paths.sanitize(name) == sanitized
    assert paths.desanitize(sanitized) == name


def test_sequence_number_is_the_end_of_the_name() -> None:
    assert paths.sequence_number("/config/changes/config_change_0000000012", paths.CONFIG_CHANGE_PREFIX) == 12
    for path in ("/config/changes/other_0000000012", "/config/changes/config_change_", "/config/changes/config_change_x"):
        with pytest.raises(MalformedZnodeError):
            paths.sequence_number(path, paths.CONFIG_CHANGE_PREFIX)


def test_assignment_of_many_partitions_is_read_and_written_in_steps() -> None:
    partitions = {index: ReplicaAssignment((1, 2, 3), (3,), (1,)) for index in range(10_000)}
    writing, step_count = TopicAssignment(TOPIC_ID, partitions).writing(), 0
    while True:
        try:
            next(writing)
            step_count += 1
        except StopIteration as ended:
            content = ended.value
            break
    assert step_count > 4 * 10_000 // PARTITIONS_A_STEP
    reading = TopicAssignment.reading("t", content)
    assert sum(1 for _ in reading) > 4 * 10_000 // PARTITIONS_A_STEP
    assert TopicAssignment.read("t", content) == TopicAssignment(TOPIC_ID, partitions)


def test_requests_about_many_partitions_are_read_and_written_in_steps() -> None:
    targets = {TopicPartition("t", index): (1, 2, 3) for index in range(10_000)}
    assert len([*writing_reassignment(targets)]) >= 20
    assert len([*reading_reassignment(write_reassignment(targets))]) >= 20
    assert len([*reading_preferred_replica_election(write_preferred_replica_election(targets))]) >= 20
    assert len([*reading_isr_change("/isr_change", write_isr_change(targets))]) >= 20
