"""Transactional producers without sockets, for tests of the requests that make transactions."""

from __future__ import annotations

from typing import Any

from wirekafka.api.end_txn import EndTxnRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)


def initialize(caller: Caller, transactional_id: str = "x", version: int = 5, **fields: Any) -> tuple[int, int, int]:
    """Returns error, producer id and epoch."""
    fields = {"transaction_timeout_ms": 10_000, **fields}
    answer = caller.ask(InitProducerIdRequest(transactional_id=transactional_id, **fields), version)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def add(
    caller: Caller,
    producer: tuple[int, int],
    *partitions: tuple[str, int],
    version: int = 3,
    transactional_id: str = "x",
    **fields: Any,
) -> dict[tuple[str, int], ErrorCode]:
    """Returns the error of each partition."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    named = [AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()]
    producer_id, epoch = producer
    if version < 4:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=named,
        )
        return errors_of(caller.ask(request, version).results_by_topic_v3_and_below)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, topics=named, **fields
    )
    (result,) = caller.ask(AddPartitionsToTxnRequest(transactions=[transaction]), version).results_by_transaction
    assert result.transactional_id == transactional_id
    return errors_of(result.topic_results)


def errors_of(topics: Any) -> dict[tuple[str, int], ErrorCode]:
    """Returns the error of each partition in a response to AddPartitionsToTxn."""
    return {
        (topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for topic in topics
        for result in topic.results_by_partition
    }


def end(
    caller: Caller, producer: tuple[int, int], *, commit: bool = True, version: int = 4, transactional_id: str = "x"
) -> tuple[int, int, int]:
    """Returns the error, and from version 5 on producer id and epoch."""
    producer_id, epoch = producer
    request = EndTxnRequest(transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit)
    answer = caller.ask(request, version)
    return answer.error_code, answer.producer_id, answer.producer_epoch
