"""The requests to the transaction coordinator and its responses, independent of protocol versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition


class ProducerIdentity(NamedTuple):
    """The producer id and epoch in a producer's records; a higher epoch fences lower epochs."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class InitRequest:
    """InitProducerId of a transactional producer.

    Attributes:
        timeout_ms: How long each transaction of the producer may stay open.
        expected: The current id and epoch of a producer that continues after an error (KIP-360); None for a new producer.
        is_two_phase_commit: Whether an external coordinator decides when transactions end, so they do not time out (KIP-939).
        keeps_prepared: Whether an open transaction must be kept for its producer (KIP-939).
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    is_two_phase_commit: bool = False
    keeps_prepared: bool = False


class Marker(NamedTuple):
    """The marker that ends a transaction in one partition.

    Attributes:
        transaction_version: The transaction version of the client that ended the transaction. From version 2 on, the epoch of the
            marker is higher than the epoch of the transaction's records.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: int


@dataclass(slots=True)
class TransactionFilter:
    """The filter of ListTransactions. An empty or None field does not restrict the result.

    Attributes:
        open_longer_than_ms: The shortest time since the last transaction was opened, even if that transaction has ended.
        pattern: A regular expression that must match the whole transactional id.
    """

    states: list[str] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    open_longer_than_ms: int | None = None
    pattern: str | None = None


def told_to_client(code: ErrorCode, *, knows_producer_fenced: bool) -> ErrorCode:
    """Returns the error for the response: older clients do not know PRODUCER_FENCED (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and not knows_producer_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
