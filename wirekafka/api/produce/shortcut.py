"""The shortcut for Produce requests that differ only in their batch.

How it works: a producer sends one batch for one partition again and again. Except for the correlation id, its frames are equal up
to the length of the batch, and its responses differ in three numbers. So the dispatcher keeps a `ProduceShortcut` by these bytes.
It goes from the frame to the append to the response without a message object, which takes a third off the time of a request
(2026-11).

Rules of this file: everything that depends on the batch, or may have changed since, is checked each time. If anything is unusual,
the shortcut falls back to the handler before it changes anything. A batch that the log refuses is answered as by the handler.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from wirekafka.api.produce.produce_pass import answer_of, failure_of, unexpected_failure
from wirekafka.api.produce.rules import (
    ACKS_ALL,
    FIRST_VERSION_WITH_TAGS,
    FIRST_VERSION_WITH_ZSTD,
    FLAGS_AT,
    WRITE,
)
from wirekafka.api.registry import Call, Client
from wirekafka.api.told_errors import tell_refused_batch
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.validation import HeavyBatchError
from wirekafka.metadata.operations import Resource
from wirekafka.names import NO_TIMESTAMP
from wirekafka.pending import Pending
from wirekafka.replication.delayed_produce import Appended, DelayedProduce
from wirekafka.wire.batch import HEADER_SIZE, MAGIC, MAGIC_OFFSET, TRANSACTIONAL_MASK
from wirekafka.wire.codec import read_unsigned_varint, unsigned_varint

if TYPE_CHECKING:
    from wirekafka.api.produce.messages import PartitionProduceResponse, ProduceRequest
    from wirekafka.broker import Broker
    from wirekafka.log.context import AppendInfo
    from wirekafka.replication.partition import Partition

NO_OFFSETS = (-0x5A5A5A5A5A5A5A5B,) * 3
"""The values in a framed response that are replaced by the three numbers of each request. The name of a topic cannot contain
these bytes, and a topic id is too short for them."""

_OFFSETS = struct.Struct(">qqq")
_INT32 = struct.Struct(">i")
_CORRELATION_ID_AT = 4
_NO_TAGS = bytes(3)
"""The bytes after the batch in a flexible version: the empty tagged fields of the partition, the topic and the request."""


def head_size_of(call: Call[ProduceRequest], frame: memoryview) -> int:
    """Returns the number of bytes before the length of the frame's only batch; 0 if such requests must use the handler."""
    request = call.request
    if request.acks not in (1, ACKS_ALL) or request.transactional_id is not None or call.version < FIRST_VERSION_WITH_ZSTD:
        return 0
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return 0
    records = request.topic_data[0].partition_data[0].records
    if not records:
        return 0
    is_flexible = call.version >= FIRST_VERSION_WITH_TAGS
    length = unsigned_varint(len(records) + 1) if is_flexible else _INT32.pack(len(records))
    head_size = len(frame) - len(length) - len(records) - (len(_NO_TAGS) if is_flexible else 0)
    return head_size if frame[head_size : head_size + len(length)] == length else 0


class ProduceShortcut:
    """The requests with one head, and their responses.

    Args:
        head_size: the number of bytes before the batch's length.
        is_flexible: the length is a varint, and tagged fields follow the batch.
        is_acks_all: enough replicas must be in sync.
        client_id: of the requests.
        resource: the topic, as the resource that the client needs permission for; it is not internal.
        topic: the topic's name, or its id as bytes, as in the requests.
        index: the partition's index.
        timeout_ms: how long a request waits for the commit of its batch, with acks=all.
        success: a framed response with `NO_OFFSETS`.
        frame_answer: frames an answer for the partition, with a correlation id.
    """

    __slots__ = (
        "_answer",
        "_broker",
        "_client_id",
        "_frame_answer",
        "_head_size",
        "_index",
        "_is_acks_all",
        "_is_flexible",
        "_offsets_at",
        "_resource",
        "_timeout_ms",
        "_topic",
    )

    def __init__(
        self,
        head_size: int,
        *,
        is_flexible: bool,
        is_acks_all: bool,
        broker: Broker,
        client_id: str | None,
        resource: Resource,
        topic: str | bytes,
        index: int,
        timeout_ms: int,
        success: bytes,
        frame_answer: Callable[[int, PartitionProduceResponse], bytes],
    ) -> None:
        self._head_size = head_size
        self._is_flexible = is_flexible
        self._is_acks_all = is_acks_all
        self._broker = broker
        self._client_id = client_id
        self._resource = resource
        self._topic = topic
        self._index = index
        self._timeout_ms = timeout_ms
        self._answer = bytearray(success)
        self._offsets_at = success.index(_OFFSETS.pack(*NO_OFFSETS))
        self._frame_answer = frame_answer

    def answer(self, client: Client, frame: memoryview, correlation_id: int, now_ms: int) -> bytes | Pending[bytes] | None:
        """Appends the batch and returns the framed response. None means that the handler must answer; nothing has changed then.

        Args:
            frame: the whole frame of a request with this head.
        """
        start, end = self._head_size, len(frame)
        if end < start + HEADER_SIZE:
            return None
        if self._is_flexible:
            size, start = read_unsigned_varint(frame, start, end)
            stop = start + size - 1
            if frame[stop:] != _NO_TAGS:
                return None
        else:
            start += 4
            stop = start + _INT32.unpack_from(frame, start - 4)[0]
            if stop != end:
                return None
        records = frame[start:stop]
        if len(records) < HEADER_SIZE or records[MAGIC_OFFSET] != MAGIC or records[FLAGS_AT] & TRANSACTIONAL_MASK:
            return None
        try:
            client.authorize(WRITE, self._resource)
            partition = self._broker.find_partition(self._topic, self._index)
        except KafkaError:
            return None
        if self._is_acks_all and not partition.has_enough_in_sync_replicas:
            return None
        log_start_offset = partition.log.log_start_offset
        try:
            info = partition.append(records, now_ms=now_ms)
        except HeavyBatchError:
            return None
        except KafkaError as error:
            return self._refuse(client, correlation_id, error, log_start_offset)
        except Exception as error:  # noqa: BLE001 - the handler answers it too, and the connection goes on
            failure = unexpected_failure(error, self._topic, self._index)
            return self._frame_answer(correlation_id, failure_of(self._index, failure, log_start_offset))
        answer, append_time_ms = self._answer, info.log_append_time_ms
        _INT32.pack_into(answer, _CORRELATION_ID_AT, correlation_id)
        _OFFSETS.pack_into(
            answer,
            self._offsets_at,
            info.base_offset,
            NO_TIMESTAMP if append_time_ms is None else append_time_ms,
            info.log_start_offset,
        )
        if self._is_acks_all and not partition.is_sole_replica and info.last_offset >= partition.log.high_watermark:
            return self._answer_on_commit(partition, info, correlation_id, bytes(answer))
        return bytes(answer)

    def _refuse(self, client: Client, correlation_id: int, error: KafkaError, log_start_offset: int) -> bytes:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            tell_refused_batch(self._broker, client, self._client_id, self._topic, self._index, error)
        return self._frame_answer(correlation_id, failure_of(self._index, error, log_start_offset))

    def _answer_on_commit(self, partition: Partition, info: AppendInfo, correlation_id: int, success: bytes) -> Pending[bytes]:
        failures: list[ErrorCode] = []

        def answer() -> bytes:
            if not failures:
                return success
            response = answer_of(self._index, info)
            response.error_code = failures[0]
            return self._frame_answer(correlation_id, response)

        delayed = DelayedProduce(self._broker.clock, timeout_ms=self._timeout_ms, answer=answer)
        delayed.wait_for([Appended(partition, info.last_offset + 1, failures.append)])
        return delayed.pending
