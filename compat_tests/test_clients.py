"""Each client produces and consumes, and reads the records that each other client has written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness.broker import CLASSES, VERSIONS_OF_2019, Broker
from compat_tests.harness.clients import (
    AIOKAFKA,
    ALL_CODECS,
    CLIENTS,
    CONFLUENT,
    JAVA,
    KAFKA_PYTHON,
    KAFKA_PYTHON_2,
    NONE,
    Agent,
    AgentError,
    Client,
    Member,
    Record,
)
from compat_tests.harness.proxy import CuttingProxy
from compat_tests.harness.topics import create_topic

Agents = Callable[[Client], Agent]

JAVA_GROUP = pytest.mark.xdist_group("java")


def client_param(client: Client) -> object:
    return pytest.param(client, id=client.name, marks=[pytest.mark.java, JAVA_GROUP] if client.java else [])


every_client = pytest.mark.parametrize("client", [client_param(client) for client in CLIENTS])
idempotent_clients = pytest.mark.parametrize("client", [client_param(c) for c in (KAFKA_PYTHON, CONFLUENT, AIOKAFKA, JAVA)])

START_MS = 1_700_000_000_000


def records_of_every_kind(writer: Client, count: int, partition: int = 0) -> list[Record]:
    """Makes records with and without keys, values and headers, tombstones, and values that compress well and badly."""
    null = None if writer in (CONFLUENT, JAVA) else b"not null, which this client refuses in a header"
    records = []
    for number in range(count):
        key = None if number % 5 == 0 else f"schlüssel-{number % 7}".encode()
        value: bytes | None = [b"the same text again " * 8, os.urandom(64), b"", f"wert {number}".encode()][number % 4]
        if key is not None and number % 6 == 0:
            value = None
        headers = (("zähler", str(number).encode()), ("leer", b""), ("null", null), ("leer", b"again"))[: number % 5]
        records.append(Record(key, value, headers, START_MS + number * 10, partition))
    return records


@pytest.fixture(scope="session")
def codec_topics(broker: Broker, agent: Agents) -> Callable[[Client], tuple[str, dict[str, list[Record]]]]:
    """For a client: a topic in which it wrote one partition with each codec, and the records that it wrote."""
    topics: dict[str, tuple[str, dict[str, list[Record]]]] = {}

    def find(writer: Client) -> tuple[str, dict[str, list[Record]]]:
        if writer.name not in topics:
            topic = f"codecs-of-{writer.name}-{os.urandom(3).hex()}"
            create_topic(broker.bootstrap, topic, len(ALL_CODECS))
            written = {codec: records_of_every_kind(writer, 40, index) for index, codec in enumerate(ALL_CODECS)}
            for codec, records in written.items():
                agent(writer).produce(broker.bootstrap, topic, records, codec=codec)
            topics[writer.name] = topic, written
        return topics[writer.name]

    return find


@pytest.mark.java
@JAVA_GROUP
@pytest.mark.parametrize("reader", CLIENTS, ids=str)
@pytest.mark.parametrize("writer", CLIENTS, ids=str)
def test_every_codec_of_one_client_is_read_by_another(
    broker: Broker,
    agent: Agents,
    codec_topics: Callable[[Client], tuple[str, dict[str, list[Record]]]],
    writer: Client,
    reader: Client,
) -> None:
    topic, written = codec_topics(writer)
    found = agent(reader).read(broker.bootstrap, topic, sum(map(len, written.values())))
    for index, codec in enumerate(ALL_CODECS):
        assert [record for record in found if record.partition == index] == written[codec], f"{codec} of {writer}"


@pytest.mark.parametrize(
    ("client", "acks"),
    [
        pytest.param(client, acks, id=f"{client}-{acks}", marks=[pytest.mark.java, JAVA_GROUP] if client.java else [])
        for client in CLIENTS
        for acks in ("0", "1", "all")
        # kafka-python 2 counts a record of acks=0 as sent, and closes, before the record is written to the socket.
        if (client, acks) != (KAFKA_PYTHON_2, "0")
    ],
)
def test_records_of_every_acks_are_read_back(broker: Broker, agent: Agents, topic: str, client: Client, acks: str) -> None:
    create_topic(broker.bootstrap, topic, 3)
    written = [record for partition in range(3) for record in records_of_every_kind(client, 30, partition)]
    agent(client).produce(broker.bootstrap, topic, written, acks=acks)
    found = agent(client).read(broker.bootstrap, topic, len(written))
    for partition in range(3):
        mine = [record for record in found if record.partition == partition]
        assert mine == [record for record in written if record.partition == partition]
        assert [record.offset for record in mine] == list(range(30))


@every_client
def test_a_topic_that_does_not_exist_is_created_by_the_first_record(
    broker: Broker, agent: Agents, topic: str, client: Client
) -> None:
    agent(client).produce(broker.bootstrap, topic, [Record(b"k", b"v")])
    (found,) = agent(client).read(broker.bootstrap, topic, 1)
    assert (found.key, found.value) == (b"k", b"v")


@every_client
def test_a_record_of_1_mb_goes_through(broker: Broker, agent: Agents, topic: str, client: Client) -> None:
    create_topic(broker.bootstrap, topic)
    written = [Record(b"k", os.urandom(1_000_000), timestamp_ms=START_MS), Record(b"k", b"behind it", timestamp_ms=START_MS)]
    agent(client).produce(broker.bootstrap, topic, written)
    assert agent(client).read(broker.bootstrap, topic, 2) == written


@every_client
def test_a_record_over_the_limit_is_refused_and_the_next_one_taken(
    broker: Broker, agent: Agents, topic: str, client: Client
) -> None:
    create_topic(broker.bootstrap, topic)
    with pytest.raises(AgentError, match=r"(?i)size_?too_?large|RecordTooLarge"):
        agent(client).produce(broker.bootstrap, topic, [Record(b"k", os.urandom(1_100_000))])
    agent(client).produce(broker.bootstrap, topic, [Record(b"k", b"small enough")])
    (found,) = agent(client).read(broker.bootstrap, topic, 1)
    assert (found.value, found.offset) == (b"small enough", 0)


@every_client
def test_a_timestamp_is_sought(broker: Broker, agent: Agents, topic: str, client: Client) -> None:
    create_topic(broker.bootstrap, topic, 2)
    written = [Record(b"k", f"{n}".encode(), timestamp_ms=START_MS + n * 1000, partition=1) for n in range(100)]
    for start in range(0, 100, 10):
        agent(client).produce(broker.bootstrap, topic, written[start : start + 10])
    assert agent(client).find(broker.bootstrap, topic, 1, START_MS + 41_500) == (42, written[42])
    assert agent(client).find(broker.bootstrap, topic, 1, START_MS + 42_000) == (42, written[42])
    assert agent(client).find(broker.bootstrap, topic, 1, 0) == (0, written[0])


@every_client
def test_a_timestamp_behind_the_last_record_is_not_found(broker: Broker, agent: Agents, topic: str, client: Client) -> None:
    create_topic(broker.bootstrap, topic)
    agent(client).produce(broker.bootstrap, topic, [Record(b"k", b"v", timestamp_ms=START_MS)])
    # If the broker finds no record, librdkafka returns the end of the partition.
    assert agent(client).find(broker.bootstrap, topic, 0, START_MS + 1, timeout_s=0.5) == (None, None)


@idempotent_clients
def test_an_idempotent_producer_loses_and_repeats_nothing_through_cut_connections(
    make_broker: Callable[..., Broker], proxy: CuttingProxy, agent: Agents, topic: str, client: Client
) -> None:
    broker = make_broker(advertised=proxy.bootstrap)
    proxy.upstream = broker.address
    create_topic(broker.bootstrap, topic, 2)
    written = [Record(b"k", f"{n}".encode() + b"." * 2000, timestamp_ms=START_MS, partition=n % 2) for n in range(1000)]
    proxy.cuts_left = 5
    agent(client).produce(proxy.bootstrap, topic, written, idempotent=1)
    assert proxy.cut_count == 5
    found = agent(client).read(broker.bootstrap, topic, len(written))
    for partition in range(2):
        assert [r for r in found if r.partition == partition] == [r for r in written if r.partition == partition]


def test_a_plain_producer_repeats_records_through_cut_connections(
    make_broker: Callable[..., Broker], proxy: CuttingProxy, agent: Agents, topic: str
) -> None:
    """Shows that the proxy cuts a connection before its answer: without idempotence the same run leaves duplicates."""
    broker = make_broker(advertised=proxy.bootstrap)
    proxy.upstream = broker.address
    create_topic(broker.bootstrap, topic)
    written = [Record(b"k", f"{n}".encode() + b"." * 2000, timestamp_ms=START_MS) for n in range(500)]
    proxy.cuts_left = 3
    agent(CONFLUENT).produce(proxy.bootstrap, topic, written)
    found = Counter(record.value for record in agent(CONFLUENT).read(broker.bootstrap, topic, len(written) + 1))
    assert set(found) == {record.value for record in written}
    assert max(found.values()) > 1


@pytest.fixture(scope="module")
def broker_of_2019(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Starts a broker that hides API versions that are newer than 2019."""
    settings = {"wirekafka.api.versions.max": VERSIONS_OF_2019}
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("broker-of-2019"), settings)) as running:
        yield running


@pytest.mark.wirekafka_only("hides the newer versions of its APIs")
@every_client
def test_clients_work_without_the_newer_versions_of_the_apis(
    broker_of_2019: Broker, agent: Agents, join: Callable[..., Member], topic: str, client: Client
) -> None:
    bootstrap = broker_of_2019.bootstrap
    create_topic(bootstrap, topic, 2)
    written = [record for partition in range(2) for record in records_of_every_kind(client, 30, partition)]
    agent(client).produce(bootstrap, topic, written, codec="zstd")
    found = agent(client).read(bootstrap, topic, len(written))
    assert sorted(found, key=lambda r: r.partition) == written
    assert agent(client).find(bootstrap, topic, 1, START_MS + 15) == (2, written[32])
    member = join(client, topic, topic, bootstrap=bootstrap, limit=60, max_poll=60)
    member.wait_until_left(40)
    member.refresh()
    assert sorted(member.records, key=lambda r: r.partition) == written


@pytest.mark.parametrize("client", [client_param(client) for client in (KAFKA_PYTHON_2, KAFKA_PYTHON)])
def test_log_append_time_replaces_the_producers(broker: Broker, agent: Agents, topic: str, client: Client) -> None:
    create_topic(broker.bootstrap, topic, 1, {"message.timestamp.type": "LogAppendTime"})
    agent(client).produce(broker.bootstrap, topic, [Record(b"k", b"v", timestamp_ms=START_MS)], codec=NONE)
    (found,) = agent(client).read(broker.bootstrap, topic, 1)
    assert found.timestamp_ms is not None
    assert found.timestamp_ms > START_MS
