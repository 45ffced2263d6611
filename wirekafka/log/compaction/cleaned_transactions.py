"""The transactions of a compaction: which batches are aborted, and which markers belong to transactions without records.

How it works: a compaction reads the log in order from some offset on. The transaction indexes give the first offsets of
aborted transactions; a marker ends a transaction. A transactional batch is aborted if an aborted transaction of its producer has
begun and not ended. Every other transactional batch is committed, because a compaction does not read open transactions. A marker
may be dropped if the compaction has read the whole range of its transaction and found no batch of it. If this compaction drops
the batches of the transaction, the marker and the entry of the index stay for another round, because a consumer may be reading
those batches.

Rules of this file: pure.

Source: kafka.log.CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.wire.batch import BatchHeader
from wirekafka.wire.control import read_end_marker


class _Aborted:
    """An aborted transaction that has begun and not ended at the current offset.

    Attributes:
        was_met: the compaction has read a batch of the transaction.
    """

    __slots__ = ("entry", "was_met")

    def __init__(self, entry: AbortedTransaction) -> None:
        self.entry = entry
        self.was_met = False


class CleanedTransactions:
    """The transactions that are open at the offset that the compaction reads.

    Args:
        aborted: the aborted transactions that do not end before the first batch that the compaction reads.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Returns whether the next batch, which is not a control batch, belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.was_met = True
        return True

    def end(self, header: BatchHeader, data: memoryview) -> tuple[bool, AbortedTransaction | None]:
        """Ends the transaction of the next batch, which is a control batch.

        Returns:
            Whether the marker may be dropped; and the aborted transaction that the marker ends, if a batch of it was read.
        """
        if not header.record_count:
            return True, None
        self._begin_up_to(header.last_offset)
        marker = read_end_marker(data)
        if marker is None:
            return False, None
        if marker.is_commit:
            has_data = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not has_data, None
        aborted = self._aborted.pop(header.producer_id, None)
        return (False, aborted.entry) if aborted is not None and aborted.was_met else (True, None)

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborted.setdefault(entry.producer_id, _Aborted(entry))
