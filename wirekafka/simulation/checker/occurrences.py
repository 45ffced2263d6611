"""The places where records are known to be committed: acknowledged with acks=all, read by a consumer, or in a log.

Rules of this file: a record that a consumer got is committed, whatever its isolation level: brokers show nothing after the high
watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wirekafka.simulation.checker.facts import Facts, Key
from wirekafka.simulation.checker.files import Record, Replica
from wirekafka.simulation.history import Entry


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A record at an offset.

    Attributes:
        entry: of the acknowledgement or the read; None for a record in a log.
        broker_id: of the log.
    """

    key: Key
    offset: int
    payload: str
    entry: Entry | None = None
    broker_id: int | None = None

    def __str__(self) -> str:
        if self.entry is None:
            return f"{self.payload!r} in the log of broker {self.broker_id}"
        return f"{self.payload!r}, {type(self.entry.event).__name__} at {self.entry.order}"


def find_occurrences(facts: Facts, replicas: Sequence[Replica], *, is_settled: bool) -> Iterator[Occurrence]:
    """Yields the committed records: acknowledgements, reads, then logs. Partitions that may lose records are left out."""
    for send in facts.sends.values():
        if send.is_committed and send.offset is not None and send.key not in facts.losses:
            yield Occurrence(send.key, send.offset, send.record.payload, send.acknowledged)
    for key, reads in facts.reads.items():
        if key not in facts.losses:
            for entry, read in reads:
                yield Occurrence(key, read.offset, read.payload, entry)
    written = written_keys(facts)
    for replica in replicas:
        if replica.key in written - facts.losses:
            end_offset = replica.committed_end(is_settled=is_settled)
            for record in data_records(replica):
                if record.offset < end_offset:
                    yield Occurrence(replica.key, record.offset, payload_of(record), None, replica.broker_id)


def written_keys(facts: Facts) -> set[Key]:
    """Returns the partitions to which the clients of the history have written; others belong to the brokers."""
    return {send.key for send in facts.sends.values()}


def data_records(replica: Replica) -> Iterator[Record]:
    """Yields the records of a log after its start, without markers."""
    for batch in replica.batches:
        if not batch.is_control:
            for record in batch.records:
                if record.offset >= replica.log_start_offset:
                    yield record


def payload_of(record: Record) -> str:
    """Returns the value of a record as a payload of the history."""
    return "" if record.value is None else record.value.decode(errors="backslashreplace")
