"""Property 2: an offset has one content for all readers at all times, and offsets keep the order of real time.

If a record was acknowledged or read before another one was sent, it has the lower offset. So each partition is linearizable, and
each key with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from wirekafka.simulation.checker.facts import Facts, Key, Send
from wirekafka.simulation.checker.occurrences import Occurrence
from wirekafka.simulation.checker.violations import Kind, Violation, in_order
from wirekafka.simulation.history import Entry


def check_contents(facts: Facts, occurrences: Iterable[Occurrence]) -> Iterator[Violation]:
    """Yields the violations of property 2: at most one of two contents for an offset, and one of each other kind for a record."""
    contents: dict[tuple[Key, int], Occurrence] = {}
    floors = _find_floors(facts)
    reported: set[tuple[Kind, Key, object]] = set()
    for occurrence in occurrences:
        for violation in _judge(facts, occurrence, contents, floors):
            subject = occurrence.offset if violation.kind is Kind.TWO_CONTENTS else occurrence.payload
            if (violation.kind, occurrence.key, subject) not in reported:
                reported.add((violation.kind, occurrence.key, subject))
                yield violation


def _judge(
    facts: Facts, found: Occurrence, contents: dict[tuple[Key, int], Occurrence], floors: dict[str, tuple[int, Entry]]
) -> Iterator[Violation]:
    key, offset = found.key, found.offset
    brokers = () if found.broker_id is None else (found.broker_id,)
    former = contents.setdefault((key, offset), found)
    if former.payload != found.payload:
        both = tuple(each.broker_id for each in (former, found) if each.broker_id is not None)
        yield Violation(Kind.TWO_CONTENTS, key, offset, str(former), str(found), in_order(former.entry, found.entry), both)
    send = facts.sends.get(found.payload)
    if send is None or send.key != key:
        expected = "no such record" if send is None else f"a record of {send.key[0]}-{send.key[1]}"
        events = in_order(None if send is None else send.entry, found.entry)
        yield Violation(Kind.NEVER_SENT, key, offset, expected, str(found), events, brokers)
        return
    if send.failed is not None:
        events = in_order(send.entry, send.failed, found.entry)
        yield Violation(Kind.FAILED_RECORD_SHOWN, key, offset, "it failed for certain", str(found), events, brokers)
    if found.payload in floors and offset <= floors[found.payload][0]:
        floor, evidence = floors[found.payload]
        events = in_order(evidence, send.entry, found.entry)
        yield Violation(Kind.ORDER_REVERSED, key, offset, f"an offset after {floor}", str(found), events, brokers)


def _find_floors(facts: Facts) -> dict[str, tuple[int, Entry]]:
    """Returns for each record the greatest offset that was acknowledged or read in its partition before it was sent."""
    moments: defaultdict[Key, list[tuple[int, int, Entry | Send]]] = defaultdict(list)
    for send in facts.sends.values():
        moments[send.key].append((send.entry.order, -1, send))
        if send.is_committed and send.offset is not None and send.acknowledged is not None:
            moments[send.key].append((send.acknowledged.order, send.offset, send.acknowledged))
    for key, reads in facts.reads.items():
        moments[key].extend((entry.order, read.offset, entry) for entry, read in reads)
    floors: dict[str, tuple[int, Entry]] = {}
    for each in moments.values():
        each.sort(key=lambda moment: moment[0])
        floors.update(_sweep(each))
    return floors


def _sweep(moments: Iterable[tuple[int, int, Entry | Send]]) -> Iterator[tuple[str, tuple[int, Entry]]]:
    floor: tuple[int, Entry] | None = None
    for _, offset, subject in moments:
        if isinstance(subject, Send):
            if floor is not None:
                yield subject.record.payload, floor
        elif floor is None or offset > floor[0]:
            floor = offset, subject
