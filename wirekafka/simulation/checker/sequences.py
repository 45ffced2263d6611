"""Property 4: the sequence numbers of a producer epoch have no gap and no repetition in a log.

What is legal although it looks odd: a producer without state in a partition may begin with any sequence (ProducerAppendInfo), and
begins each later epoch with 0. Sequences continue with 0 after 2,147,483,647. Compaction removes batches, so that a compacted log
has gaps. A retry without idempotence appends a record again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wirekafka.simulation.checker.facts import Facts
from wirekafka.simulation.checker.files import Batch, Replica
from wirekafka.simulation.checker.occurrences import Occurrence
from wirekafka.simulation.checker.violations import Kind, Violation, in_order

_SEQUENCES = 2**31


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int | None


def check_sequences(facts: Facts, replicas: Sequence[Replica], occurrences: Iterable[Occurrence]) -> Iterator[Violation]:
    """Yields the violations of property 4. What several logs have in common is reported once, for the first of them."""
    reported: set[tuple[object, ...]] = set()
    for log in replicas:
        for violation in _check_log(log, is_compacted=facts.is_compacted(log.key)):
            place = violation.kind, violation.partition, violation.offset
            if place not in reported:
                reported.add(place)
                yield violation
    yield from _check_twice(facts, occurrences)


def _check_log(log: Replica, *, is_compacted: bool) -> Iterator[Violation]:
    producers: dict[int, _Producer] = {}
    for batch in log.batches:
        if batch.producer_id < 0:
            continue
        producer = producers.get(batch.producer_id)
        if producer is None:
            # The batches before the log start, or those that compaction has removed, are unknown.
            producer = producers[batch.producer_id] = _Producer(batch.producer_epoch, None)
        elif batch.producer_epoch < producer.epoch:
            expected, found = f"epoch {producer.epoch}", f"epoch {batch.producer_epoch}"
            yield _violation(Kind.PRODUCER_EPOCH_DECREASED, log, batch, expected, found)
            continue
        elif batch.producer_epoch > producer.epoch:
            producer.epoch = batch.producer_epoch
            producer.next_sequence = None if is_compacted else 0
        if not batch.is_control:
            yield from _check_batch(log, batch, producer, is_compacted=is_compacted)


def _check_batch(log: Replica, batch: Batch, producer: _Producer, *, is_compacted: bool) -> Iterator[Violation]:
    expected, sequence = producer.next_sequence, batch.base_sequence
    producer.next_sequence = (sequence + batch.last_offset - batch.base_offset + 1) % _SEQUENCES
    if expected is None or sequence == expected:
        return
    is_gap = (sequence - expected) % _SEQUENCES < _SEQUENCES // 2
    if not (is_gap and is_compacted):
        kind = Kind.SEQUENCE_GAP if is_gap else Kind.SEQUENCE_REPEATED
        yield _violation(kind, log, batch, f"sequence {expected}", f"sequence {sequence}")


def _violation(kind: Kind, log: Replica, batch: Batch, expected: str, found: str) -> Violation:
    subject = f"producer {batch.producer_id}, epoch {batch.producer_epoch}"
    return Violation(kind, log.key, batch.base_offset, expected, found, brokers=(log.broker_id,), subject=subject)


def _check_twice(facts: Facts, occurrences: Iterable[Occurrence]) -> Iterator[Violation]:
    first: dict[str, Occurrence] = {}
    reported: set[str] = set()
    for found in occurrences:
        send = facts.sends.get(found.payload)
        if send is None or not send.is_idempotent or send.key != found.key:
            continue
        former = first.setdefault(found.payload, found)
        if former.offset != found.offset and found.payload not in reported:
            reported.add(found.payload)
            events = in_order(send.entry, former.entry, found.entry)
            expected = f"{former} at offset {former.offset} only"
            yield Violation(
                Kind.RECORD_TWICE,
                found.key,
                found.offset,
                expected,
                str(found),
                events,
                subject=f"producer {send.record.producer}",
            )
