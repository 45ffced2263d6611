"""The short way through Fetch, for requests that differ in nothing but their offset.

Theory of operation: a consumer of one partition asks again and again in frames that are alike but for correlation id and offset,
and what it is told is alike but for the records, their length and three offsets. So the dispatcher keeps a `FetchShortcut` by the
bytes before the offset, and it steps from the frame to the read to the answer without a message object in between. A broker that
sleeps between two requests has little in its processor's caches, so what counts is how few lines and objects a request touches:
in a real run a fetch takes eight times as long as in a loop (2026-11).

Rules of this file: what may have changed since is looked at each time. Whatever is out of the ordinary goes the ordinary way:
errors, waiting, aborted transactions, another tail. Reading changes nothing, so a read may be done again there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from wirekafka.api.fetch.fetch_pass import FIRST_VERSION_WITH_BATCHES
from wirekafka.api.registry import Call
from wirekafka.api.shortcuts import NO_OFFSETS
from wirekafka.errors import KafkaError
from wirekafka.replication.fetch_sessions import FINAL_EPOCH, NO_SESSION_ID
from wirekafka.wire.codec import Piece, encode, unsigned_varint

if TYPE_CHECKING:
    from wirekafka.api.fetch.messages import FetchRequest
    from wirekafka.metadata.topics import Topic

FIRST_FLEXIBLE_VERSION = 12
FIRST_VERSION_WITH_LOG_START_OFFSET = 5

MARKED_RECORDS = struct.pack(">qqq", *NO_OFFSETS)
"""What stands in an answer where each request has its own records."""

MOST_FRAME_BYTES = 1024
"""The longest request whose like are remembered, tail and all: a rack id may have 32 KiB."""

OFFSET_SIZE = 8
_OFFSET = struct.Struct(">q")


def head_size_of(call: Call[FetchRequest], frame: memoryview) -> int:
    """How many bytes of the frame stand before the offset of its only partition; 0 if its like must go the ordinary way."""
    request = call.request
    if len(frame) > MOST_FRAME_BYTES:
        return 0
    if request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION_ID or call.version < FIRST_VERSION_WITH_BATCHES:
        return 0
    if request.replica_id >= 0 or request.replica_state is not None or request.forgotten_topics_data:
        return 0
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return 0
    is_flexible = call.version >= FIRST_FLEXIBLE_VERSION
    body = encode(request, call.version, is_flexible)
    start = len(frame) - len(body)
    if frame[start:] != body:
        return 0  # Tagged fields that are not known, or bytes behind the body.
    [asked] = request.topics[0].partitions
    offset = asked.fetch_offset
    asked.fetch_offset = ~offset
    other = encode(request, call.version, is_flexible)
    asked.fetch_offset = offset
    return start + next(at for at, (one, another) in enumerate(zip(body, other, strict=True)) if one != another)


class FetchShortcut:
    """What is known of the requests with one head and one tail, and of the answers to them.

    Args:
        head_size: how many bytes stand before the offset.
        tail: the bytes behind the offset.
        version: of the requests.
        find_topic: looks the topic up.
        index: the partition's number.
        leader_epoch: the epoch that the requests name; None if they name none.
        max_bytes: the most bytes that are read, but for the first batch.
        least_bytes: with fewer, the ordinary way is gone, where they may be waited for; at least 1.
        only_stable: for a consumer of committed records only.
        knows_zstd: zstd can be sent.
        answer: a framed answer with `NO_OFFSETS` and `MARKED_RECORDS` in it.
    """

    __slots__ = (
        "_before_offsets", "_behind_offsets", "_behind_records", "_find_topic", "_has_log_start_offset", "_head_size", "_index",
        "_knows_zstd", "_leader_epoch", "_least_bytes", "_max_bytes", "_only_stable", "_pack", "_size", "_tail",
    )  # fmt: skip

    def __init__(
        self,
        head_size: int,
        tail: bytes,
        *,
        version: int,
        find_topic: Callable[[], Topic | None],
        index: int,
        leader_epoch: int | None,
        max_bytes: int,
        least_bytes: int,
        only_stable: bool,
        knows_zstd: bool,
        answer: bytes,
    ) -> None:
        assert least_bytes > 0, "nothing is found where there is no record"
        self._head_size = head_size
        self._tail = tail
        self._find_topic = find_topic
        self._index = index
        self._leader_epoch = leader_epoch
        self._max_bytes = max_bytes
        self._least_bytes = least_bytes
        self._only_stable = only_stable
        self._knows_zstd = knows_zstd
        is_flexible = version >= FIRST_FLEXIBLE_VERSION
        self._has_log_start_offset = version >= FIRST_VERSION_WITH_LOG_START_OFFSET
        offsets = "qqq" if self._has_log_start_offset else "qq"
        offsets_size = struct.calcsize(">" + offsets)
        offsets_at = answer.index(MARKED_RECORDS[:offsets_size])
        records_at = answer.rindex(MARKED_RECORDS)
        length_at = records_at - (1 if is_flexible else 4)
        self._before_offsets = answer[8:offsets_at]
        self._behind_offsets = answer[offsets_at + offsets_size : length_at]
        length = "" if is_flexible else "i"
        layout = struct.Struct(f">ii{len(self._before_offsets)}s{offsets}{len(self._behind_offsets)}s{length}")
        self._pack = layout.pack
        self._behind_records = answer[records_at + len(MARKED_RECORDS) :]
        self._size = layout.size - 4 + len(self._behind_records)

    def fits(self, frame: memoryview) -> bool:
        """See `Shortcut`: it goes by head and tail."""
        return frame[self._head_size + OFFSET_SIZE :] == self._tail

    def answer(self, frame: memoryview, correlation_id: int, now_ms: int) -> list[Piece] | None:
        """Reads, and returns the framed answer in pieces; None if the ordinary way must be gone.

        Args:
            frame: a request with this head, up to its end.
        """
        offset_at = self._head_size
        if frame[offset_at + OFFSET_SIZE :] != self._tail:
            return None
        topic, index = self._find_topic(), self._index
        if topic is None or index >= len(topic.partitions):
            return None
        partition = topic.partitions[index]
        if self._leader_epoch is not None and partition.leader_epoch != self._leader_epoch:
            return None
        log = partition.log
        if not self._knows_zstd and log.config.compression_type == "zstd":
            return None
        (offset,) = _OFFSET.unpack_from(frame, offset_at)
        high_watermark, stable_offset = log.high_watermark, log.last_stable_offset
        if offset == high_watermark:
            return None
        end_offset = stable_offset if self._only_stable else high_watermark
        try:
            records = log.read(offset, max_bytes=self._max_bytes, end_offset=end_offset, min_one_batch=True)
            size = len(records)
            if size < self._least_bytes or (self._only_stable and log.aborted_in_read(offset, size, end_offset)):
                return None
        except KafkaError:
            return None
        before, behind = self._before_offsets, self._behind_offsets
        if self._behind_records:
            length = unsigned_varint(size + 1)
            size += self._size + len(length)
            head = self._pack(size, correlation_id, before, high_watermark, stable_offset, log.log_start_offset, behind)
            return [head + length, records, self._behind_records]
        if not self._has_log_start_offset:
            return [self._pack(self._size + size, correlation_id, before, high_watermark, stable_offset, behind, size), records]
        offsets = high_watermark, stable_offset, log.log_start_offset
        return [self._pack(self._size + size, correlation_id, before, *offsets, behind, size), records]
