"""How the log of __consumer_offsets becomes groups again.

Theory of operation: the topic is compacted, so of each key the last record alone counts, wherever the cleaner has come to; the
last ones are gathered first and replayed in their order, which reads a log of many commits in half the time. Offsets that a
transaction committed, which a folder moved in from Apache Kafka may hold, count from the transaction's commit marker on;
those of an aborted or open one never do.

Rule of this file: a record that cannot be read is told of and skipped, lest one keeps all groups from coming back.

Source: CoordinatorLoaderImpl, OffsetMetadataManager.replayEndTransactionMarker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from wirekafka.coordinator.coordinator import GroupCoordinator
from wirekafka.coordinator.records import decode
from wirekafka.errors import ProtocolError
from wirekafka.wire.batch import BatchHeader, iterate_records

if TYPE_CHECKING:
    from wirekafka.log.log import Log

log = structlog.get_logger(__name__)

COMMIT_MARKER = b"\0\0\0\1"
"""The key of a control record that commits: version 0, type 1 (ControlRecordType)."""


Entry = tuple[bytes | None, bytes | None]


class Loader:
    """Replays partitions into a coordinator."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def load(self, partition_log: Log) -> None:
        """Replays one partition from its start to its end.

        Raises:
            KafkaError: a batch cannot be read.
        """
        latest: dict[bytes | None, bytes | None] = {}
        for key, value in _committed(partition_log):
            latest.pop(key, None)
            latest[key] = value
        skipped = sum(not self._replay(key, value, partition_log) for key, value in latest.items())
        if skipped:
            name = str(partition_log.topic_partition)
            log.warning("Skipped records of kinds of groups that are not served", partition=name, records=skipped)

    def _replay(self, key: bytes | None, value: bytes | None, partition_log: Log) -> bool:
        """Replays a record; False if it is of a kind that is not served."""
        try:
            record = decode(key, value, self._coordinator.decoders)
            if record is not None:
                self._coordinator.replay(record)
        except ProtocolError as error:
            name = str(partition_log.topic_partition)
            log.error("A record of groups and offsets cannot be read", partition=name, key=key, error=str(error))
            return True
        return record is not None


def _committed(partition_log: Log) -> Iterator[Entry]:
    """The records in order; those of a transaction where it committed."""
    open_transactions: dict[int, list[Entry]] = {}
    for batch in partition_log.batches(partition_log.log_start_offset):
        header = BatchHeader(batch)
        for record in iterate_records(batch):
            if header.is_control:
                entries = open_transactions.pop(header.producer_id, [])
                if record.key == COMMIT_MARKER:
                    yield from entries
            elif header.is_transactional:
                open_transactions.setdefault(header.producer_id, []).append((record.key, record.value))
            else:
                yield record.key, record.value
