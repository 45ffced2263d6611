"""How the log of __consumer_offsets becomes groups again.

Theory of operation: the topic is compacted, so of each key the last record alone counts, wherever the cleaner has come to; the
last ones are gathered first and replayed in their order, which reads a log of many commits in half the time. Offsets that a
transaction committed count from the transaction's commit marker on, unless a later record says otherwise; those of an aborted
one never do; those of an open one are pending, and the producer's transaction goes on.

Rule of this file: a record that cannot be read is told of and skipped, lest one keeps all groups from coming back.

Source: CoordinatorLoaderImpl, OffsetMetadataManager.replayEndTransactionMarker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog

from wirekafka.coordinator.groups.coordinator import GroupCoordinator
from wirekafka.coordinator.groups.records import decode
from wirekafka.errors import ProtocolError
from wirekafka.wire.batch import BatchHeader, Record, iterate_records

if TYPE_CHECKING:
    from wirekafka.log.log import Log

log = structlog.get_logger(__name__)

COMMIT_MARKER = b"\0\0\0\1"
"""The key of a control record that commits: version 0, type 1 (ControlRecordType)."""


class _Entry(NamedTuple):
    value: bytes | None
    offset: int


Entries = dict[bytes | None, _Entry]
"""The last record of each key, in the order of the log."""


class Loader:
    """Replays partitions into a coordinator."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def load(self, partition_log: Log) -> None:
        """Replays one partition from its start to its end.

        Raises:
            KafkaError: a batch cannot be read.
        """
        gathered = _Gathered()
        for batch in partition_log.batches(partition_log.log_start_offset):
            header = BatchHeader(batch)
            for record in iterate_records(batch):
                gathered.add(header, record)
        skipped = self._replay(gathered.latest, None, partition_log)
        for producer_id, entries in gathered.open_transactions.items():
            skipped += self._replay(entries, producer_id, partition_log)
        if skipped:
            name = str(partition_log.topic_partition)
            log.warning("Skipped records of kinds of groups that are not served", partition=name, records=skipped)

    def _replay(self, entries: Entries, producer_id: int | None, partition_log: Log) -> int:
        """Replays records; returns how many are of a kind that is not served."""
        replay, decoders, skipped = self._coordinator.replay, self._coordinator.decoders, 0
        for key, (value, offset) in entries.items():
            try:
                record = decode(key, value, decoders)
                if record is None:
                    skipped += 1
                else:
                    replay(record, offset, producer_id)
            except ProtocolError as error:
                name = str(partition_log.topic_partition)
                log.error("A record of groups and offsets cannot be read", partition=name, key=key, error=str(error))
        return skipped


class _Gathered:
    """What a log says, so far.

    Attributes:
        latest: what counts.
        open_transactions: what may come to count, by the producer's id.
    """

    def __init__(self) -> None:
        self.latest: Entries = {}
        self.open_transactions: dict[int, Entries] = {}

    def add(self, header: BatchHeader, record: Record) -> None:
        """Takes in the next record of the log, from the batch of that header."""
        if header.is_control:
            self._end_transaction(header.producer_id, record.key == COMMIT_MARKER)
        elif header.is_transactional:
            entries = self.open_transactions.setdefault(header.producer_id, {})
            entries[record.key] = _Entry(record.value, record.offset)
        else:
            self.latest.pop(record.key, None)
            self.latest[record.key] = _Entry(record.value, record.offset)
            if record.value is None and self.open_transactions:
                for entries in self.open_transactions.values():
                    entries.pop(record.key, None)

    def _end_transaction(self, producer_id: int, is_commit: bool) -> None:
        entries = self.open_transactions.pop(producer_id, {})
        if not is_commit:
            return
        for key, entry in entries.items():
            known = self.latest.get(key)
            if known is None or known.offset < entry.offset:
                self.latest.pop(key, None)
                self.latest[key] = entry
