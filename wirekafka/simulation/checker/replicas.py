"""Property 3: replicas agree below the least high watermark always, and entirely once they are in sync; epochs agree.

How it works: the log with the greatest committed part is compared with each other log, up to the end of the committed part of the
latter. Besides, a record that two logs have in one leader epoch at one offset is the same record, committed or not, because an
epoch has one leader.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from wirekafka.simulation.checker.facts import Facts, Key
from wirekafka.simulation.checker.files import Batch, Record, Replica
from wirekafka.simulation.checker.violations import Kind, Violation, in_order
from wirekafka.simulation.history import Entry, LeaderSeen

_Content = tuple[int, int, int, int, bool, bytes | None, bytes | None]
"""The leader epoch, the producer id and epoch, the sequence, whether it is a marker, the key and the value."""


def check_replicas(facts: Facts, replicas: Sequence[Replica], *, is_settled: bool) -> Iterator[Violation]:
    """Yields the violations of property 3: the first difference of two logs, and the first fault of each kind in a log."""
    yield from _check_leaders(facts.leaders)
    by_key: defaultdict[Key, list[Replica]] = defaultdict(list)
    for replica in replicas:
        by_key[replica.key].append(replica)
        yield from _check_one(replica, is_settled=is_settled)
    for key, logs in by_key.items():
        yield from _check_epoch_contents(logs)
        if key not in facts.losses:
            yield from _compare_all(logs, is_compacted=facts.is_compacted(key), is_settled=is_settled)


def _check_leaders(leaders: Sequence[tuple[Entry, LeaderSeen]]) -> Iterator[Violation]:
    first: dict[tuple[str, int, int], tuple[Entry, LeaderSeen]] = {}
    for entry, seen in leaders:
        former_entry, former = first.setdefault((seen.topic, seen.partition, seen.leader_epoch), (entry, seen))
        if former.leader_id != seen.leader_id:
            expected, found = f"broker {former.leader_id} leads epoch {seen.leader_epoch}", f"broker {seen.leader_id}"
            key = seen.topic, seen.partition
            yield Violation(Kind.EPOCH_HAS_TWO_LEADERS, key, None, expected, found, in_order(former_entry, entry))


def _check_one(log: Replica, *, is_settled: bool) -> Iterator[Violation]:
    brokers = (log.broker_id,)
    for former, batch in zip(log.batches, log.batches[1:], strict=False):
        if batch.leader_epoch < former.leader_epoch:
            expected, found = f"an epoch from {former.leader_epoch} on", f"epoch {batch.leader_epoch}"
            yield Violation(Kind.EPOCHS_DECREASE, log.key, batch.base_offset, expected, found, brokers=brokers)
            break
    if not is_settled:
        # A broker that was killed may leave torn bytes, and checkpoints that are older or newer than its log.
        return
    if log.unsound is not None:
        yield Violation(Kind.LOG_IS_UNSOUND, log.key, log.log_end_offset, "a sound log", log.unsound, brokers=brokers)
    if log.high_watermark > log.log_end_offset:
        found = f"the log ends at {log.log_end_offset}"
        expected = f"a high watermark of {log.high_watermark}"
        yield Violation(Kind.HIGH_WATERMARK_PAST_END, log.key, log.high_watermark, expected, found, brokers=brokers)
    yield from _check_checkpoint(log)


def _check_checkpoint(log: Replica) -> Iterator[Violation]:
    starts = [start_offset for _, start_offset in log.epochs]
    for batch in log.batches:
        slot = bisect_right(starts, batch.base_offset) - 1
        if slot < 0 and batch.base_offset < log.log_start_offset:
            continue
        epoch = log.epochs[slot][0] if slot >= 0 else None
        if epoch != batch.leader_epoch:
            expected, found = f"epoch {epoch} by the checkpoint", f"epoch {batch.leader_epoch}"
            yield Violation(Kind.EPOCHS_DISAGREE, log.key, batch.base_offset, expected, found, brokers=(log.broker_id,))
            return


def _check_epoch_contents(logs: Sequence[Replica]) -> Iterator[Violation]:
    first: dict[tuple[int, int], tuple[_Content, int]] = {}
    differing: set[int] = set()
    for log in logs:
        for offset, content in _contents(log):
            former, broker_id = first.setdefault((content[0], offset), (content, log.broker_id))
            if former != content and log.broker_id not in differing:
                differing.add(log.broker_id)
                brokers = broker_id, log.broker_id
                yield Violation(
                    Kind.EPOCH_HAS_TWO_CONTENTS, log.key, offset, _describe(former), _describe(content), brokers=brokers
                )


def _compare_all(logs: Sequence[Replica], *, is_compacted: bool, is_settled: bool) -> Iterator[Violation]:
    reference = max(logs, key=lambda log: log.committed_end(is_settled=is_settled))
    contents = dict(_contents(reference))
    for log in logs:
        if log is reference:
            continue
        end_offset = log.committed_end(is_settled=is_settled)
        yield from _compare(reference, contents, log, end_offset, is_compacted=is_compacted)
        if is_settled and log.log_end_offset != reference.log_end_offset:
            expected, found = f"an end at {reference.log_end_offset}", f"an end at {log.log_end_offset}"
            brokers = reference.broker_id, log.broker_id
            yield Violation(Kind.ENDS_DIFFER, log.key, log.log_end_offset, expected, found, brokers=brokers)


def _compare(
    reference: Replica, contents: dict[int, _Content], log: Replica, end_offset: int, *, is_compacted: bool
) -> Iterator[Violation]:
    """Yields the first difference of two logs below `end_offset`. Each of two compacted logs may lack what the other has."""
    own = dict(_contents(log))
    start_offset = max(reference.log_start_offset, log.log_start_offset)
    offsets = own.keys() & contents.keys() if is_compacted else own.keys() | contents.keys()
    differing = [offset for offset in offsets if start_offset <= offset < end_offset and own.get(offset) != contents.get(offset)]
    if differing:
        offset = min(differing)
        expected, found = _describe(contents.get(offset)), _describe(own.get(offset))
        brokers = reference.broker_id, log.broker_id
        yield Violation(Kind.REPLICAS_DIFFER, log.key, offset, expected, found, brokers=brokers)


def _contents(log: Replica) -> Iterator[tuple[int, _Content]]:
    for batch in log.batches:
        for record in batch.records:
            if record.offset >= log.log_start_offset:
                yield record.offset, _content(batch, record)


def _content(batch: Batch, record: Record) -> _Content:
    sequence = -1 if batch.base_sequence < 0 else batch.base_sequence + record.offset - batch.base_offset
    return batch.leader_epoch, batch.producer_id, batch.producer_epoch, sequence, batch.is_control, record.key, record.value


def _describe(content: _Content | None) -> str:
    if content is None:
        return "nothing"
    epoch, producer_id, producer_epoch, sequence, is_control, key, value = content
    producer = "" if producer_id < 0 else f", producer {producer_id} epoch {producer_epoch} sequence {sequence}"
    what = "a marker" if is_control else f"{value!r} with key {key!r}"
    return f"{what}, leader epoch {epoch}{producer}"
