"""A transactional producer of raw requests, valid or invalid, with the codecs of kio, an independent codec of Kafka's messages.

Requests are given as plain values: `ask(connection, "end_txn", 5, transactional_id=...)`. A field that the version does not have
is left out, so that one call serves every version of an API.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import time
import types
import typing
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import kio.serial

from compat_tests.harness.raw import RawConnection, frame_of
from compat_tests.harness.waiting import POLL_S
from wirekafka.wire.batch import Record, build_batch

TRANSIENT = {
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_LEADER_OR_FOLLOWER",
}
"""Errors after which clients try again; Apache Kafka names the leader of a new partition shortly before it leads."""

OLD, V2 = "old", "v2"
"""The protocol before transactions v2, and transactions v2 (KIP-890)."""

VERSIONS: dict[str, dict[str, int]] = {
    OLD: {"produce": 11, "init_producer_id": 4, "end_txn": 4, "txn_offset_commit": 4},
    V2: {"produce": 12, "init_producer_id": 5, "end_txn": 5, "txn_offset_commit": 5},
}


def ask(connection: RawConnection, api: str, version: int, **values: object) -> Any:
    """Sends a request; returns the response. Both are kio's entities."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.request")
    name = "".join(word.capitalize() for word in api.split("_"))
    request_type = getattr(module, f"{name}Request")
    out = io.BytesIO()
    kio.serial.entity_writer(request_type)(out, built(request_type, values))
    correlation_id = next(connection.correlation_ids)
    tagged = request_type.__flexible__
    connection.send(frame_of(request_type.__api_key__, version, out.getvalue(), correlation_id, tagged=tagged))
    frame = connection.receive_frame()
    response_type = getattr(importlib.import_module(f"kio.schema.{api}.v{version}.response"), f"{name}Response")
    start = 5 if tagged else 4
    response, size = kio.serial.entity_reader(response_type)(frame, start)
    assert start + size == len(frame)
    return response


def built(cls: Any, values: dict[str, Any]) -> Any:
    """Builds one of kio's entities from plain values, without the fields that this version does not have."""
    hints = typing.get_type_hints(cls)
    given = {}
    for field in dataclasses.fields(cls):
        name = field.name.removeprefix("v3_and_below_")
        if name in values:
            given[field.name] = converted(hints[field.name], values[name])
    return cls(**given)


def converted(hint: Any, value: Any) -> Any:
    """Converts a plain value to the type of the field in kio."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and value is not None:
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if typing.get_origin(hint) is tuple:
        return tuple(converted(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint):
        return built(hint, value)
    if isinstance(hint, type) and issubclass(hint, timedelta):
        return timedelta(milliseconds=value)
    return value


def topic_id_of(connection: RawConnection, topic: str) -> Any:
    """Returns the id of a topic."""
    asked = [{"topic_id": None, "name": topic}]
    answer = ask(connection, "metadata", 12, topics=asked, allow_auto_topic_creation=False)
    return answer.topics[0].topic_id


def served(connection: RawConnection) -> dict[int, int]:
    """Returns the newest version that the broker serves, by API key."""
    return {each.api_key: each.max_version for each in ask(connection, "api_versions", 0).api_keys}


def name_of(code: Any) -> str:
    """Returns Kafka's name of an error code."""
    return code.name.upper()


class RawProducer:
    """A transactional producer that sends exactly the requests of the test. Its methods return the name of the error code.

    Attributes:
        producer_id, epoch: from the broker; a test may change them.
        sequences: by partition, the sequence number of the next record.
    """

    def __init__(self, connection: RawConnection, transactional_id: str, protocol: str) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.versions = dict(VERSIONS[protocol])
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def _ask(self, api: str, version: int, code_of: Callable[[Any], Any], values: dict[str, Any]) -> tuple[str, Any]:
        """Repeats a request while its error is retriable; returns the name of the error code, and the response."""
        own = {"transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        deadline = time.monotonic() + 20
        while True:
            answer = ask(self.connection, api, self.versions.get(api, version), **{**own, **values})
            code = name_of(code_of(answer))
            if code not in TRANSIENT or time.monotonic() > deadline:
                return code, answer
            time.sleep(POLL_S)

    def init(self, timeout_ms: int = 60_000, *, keeps_id: bool = False, **values: Any) -> str:
        """Sends InitProducerId; with `keeps_id` the request has the producer's id and epoch (KIP-360)."""
        own = {} if keeps_id else {"producer_id": -1, "producer_epoch": -1}
        values = {"transaction_timeout": timeout_ms, **own, **values}
        code, answer = self._ask("init_producer_id", 5, lambda answer: answer.error_code, values)
        if code == "NONE":
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return code

    def add(self, topic: str, partitions: Iterable[int] = (0,), **values: Any) -> str:
        """Sends AddPartitionsToTxn; returns the errors of the partitions in order, separated by spaces."""
        own = {"transactional_id": self.transactional_id, "producer_id": self.producer_id, "producer_epoch": self.epoch}
        values = {"topics": [{"name": topic, "partitions": list(partitions)}], **own, **values}

        def results(answer: Any) -> Any:
            if hasattr(answer, "results_by_topic_v3_and_below"):
                return answer.results_by_topic_v3_and_below[0].results_by_partition
            return answer.results_by_transaction[0].topic_results[0].results_by_partition

        def first_code(answer: Any) -> Any:
            return results(answer)[0].partition_error_code

        _, answer = self._ask("add_partitions_to_txn", 3, first_code, {"transactions": [values], **values})
        ordered = sorted(results(answer), key=lambda result: result.partition_index)
        return " ".join(name_of(result.partition_error_code) for result in ordered)

    def produce(self, topic: str, *words: str, partition: int = 0, timestamp_ms: int | None = None, **values: Any) -> str:
        """Sends Produce of one batch; the arguments of `build_batch` about the producer may be overridden."""
        place = (topic, partition)
        timestamp_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        records = [Record(value=word.encode(), timestamp=timestamp_ms) for word in words or ("word",)]
        batch_values: dict[str, Any] = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "is_transactional": True}
        batch_values["base_sequence"] = self.sequences.get(place, 0)
        for name in (*batch_values, "is_control"):
            if name in values:
                batch_values[name] = values.pop(name)
        data = {"name": topic, "partition_data": [{"index": partition, "records": bytes(build_batch(records, **batch_values))}]}
        if self.versions["produce"] >= 13:
            data["topic_id"] = topic_id_of(self.connection, topic)
        values = {"acks": -1, "timeout": 10_000, "topic_data": [data], **values}
        code, _ = self._ask("produce", 12, lambda answer: answer.responses[0].partition_responses[0].error_code, values)
        if code == "NONE":
            self.sequences[place] = self.sequences.get(place, 0) + len(records)
        return code

    def add_offsets(self, group: str, **values: Any) -> str:
        """Sends AddOffsetsToTxn."""
        return self._ask("add_offsets_to_txn", 3, lambda answer: answer.error_code, {"group_id": group, **values})[0]

    def commit_offsets(
        self, group: str, topic: str, offset: int, *, partition: int = 0, metadata: str = "", **values: Any
    ) -> str:
        """Sends TxnOffsetCommit of one offset."""
        place = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        values = {"group_id": group, "topics": [{"name": topic, "partitions": [place]}], **values}
        return self._ask("txn_offset_commit", 5, lambda answer: answer.topics[0].partitions[0].error_code, values)[0]

    def end(self, *, is_commit: bool, **values: Any) -> str:
        """Sends EndTxn; in transactions v2 the response has the producer id and epoch for the next transaction."""
        code, answer = self._ask("end_txn", 5, lambda answer: answer.error_code, {"committed": is_commit, **values})
        if code == "NONE" and self.versions["end_txn"] >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return code

    def commit(self, **values: Any) -> str:
        return self.end(is_commit=True, **values)

    def abort(self, **values: Any) -> str:
        return self.end(is_commit=False, **values)
