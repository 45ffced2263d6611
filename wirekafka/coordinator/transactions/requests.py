"""What the transaction coordinator is asked and what it answers, free of the protocol's versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition


class ProducerIdentity(NamedTuple):
    """By what a producer's records are known; a higher epoch fences the lower ones."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class InitRequest:
    """InitProducerId of a transactional producer.

    Attributes:
        timeout_ms: how long each of its transactions may stay open.
        expected: who the producer believes to be, if it goes on after an error (KIP-360); None for a new one.
        is_two_phase_commit: somebody else decides when transactions end, so that they do not time out (KIP-939).
        keeps_prepared: an open transaction is to be kept for its producer (KIP-939).
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    is_two_phase_commit: bool = False
    keeps_prepared: bool = False


class Marker(NamedTuple):
    """What is to be written to a partition at the end of a transaction.

    Attributes:
        transaction_version: that of the client that ended it; from 2 on the epoch is above that of its records.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: int


@dataclass(slots=True)
class TransactionFilter:
    """Which transactional ids ListTransactions wants; what is empty or None does not restrict it.

    Attributes:
        open_longer_than_ms: since the last transaction was opened, whether or not it has ended.
        pattern: a regular expression for the whole id.
    """

    states: list[str] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    open_longer_than_ms: int | None = None
    pattern: str | None = None


def told_to_client(code: ErrorCode, *, knows_producer_fenced: bool) -> ErrorCode:
    """The error as the client understands it: older ones take PRODUCER_FENCED for one that they do not know (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_producer_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
