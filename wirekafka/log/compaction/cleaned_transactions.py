"""Which batches a compaction meets are of aborted transactions, and which markers are of transactions that left nothing.

Theory of operation: the log is read from some offset on, in order. The indexes say where aborted transactions begin, markers
where all end. A batch of a producer whose aborted transaction has begun and not ended is aborted, any other transactional one
is committed, for compaction reads nothing that is undecided. A marker may go once the log was read from the beginning of its
transaction and held nothing of it; one whose data goes only now stays for another round, and so does the entry in the index,
for a reader may be in the midst of that data.

Rules of this file: pure.

Source: kafka.log.CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from wirekafka.log.transaction_index import AbortedTransaction
from wirekafka.wire.batch import BatchHeader
from wirekafka.wire.control import read_end_marker


class _Aborted:
    """An aborted transaction whose beginning was passed.

    Attributes:
        was_met: some batch of it was read.
    """

    __slots__ = ("entry", "was_met")

    def __init__(self, entry: AbortedTransaction) -> None:
        self.entry = entry
        self.was_met = False


class CleanedTransactions:
    """The transactions that are going on where the log is being read.

    Args:
        aborted: those that were aborted and do not end before the first batch that will be read.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the next batch, which is no control batch, is of an aborted transaction."""
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
        """Takes in the next batch, which is a control batch.

        Returns:
            Whether nothing needs it any more; and the aborted transaction that it ends, if some of that was there.
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
