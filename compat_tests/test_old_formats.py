"""A client of 2014 and one of 2026 share a topic: message sets of magic 0 and 1 are converted up and down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import (
    CONFLUENT,
    GZIP,
    JAVA,
    JAVA_0_10,
    KAFKA_PYTHON,
    KAFKA_PYTHON_2,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Agent,
    AgentError,
    Client,
    Member,
    Record,
)
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java"), pytest.mark.old_formats]

Agents = Callable[[Client], Agent]

START_MS = 1_400_000_000_000
OLD_CODECS = (NONE, GZIP, SNAPPY, LZ4)


@dataclass(frozen=True)
class OldClient:
    """A client with the protocol of an old release.

    Attributes:
        magic: the format of the messages that it writes and reads; 0 has no timestamps.
    """

    name: str
    client: Client
    magic: int
    options: tuple[tuple[str, Any], ...] = ()


OLD_CLIENTS = [
    OldClient("kafka-python-as-0.8.2", KAFKA_PYTHON_2, 0, (("api_version", "0.8.2"),)),
    OldClient("kafka-python-as-0.9", KAFKA_PYTHON_2, 0, (("api_version", "0.9"),)),
    OldClient("kafka-python-as-0.10.0", KAFKA_PYTHON_2, 1, (("api_version", "0.10.0"),)),
    OldClient("java-0.10.0.0", JAVA_0_10, 1),
]
every_old_client = pytest.mark.parametrize("old", OLD_CLIENTS, ids=lambda old: old.name)
every_modern_client = pytest.mark.parametrize("modern", [KAFKA_PYTHON, CONFLUENT, JAVA], ids=str)


def plain_records(count: int, partition: int, *, first: int = 0) -> list[Record]:
    """Records with and without keys, and tombstones; no headers, which the old formats lack."""
    return [
        Record(
            None if n % 5 == 0 else f"schlüssel-{n % 7}".encode(),
            None if n % 5 == 3 else f"wert {n} ".encode() * 20,
            timestamp_ms=START_MS + n,
            partition=partition,
        )
        for n in range(first, first + count)
    ]


def without_timestamps(records: list[Record]) -> list[Record]:
    return [replace(record, timestamp_ms=None) for record in records]


def in_partition(records: list[Record], partition: int) -> list[Record]:
    return [record for record in records if record.partition == partition]


@every_modern_client
@every_old_client
def test_what_an_old_client_wrote_is_read_by_a_modern_one(
    broker: Broker, agent: Agents, topic: str, old: OldClient, modern: Client
) -> None:
    create_topic(broker.bootstrap, topic, len(OLD_CODECS))
    written = {codec: plain_records(30, index) for index, codec in enumerate(OLD_CODECS)}
    for codec, records in written.items():
        agent(old.client).produce(broker.bootstrap, topic, records, codec=codec, **dict(old.options))
    found = agent(modern).read(broker.bootstrap, topic, 30 * len(OLD_CODECS))
    for index, codec in enumerate(OLD_CODECS):
        expected = written[codec] if old.magic == 1 else without_timestamps(written[codec])
        mine = in_partition(found, index)
        assert mine == expected, codec
        assert [record.offset for record in mine] == list(range(30))


@every_modern_client
@every_old_client
def test_what_a_modern_client_wrote_is_read_by_an_old_one(
    broker: Broker, agent: Agents, topic: str, old: OldClient, modern: Client
) -> None:
    create_topic(broker.bootstrap, topic, len(OLD_CODECS))
    written = {codec: plain_records(30, index) for index, codec in enumerate(OLD_CODECS)}
    for codec, records in written.items():
        headed = [replace(record, headers=(("dropped", b"on the way down"),)) for record in records]
        agent(modern).produce(broker.bootstrap, topic, headed, codec=codec)
    found = agent(old.client).read(broker.bootstrap, topic, 30 * len(OLD_CODECS), **dict(old.options))
    for index, codec in enumerate(OLD_CODECS):
        expected = written[codec] if old.magic == 1 else without_timestamps(written[codec])
        mine = in_partition(found, index)
        assert mine == expected, codec
        assert [record.offset for record in mine] == list(range(30))


@every_modern_client
def test_one_partition_is_shared_by_clients_of_all_times(broker: Broker, agent: Agents, topic: str, modern: Client) -> None:
    create_topic(broker.bootstrap, topic)
    written: list[Record] = []
    for turn, codec in enumerate(OLD_CODECS):
        for old in OLD_CLIENTS:
            some = plain_records(7, 0, first=len(written))
            agent(old.client).produce(broker.bootstrap, topic, some, codec=codec, **dict(old.options))
            written += some
        some = plain_records(7, 0, first=len(written))
        agent(modern).produce(broker.bootstrap, topic, some, codec=OLD_CODECS[-turn])
        written += some
    readers: list[tuple[Client, dict[str, Any]]] = [(modern, {}), *((old.client, dict(old.options)) for old in OLD_CLIENTS)]
    for client, options in readers:
        found = agent(client).read(broker.bootstrap, topic, len(written), **options)
        assert without_timestamps(found) == without_timestamps(written), f"{client} {options}"
        assert [record.offset for record in found] == list(range(len(written)))


@pytest.mark.parametrize("old", OLD_CLIENTS[1:], ids=lambda old: old.name)
def test_a_group_is_shared_by_an_old_client_and_a_modern_one(
    broker: Broker, agent: Agents, join: Callable[..., Member], topic: str, old: OldClient
) -> None:
    # Without the client of 0.8.2, whose groups are kept in ZooKeeper.
    create_topic(broker.bootstrap, topic, 4)
    members = [join(old.client, topic, topic, session=6000, **dict(old.options)), join(CONFLUENT, topic, topic, session=6000)]

    def is_shared() -> bool:
        for member in members:
            member.refresh()
        return sorted(sum((member.assigned or [] for member in members), [])) == [0, 1, 2, 3] and all(m.assigned for m in members)

    wait_until(is_shared, timeout_s=60, what="both have partitions")
    written = [record for partition in range(4) for record in plain_records(20, partition)]
    agent(KAFKA_PYTHON).produce(broker.bootstrap, topic, written)

    def have_read() -> bool:
        for member in members:
            member.refresh()
        return sum(len(member.records) for member in members) >= len(written)

    wait_until(have_read, timeout_s=60, what="both have read")
    assert all(len(member.records) == 40 for member in members)


def test_zstd_is_refused_to_a_client_too_old_for_it(broker: Broker, agent: Agents, topic: str) -> None:
    create_topic(broker.bootstrap, topic)
    agent(CONFLUENT).produce(broker.bootstrap, topic, plain_records(5, 0), codec=ZSTD)
    with pytest.raises(AgentError, match="UnsupportedCompressionType"):
        agent(KAFKA_PYTHON_2).read(broker.bootstrap, topic, 1, timeout_s=5, api_version="0.10.0")
    assert agent(CONFLUENT).read(broker.bootstrap, topic, 5) == plain_records(5, 0)
