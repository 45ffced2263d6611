"""Property 5: a transaction is all or nothing for consumers of committed records, in all its partitions and with its offsets.

How it works: each observation is evidence that a transaction was committed, or that it was aborted. A transaction with evidence
of both is divided. Evidence of a commit: the answer to its producer, a record that a consumer of committed records got, its
offsets in a group, a marker. Evidence of an abort: the answer, that no commit was ever requested, an acknowledged record that a
consumer of committed records did not get although it read on, a marker.

What is legal although it looks odd: with transactions v1, an EndTxn that arrives late ends a part of the next transaction of the
producer. `Transaction.may_be_ended_late` says so, and such a transaction is not judged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wirekafka.simulation.checker.facts import Facts, Key, Send, Transaction
from wirekafka.simulation.checker.files import Replica
from wirekafka.simulation.checker.occurrences import payload_of
from wirekafka.simulation.checker.violations import Kind, Violation, in_order
from wirekafka.simulation.history import Entry


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What says how a transaction has ended."""

    transaction: Transaction
    is_commit: bool
    text: str
    entry: Entry | None = None
    key: Key | None = None
    offset: int | None = None
    broker_id: int | None = None


def check_transactions(facts: Facts, replicas: Sequence[Replica], *, is_settled: bool) -> Iterator[Violation]:
    """Yields the violations of property 5: at most one of each kind for a transaction."""
    yield from _check_early_reads(facts)
    first: dict[tuple[str, bool], _Evidence] = {}
    divided: set[str] = set()
    for evidence in _find_evidence(facts, replicas, is_settled=is_settled):
        name = evidence.transaction.begun.transaction
        if evidence.transaction.may_be_ended_late:
            continue
        first.setdefault((name, evidence.is_commit), evidence)
        other = first.get((name, not evidence.is_commit))
        if other is not None and name not in divided:
            divided.add(name)
            yield _divided(other, evidence)
    if is_settled:
        yield from _check_ended(facts, replicas)


def _divided(former: _Evidence, evidence: _Evidence) -> Violation:
    transaction = evidence.transaction
    place = evidence if evidence.key is not None else former
    brokers = tuple(each.broker_id for each in (former, evidence) if each.broker_id is not None)
    events = in_order(transaction.entry, transaction.requested, former.entry, evidence.entry)
    subject = f"transaction {transaction.begun.transaction!r} of {transaction.begun.transactional_id!r}"
    return Violation(Kind.TRANSACTION_DIVIDED, place.key, place.offset, former.text, evidence.text, events, brokers, subject)


def _find_evidence(facts: Facts, replicas: Sequence[Replica], *, is_settled: bool) -> Iterator[_Evidence]:
    for transaction in facts.transactions.values():
        if transaction.committed is not None:
            yield _Evidence(transaction, True, "its producer was told that it is committed", transaction.committed)
        if transaction.aborted is not None:
            yield _Evidence(transaction, False, "its producer was told that it is aborted", transaction.aborted)
        if transaction.requested is None:
            yield _Evidence(transaction, False, "its producer never asked for the commit")
    yield from _find_in_reads(facts)
    yield from _find_in_offsets(facts)
    for log in replicas:
        if log.key not in facts.losses:
            yield from _find_in_log(facts, log, log.committed_end(is_settled=is_settled))


def _find_in_reads(facts: Facts) -> Iterator[_Evidence]:
    placed: defaultdict[Key, list[Send]] = defaultdict(list)
    for send in facts.sends.values():
        if send.is_committed and send.offset is not None and send.record.transaction is not None:
            placed[send.key].append(send)
    for key, reads in facts.reads.items():
        if key in facts.losses:
            continue
        sends = sorted(placed[key], key=lambda send: send.offset or 0)
        offsets = [send.offset or 0 for send in sends]
        for entry, read in reads:
            if not read.is_read_committed:
                continue
            own = facts.transaction_of(read.payload)
            if own is not None:
                text = f"{read.consumer} got its record {read.payload!r} at offset {read.offset}"
                yield _Evidence(own, True, text, entry, key, read.offset)
            for send in sends[bisect_left(offsets, read.position) : bisect_left(offsets, read.offset)]:
                skipped = facts.transaction_of(send.record.payload)
                if skipped is not None and not (facts.is_compacted(key) and facts.has_later_record(send)):
                    text = f"{read.consumer} was led past its record {send.record.payload!r} at offset {send.offset}"
                    yield _Evidence(skipped, False, text, entry, key, send.offset)


def _find_in_offsets(facts: Facts) -> Iterator[_Evidence]:
    for entry, read in facts.offset_reads:
        for each in read.offsets:
            commit = None if each.commit is None else facts.commits.get(each.commit)
            if commit is not None and commit.transaction is not None:
                text = f"group {read.group} has its offset {each.offset} of {each.topic}-{each.partition}"
                yield _Evidence(commit.transaction, True, text, entry)


def _find_in_log(facts: Facts, log: Replica, end_offset: int) -> Iterator[_Evidence]:
    for transaction, offset, is_commit in _find_ends(facts, log, end_offset):
        if is_commit is not None:
            text = f"a marker of {'a commit' if is_commit else 'an abort'} follows its record at offset {offset}"
            yield _Evidence(transaction, is_commit, text, None, log.key, offset, log.broker_id)


def _find_ends(facts: Facts, log: Replica, end_offset: int) -> Iterator[tuple[Transaction, int, bool | None]]:
    """Yields the records of transactions: offset, and whether the next marker of their producer commits; None without one.

    The records of one transaction before one marker are yielded once, with the offset of the first.
    """
    open_records: defaultdict[int, dict[str, tuple[Transaction, int]]] = defaultdict(dict)
    for batch in log.batches:
        if batch.base_offset >= end_offset:
            break
        if batch.is_commit is not None:
            for transaction, offset in open_records.pop(batch.producer_id, {}).values():
                yield transaction, offset, batch.is_commit
        elif batch.is_transactional and not batch.is_control:
            for record in batch.records:
                own = facts.transaction_of(payload_of(record))
                if own is not None:
                    open_records[batch.producer_id].setdefault(own.begun.transaction, (own, record.offset))
    for records in open_records.values():
        for transaction, offset in records.values():
            yield transaction, offset, None


def _check_early_reads(facts: Facts) -> Iterator[Violation]:
    reported: set[str] = set()
    for key, reads in facts.reads.items():
        for entry, read in reads:
            transaction = facts.transaction_of(read.payload) if read.is_read_committed else None
            if transaction is None or transaction.may_be_ended_late or transaction.requested is None:
                continue
            name = transaction.begun.transaction
            if entry.order < transaction.requested.order and name not in reported:
                reported.add(name)
                found = f"{read.consumer} got {read.payload!r}"
                events = in_order(transaction.entry, entry, transaction.requested)
                yield Violation(
                    Kind.SHOWN_BEFORE_COMMIT,
                    key,
                    read.offset,
                    "a request to commit first",
                    found,
                    events,
                    (),
                    f"transaction {name!r}",
                )


def _check_ended(facts: Facts, replicas: Sequence[Replica]) -> Iterator[Violation]:
    reported: set[str] = set()
    for log in replicas:
        for transaction, offset, is_commit in _find_ends(facts, log, log.log_end_offset):
            name = transaction.begun.transaction
            if is_commit is not None or transaction.committed is None or transaction.may_be_ended_late or name in reported:
                continue
            reported.add(name)
            events = in_order(transaction.entry, transaction.committed)
            subject = f"transaction {name!r}"
            yield Violation(
                Kind.TRANSACTION_NOT_ENDED, log.key, offset, "a marker after it", "none", events, (log.broker_id,), subject
            )
