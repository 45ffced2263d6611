"""How the log of __consumer_offsets becomes groups again.

Theory of operation: records are replayed in their order. Offsets that a transaction committed, which a folder moved in from
Apache Kafka may hold, count from the transaction's commit marker on; those of an aborted or open one never do.

Rule of this file: a record that cannot be read is told of and skipped, lest one keeps all groups from coming back.

Source: CoordinatorLoaderImpl, OffsetMetadataManager.replayEndTransactionMarker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.coordinator import GroupCoordinator
from wirekafka.coordinator.records import CoordinatorRecord, decode
from wirekafka.errors import ProtocolError
from wirekafka.wire.batch import BatchHeader, Record, iterate_records

if TYPE_CHECKING:
    from wirekafka.log.log import Log

log = structlog.get_logger(__name__)

COMMIT_MARKER = b"\0\0\0\1"
"""The key of a control record that commits: version 0, type 1 (ControlRecordType)."""


class Loader:
    """Replays partitions into a coordinator."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def load(self, partition_log: Log) -> None:
        """Replays one partition from its start to its end.

        Raises:
            KafkaError: a batch cannot be read.
        """
        open_transactions: dict[int, list[CoordinatorRecord]] = {}
        skipped = 0
        for batch in partition_log.batches(partition_log.log_start_offset):
            header = BatchHeader(batch)
            for record in iterate_records(batch):
                if header.is_control:
                    pending = open_transactions.pop(header.producer_id, [])
                    if record.key == COMMIT_MARKER:
                        for committed in pending:
                            self._coordinator.replay(committed)
                    continue
                read = self._read(record)
                if read is None:
                    skipped += 1
                elif header.is_transactional:
                    open_transactions.setdefault(header.producer_id, []).append(read)
                else:
                    self._replay(read)
        if skipped:
            log.warning(
                "Skipped records of kinds of groups that are not served", log=str(partition_log.topic_partition), records=skipped
            )

    def _read(self, record: Record) -> CoordinatorRecord | None:
        try:
            return decode(record.key, record.value)
        except ProtocolError as error:
            log.error("A record of __consumer_offsets cannot be read", offset=record.offset, error=str(error))
            return None

    def _replay(self, record: CoordinatorRecord) -> None:
        try:
            self._coordinator.replay(record)
        except ProtocolError as error:
            log.error("A group cannot be as its record says", group=record.group_id, error=str(error))
