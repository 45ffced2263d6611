"""A transactional producer for tests of Produce and Fetch: it sends a client's requests, in both transaction protocols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from wirekafka.api.end_txn import EndTxnRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.tests.api import data_plane
from wirekafka.tests.api.data_plane import Caller, batch
from wirekafka.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic

V1 = 11
"""The last version of Produce before which the client adds partitions to the transaction."""
V2 = 12


def run(body: Callable[..., Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test as `data_plane.run` does, with fewer partitions."""
    few = {"transaction_state_log_num_partitions": "1", "offsets_topic_num_partitions": "1"}
    data_plane.run(body, path, **{**few, **settings})


class Transactor:
    """One producer with a transactional id, which writes to the topic `flights`.

    Attributes:
        sequences: the next sequence number in each partition.
    """

    def __init__(self, caller: Caller, transactional_id: str = "pilot", *, version: int = V2) -> None:
        self.caller = caller
        self.transactional_id = transactional_id
        self.version = version
        self.sequences: dict[int, int] = {}
        answer = caller.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
        assert answer.error_code == 0
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, *indexes: int) -> int:
        """Adds partitions to the transaction, as producers of transactions v1 do; returns the error code of the last one."""
        answer = self.caller.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="flights", partitions=list(indexes))],
            ),
            3,
        )
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[-1].partition_error_code)

    def batch(self, *values: bytes, sequence: int, **fields: Any) -> bytearray:
        settings = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "is_transactional": True, **fields}
        return batch(*values, base_sequence=sequence, **settings)

    def send(self, *values: bytes, index: int = 0, sequence: int | None = None, **fields: Any) -> Any:
        """Writes records to one partition; returns the partition's response."""
        begins_with = self.sequences.get(index, 0) if sequence is None else sequence
        answer = self.ask({index: self.batch(*values, sequence=begins_with, **fields)})[index]
        if not answer.error_code:
            self.sequences[index] = begins_with + len(values)
        return answer

    def ask(self, batches: dict[int, bytearray], *, transactional_id: str | None = "", acks: int = -1) -> dict[int, Any]:
        """Produces to several partitions."""
        topic = self.caller.broker.topics.find("flights")
        assert topic is not None
        data = [PartitionProduceData(index=index, records=records) for index, records in batches.items()]
        request = ProduceRequest(
            transactional_id=self.transactional_id if transactional_id == "" else transactional_id,
            acks=acks,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name="flights", topic_id=topic.topic_id, partition_data=data)],
        )
        answer = self.caller.ask(request, self.version)
        return {} if answer is None else {each.index: each for each in answer.responses[0].partition_responses}

    def end(self, *, is_commit: bool = True) -> int:
        """Ends the transaction; returns the error code."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=is_commit,
        )
        version = 5 if self.version >= V2 else 3
        answer = self.caller.ask(request, version)
        if version >= 5 and not answer.error_code:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self.sequences = {}
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)
