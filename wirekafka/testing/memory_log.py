"""The log of a partition in memory, for tests of the code that uses a log: partitions, watchers, fetch sessions.

    partition = Partition("flights", topic_id, 0, MemoryLog(), leader=1)

Each append is one record with any bytes, so a test may append bytes that are not a batch. Nothing is validated, and no
transaction is ever open.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.epochs import LeaderEpochs
from wirekafka.log.producer_state import Producers


class MemoryLog:
    """The part of `Log` that a partition uses. It is its own `reader` and `retention`.

    Attributes:
        records: the appended bytes; the index is the offset.
        appends_again: an append is answered as a duplicate of the first record, and changes nothing.
        offline_reason: why the log cannot be used; None if it can be used. A test sets it.
    """

    def __init__(self, cleanup_policy: str = "delete") -> None:
        self.records: list[bytes] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.epochs = LeaderEpochs()
        self.config = SimpleNamespace(cleanup_policy=frozenset({cleanup_policy}), min_insync_replicas=1)
        self.appends_again = False
        self.offline_reason: str | None = None
        self.producers = Producers(0)
        self.reader = self.retention = self

    @property
    def log_end_offset(self) -> int:
        """One past the last record."""
        return len(self.records)

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, because no transaction is open."""
        return self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Commits the records before `offset`."""
        self.high_watermark = offset

    def size_between(self, offset: int, end_offset: int) -> int:
        """Returns the bytes of the records from `offset` to before `end_offset`."""
        return sum(map(len, self.records[offset:end_offset]))

    def append(self, records: memoryview, *, leader_epoch: int, now_ms: int, origin: Any) -> Any:
        """Appends the bytes as one record; returns its offset as `Log.append` does."""
        if self.appends_again:
            return SimpleNamespace(base_offset=0, last_offset=0, is_duplicate=True)
        self.epochs.assign(leader_epoch, len(self.records))
        self.records.append(bytes(records))
        offset = len(self.records) - 1
        return SimpleNamespace(base_offset=offset, last_offset=offset, is_duplicate=False)

    def read(self, offset: int, *, max_bytes: int, end_offset: int, min_one_batch: bool) -> bytes:
        """Returns whole records from `offset` on.

        Args:
            end_offset: one past the last record that may be returned.
            min_one_batch: the first record is returned even if it is larger than `max_bytes`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
        """
        if not self.log_start_offset <= offset <= end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        found = b""
        for record in self.records[offset:end_offset]:
            if len(found) + len(record) > max_bytes and not (min_one_batch and not found):
                break
            found += record
        return found

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """Returns the greatest epoch up to this one, and its end offset; None if the epoch is not known."""
        return self.epochs.end_offset_of(epoch, self.log_end_offset)

    def delete_records(self, before_offset: int) -> None:
        """Sets the log start offset."""
        self.log_start_offset = before_offset
