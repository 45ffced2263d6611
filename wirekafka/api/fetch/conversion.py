"""Down-conversion: converts the batches of the log to message sets, for Fetch requests of versions 0 to 3.

How it works: a few small records are converted at once. If the records are many, or compressed and large, a worker's thread reads
and converts them, one partition after the other, and the response waits for the conversions.

Source: KafkaApis.handleFetchRequest (maybeConvertFetchedData); org.apache.kafka.common.record.LazyDownConversionRecords.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wirekafka.api.fetch.one_partition import Reply
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import log_once
from wirekafka.log.validation import MOST_CONTENT_LIMIT_BYTES
from wirekafka.pending import Pending
from wirekafka.wire.batch import whole_batches
from wirekafka.wire.legacy import down_convert
from wirekafka.wire.messages.fetch import FetchResponse
from wirekafka.workers import Job, rest

if TYPE_CHECKING:
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.replication.fetch_sessions import Asked
    from wirekafka.wire.messages.fetch import FetchRequest, PartitionData

FIRST_VERSION_WITH_MAGIC_1 = 2
FIRST_VERSION_WITH_WHOLE_BATCH = 3
FIRST_VERSION_WITH_BATCHES = 4

SECONDS_ON_LOOP = 0.01
"""The seconds that one request converts on the loop. Workers convert its further partitions."""
LIGHT_BYTES = 16 * 1024
LIGHT_RECORDS = 500
LIGHT_CONTENT_BYTES = 64 * 1024
"""The most bytes of a partition that the loop converts, in 5 ms."""


def convert(broker: Broker, call: Call[FetchRequest], response: Reply) -> Reply:
    """Returns the response with message sets, for a version before 4, or a Pending of it."""
    if isinstance(response, Pending):
        return response.map(lambda reply: reply if isinstance(reply, Exception) else convert(broker, call, reply))
    assert isinstance(response, FetchResponse), "responses of these versions are not encoded yet"
    if response.error_code:
        return response
    conversions = Conversions(broker, call.version)
    for topic, answer in zip(call.request.topics, response.responses, strict=True):
        for asked, data in zip(topic.partitions, answer.partitions, strict=True):
            conversions.add(data, asked)
    return conversions.answer(response)


@dataclass(slots=True)
class _Waiting:
    """A partition whose records are still batches in `data.records`."""

    data: PartitionData
    asked: Asked


class Conversions:
    """The conversions for one Fetch.

    A request may name one partition thousands of times, and converted records may take much more than stored ones. So once
    `fetch.max.bytes` are converted, the remaining partitions are answered without records, and the client fetches them again.
    """

    def __init__(self, broker: Broker, version: int) -> None:
        self._broker = broker
        self._version = version
        self._left_bytes = broker.config.integer("fetch.max.bytes")
        self._waiting: deque[_Waiting] = deque()
        self._job: Job | None = None

    def add(self, data: PartitionData, asked: Asked) -> None:
        """Adds a partition whose records must be converted."""
        if len(data.records):
            self._waiting.append(_Waiting(data, asked))

    def answer(self, response: FetchResponse) -> FetchResponse | Pending[Any]:
        """Returns the response, or a Pending of it until all records are converted."""
        end = perf_counter() + SECONDS_ON_LOOP
        while self._waiting and perf_counter() < end:
            found = self._convert_light(self._waiting[0])
            if found is None:
                break
            self._take(found)
        if not self._waiting:
            return response
        pending: Pending[Any] = Pending(on_abandon=self._abandon)
        self._convert_next(pending, response)
        return pending

    def _take(self, found: bytes | KafkaError) -> None:
        """Puts the message set of the first waiting partition, or its error, into the partition's answer."""
        data = self._waiting.popleft().data
        if isinstance(found, KafkaError):
            data.error_code, data.high_watermark, data.records = found.code, -1, b""
            return
        data.records = found
        self._left_bytes -= len(found)
        if self._left_bytes <= 0:
            while self._waiting:
                self._waiting.popleft().data.records = b""

    def _convert_light(self, waiting: _Waiting) -> bytes | KafkaError | None:
        """Returns the argument for `_take`; None if the conversion needs a thread."""
        records = waiting.data.records
        if len(records) > LIGHT_BYTES:
            return None
        batches = records if isinstance(records, bytes) else records.read()
        if sum(header.record_count for header, _ in whole_batches(batches)) > LIGHT_RECORDS:
            return None
        try:
            return self._convert(batches, waiting.asked, LIGHT_CONTENT_BYTES)
        except KafkaError as error:
            return None if error.code is ErrorCode.MESSAGE_TOO_LARGE else error

    def _convert(self, batches: bytes, asked: Asked, content_limit_bytes: int) -> bytes:
        """Returns batches in the format of a client from before 2017; they may have fewer bytes than the client asked for.

        Up to version 2 the bytes end at the limit, if necessary within a message. A client that gets no whole message fetches
        more bytes.

        Raises:
            KafkaError: as `down_convert`.
        """
        messages = down_convert(
            batches,
            1 if self._version >= FIRST_VERSION_WITH_MAGIC_1 else 0,
            asked.fetch_offset,
            limit_bytes=max(1, asked.partition_max_bytes),
            content_limit_bytes=content_limit_bytes,
            rest=rest,
        )
        if self._version < FIRST_VERSION_WITH_WHOLE_BATCH:
            return messages[: max(0, asked.partition_max_bytes)]
        return messages

    def _convert_next(self, pending: Pending[Any], response: FetchResponse) -> None:
        if not self._waiting:
            pending.complete(response)
            return
        waiting = self._waiting[0]
        records = waiting.data.records

        def work() -> bytes:
            batches = records if isinstance(records, bytes) else records.read()
            return self._convert(batches, waiting.asked, MOST_CONTENT_LIMIT_BYTES)

        self._job = self._broker.workers.submit(work, partial(self._converted, pending, response))

    def _converted(self, pending: Pending[Any], response: FetchResponse, found: bytes | BaseException) -> None:
        if isinstance(found, BaseException) and not isinstance(found, KafkaError):
            log_once(found, "A conversion of records for an old client failed")
            found = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        self._take(found)
        self._convert_next(pending, response)

    def _abandon(self) -> None:
        self._waiting.clear()
        if self._job is not None:
            self._job.cancel()
