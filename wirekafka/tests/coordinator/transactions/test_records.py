"""The records of __transaction_state; the expected bytes were written by the TransactionLog of Apache Kafka 4.3.1."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wirekafka.coordinator.transactions.records import MOST_CACHED_PARTITIONS, TransactionRecord, decode, encode
from wirekafka.coordinator.transactions.transaction import Transaction, TransactionState
from wirekafka.errors import ProtocolError
from wirekafka.names import TopicPartition

T0 = 1_700_000_000_000
T1 = frozenset({TopicPartition("t", 1)})
KEY = bytes.fromhex("00000003747831")

BY_KAFKA = {
    "0001000000000000000700030000ea6000000000018bcfe56800ffffffffffffffff0100080000000000000007": Transaction(
        "tx1", 7, 3, TransactionState.EMPTY, 60000, T0, previous_producer_id=7
    ),
    "0001000000000000000700030000ea60010202740200000001000000018bcfe568010000018bcfe56800"
    "020008000000000000000702020002": Transaction(
        "tx1", 7, 3, TransactionState.ONGOING, 60000, T0 + 1, T1, T0, None, previous_producer_id=7, client_version=2
    ),
    "000100000000000000077fff0000ea60020202740200000001000000018bcfe568010000018bcfe56800"
    "03000800000000000000070108000000000000000902020002": Transaction(
        "tx1", 7, 32767, TransactionState.PREPARE_COMMIT, 60000, T0 + 1, T1, T0, None, 7, next_producer_id=9, client_version=2
    ),
    "0001000000000000000900000000ea6004010000018bcfe568010000018bcfe56800020008000000000000000702020002": Transaction(
        "tx1", 9, 0, TransactionState.COMPLETE_COMMIT, 60000, T0 + 1, frozenset(), T0, None, 7, client_version=2
    ),
}
BY_OLDER_KAFKA = {
    "0000000000000000000700030000ea60010000000100017400000001000000010000018bcfe568010000018bcfe56800": Transaction(
        "tx1", 7, 3, TransactionState.ONGOING, 60000, T0 + 1, T1, T0
    ),
    "0000000000000000000700030000ea6000ffffffff0000018bcfe56800ffffffffffffffff": Transaction(
        "tx1", 7, 3, TransactionState.EMPTY, 60000, T0
    ),
}


@pytest.mark.parametrize(("data", "transaction"), BY_KAFKA.items())
def test_record_is_written_as_kafka_does(data: str, transaction: Transaction) -> None:
    assert encode(TransactionRecord("tx1", transaction)) == (KEY, bytes.fromhex(data))


@pytest.mark.parametrize(("data", "transaction"), BY_OLDER_KAFKA.items())
def test_record_of_the_older_version_is_written_as_kafka_does(data: str, transaction: Transaction) -> None:
    known_later = replace(transaction, previous_producer_id=7, next_producer_id=8, client_version=2)
    for each in (transaction, known_later):
        assert encode(TransactionRecord("tx1", each), 0) == (KEY, bytes.fromhex(data))
    assert encode(TransactionRecord("tx1", None), 0) == (KEY, None)


def test_partitions_are_written_by_topic_in_the_older_version_too() -> None:
    partitions = frozenset(TopicPartition(topic, index) for topic in "ab" for index in range(3))
    transaction = Transaction("x", 1, 0, TransactionState.ONGOING, 1, 2, partitions, 3)
    key, value = encode(TransactionRecord("x", transaction), 0)
    assert decode(key, value) == TransactionRecord("x", transaction)


@pytest.mark.parametrize(("data", "transaction"), (BY_KAFKA | BY_OLDER_KAFKA).items())
def test_record_of_kafka_is_read(data: str, transaction: Transaction) -> None:
    assert decode(KEY, bytes.fromhex(data)) == TransactionRecord("tx1", transaction)


def test_tombstone_is_a_value_of_none() -> None:
    assert encode(TransactionRecord("tx1", None)) == (KEY, None)
    assert decode(KEY, None) == TransactionRecord("tx1", None)


@pytest.mark.parametrize("count", [1, 3, MOST_CACHED_PARTITIONS])
def test_partitions_are_written_by_topic_and_read_back(count: int) -> None:
    partitions = frozenset(TopicPartition(topic, index) for topic in "ab" for index in range(count))
    transaction = Transaction("x", 1, 0, TransactionState.ONGOING, 1, 2, partitions, 3)
    key, value = encode(TransactionRecord("x", transaction))
    assert decode(key, value) == TransactionRecord("x", transaction)


@pytest.mark.parametrize(("key", "value"), [(b"\0\1" + KEY[2:], b""), (KEY, b"\0\2"), (KEY, b"\xff\xff")])
def test_record_of_another_version_is_left_alone(key: bytes, value: bytes) -> None:
    assert decode(key, value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0", b""), (KEY[:5], None), (KEY, b"\0"), (KEY, b"\0\0\0\0"), (KEY, bytes(16) + b"\x09" + bytes(21))],
)
def test_record_that_is_none_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode(key, value)
