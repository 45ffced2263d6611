"""Property 1: an acknowledged record is at its offset in every later read, and in the logs at the end.

How it works: each log is compared with the acknowledgements of its partition. If a consumer gets a record after a gap, the
broker says that the gap is empty, so no acknowledged record may be in the gap.

What explains an absent record: the log start is after it, compaction found a later record with its key, or its transaction is not
committed and the consumer reads only committed records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from wirekafka.simulation.checker.facts import Facts, Key, Send
from wirekafka.simulation.checker.files import Replica
from wirekafka.simulation.checker.occurrences import data_records, payload_of, written_keys
from wirekafka.simulation.checker.violations import Kind, Violation, in_order
from wirekafka.simulation.history import Entry, RecordRead


def check_acknowledged(facts: Facts, replicas: Sequence[Replica], *, is_settled: bool) -> Iterator[Violation]:
    """Yields the violations of property 1. At most one is reported for a record in a log, and for a record in all reads."""
    committed: defaultdict[Key, list[Send]] = defaultdict(list)
    for send in facts.sends.values():
        if send.is_committed and send.key not in facts.losses:
            committed[send.key].append(send)
    for key, sends in committed.items():
        logs = [replica for replica in replicas if replica.key == key]
        yield from _check_logs(facts, sends, logs, is_settled=is_settled)
        yield from _check_reads(facts, sends, facts.reads.get(key, []))
    yield from _check_log_starts(facts, replicas)


def _check_logs(facts: Facts, sends: Sequence[Send], logs: Sequence[Replica], *, is_settled: bool) -> Iterator[Violation]:
    """Compares logs with acknowledgements.

    If the brokers were not in sync at the end, a log must have the records before its own high watermark, and each record must be
    in one log at least.
    """
    somewhere: set[str] = set()
    for log in logs:
        contents = _Contents(facts, log)
        end_offset = log.committed_end(is_settled=is_settled)
        for send in sends:
            found = contents.find(send)
            if found is None:
                somewhere.add(send.record.payload)
            elif send.offset is None or send.offset < end_offset or is_settled:
                somewhere.add(send.record.payload)
                yield _missing(send, found, (log.broker_id,))
    for send in sends:
        if logs and send.record.payload not in somewhere:
            yield _missing(send, "no log has it", tuple(log.broker_id for log in logs))


def _missing(send: Send, found: str, brokers: tuple[int, ...]) -> Violation:
    events = in_order(send.entry, send.acknowledged)
    return Violation(Kind.RECORD_MISSING, send.key, send.offset, repr(send.record.payload), found, events, brokers)


class _Contents:
    """The records of one log, by their offsets."""

    def __init__(self, facts: Facts, log: Replica) -> None:
        self._log = log
        self._payloads = {record.offset: payload_of(record) for record in data_records(log)}
        self._anywhere: set[str] | None = None
        self._is_compacted = facts.is_compacted(log.key)
        self._last_offsets: dict[str, int] = {}
        if self._is_compacted:
            self._note_last_offsets(facts)

    def _note_last_offsets(self, facts: Facts) -> None:
        for record in data_records(self._log):
            transaction = facts.transaction_of(payload_of(record))
            if record.key is not None and (transaction is None or transaction.aborted is None):
                self._last_offsets[record.key.decode(errors="backslashreplace")] = record.offset

    def find(self, send: Send) -> str | None:
        """Returns what the log has in place of a record; None if it has the record, or may lack it."""
        if send.offset is None:
            return self._find_anywhere(send)
        found = self._payloads.get(send.offset)
        if found == send.record.payload or send.offset < self._log.log_start_offset:
            return None
        if found is None and self._is_compacted and self._last_offsets.get(send.record.key or "", -1) > send.offset:
            return None
        if send.offset >= self._log.log_end_offset:
            reason = "" if self._log.unsound is None else f": {self._log.unsound}"
            return f"the log ends at {self._log.log_end_offset}{reason}"
        return "nothing" if found is None else repr(found)

    def _find_anywhere(self, send: Send) -> str | None:
        if self._is_compacted or self._log.log_start_offset:
            return None
        if self._anywhere is None:
            self._anywhere = set(self._payloads.values())
        return None if send.record.payload in self._anywhere else "the log does not have it"


def _check_reads(facts: Facts, sends: Sequence[Send], reads: Sequence[tuple[Entry, RecordRead]]) -> Iterator[Violation]:
    placed = sorted((send for send in sends if send.offset is not None), key=lambda send: send.offset or 0)
    offsets = [send.offset or 0 for send in placed]
    reported: set[str] = set()
    for entry, read in reads:
        if read.position >= read.offset:
            continue
        for send in placed[bisect_left(offsets, read.position) : bisect_left(offsets, read.offset)]:
            if send.record.payload not in reported and not _may_be_skipped(facts, send, read):
                reported.add(send.record.payload)
                found = f"{read.consumer} got offset {read.offset} at position {read.position}"
                events = in_order(send.entry, send.acknowledged, entry)
                yield Violation(Kind.RECORD_SKIPPED, send.key, send.offset, repr(send.record.payload), found, events)


def _may_be_skipped(facts: Facts, send: Send, read: RecordRead) -> bool:
    # Property 5 checks committed transactions: a gap in one means that it was aborted.
    if read.is_read_committed and send.record.transaction is not None:
        return True
    return facts.is_compacted(send.key) and facts.has_later_record(send)


def _check_log_starts(facts: Facts, replicas: Sequence[Replica]) -> Iterator[Violation]:
    written = written_keys(facts)
    for log in replicas:
        topic = facts.topics.get(log.topic)
        if log.key not in written or log.key in facts.losses or (topic is not None and topic.has_retention):
            continue
        if log.log_start_offset > facts.log_starts[log.key]:
            expected, found = f"a start up to {facts.log_starts[log.key]}", f"it starts at {log.log_start_offset}"
            yield Violation(Kind.LOG_START_MOVED, log.key, log.log_start_offset, expected, found, brokers=(log.broker_id,))
