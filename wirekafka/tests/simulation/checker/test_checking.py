"""Literal runs: each way to violate a property is found, and legal runs are not reported, however odd they look."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.files import Replica
from wirekafka.simulation.checker.violations import Kind
from wirekafka.simulation.history import (
    CommittedOffset,
    EndOffsetRead,
    Event,
    LeaderSeen,
    LogStartMoved,
    LossPermitted,
    OffsetsAcknowledged,
    OffsetsFailed,
    OffsetsRead,
    OffsetsUnknown,
    RecordRead,
    SendFailed,
    SendUnknown,
    TopicCreated,
    TransactionAborted,
    TransactionCommitted,
    TransactionUnknown,
)
from wirekafka.tests.simulation.checker.worlds import (
    acked,
    batch,
    begun,
    commits,
    committed,
    delivered,
    ending,
    group_has,
    history,
    log,
    marker,
    on_brokers,
    read,
    sent,
)

Run = tuple[Sequence[Event], Sequence[Replica], bool]
"""The events, the logs, and whether the cluster was settled."""

COMPACTED = TopicCreated("t", 1, is_compacted=True)
RETAINED = TopicCreated("t", 1, has_retention=True)

VIOLATIONS: dict[str, tuple[Run, set[Kind]]] = {
    # 1. Acknowledged records stay.
    "an acknowledged record is in no log": ((delivered("a", 0), [log()], False), {Kind.RECORD_MISSING}),
    "a log lacks an acknowledged record below its high watermark": (
        (delivered("a", 0), [log(batch(0, "a")), log(high_watermark=0, broker=2, start=0), log(batch(1, "b"), broker=3)], False),
        {Kind.RECORD_MISSING, Kind.REPLICAS_DIFFER, Kind.NEVER_SENT},
    ),
    "a settled log ends before an acknowledged record": (
        ((*delivered("a", 0), *delivered("b", 1)), [log(batch(0, "a"))], True),
        {Kind.RECORD_MISSING},
    ),
    "an acknowledged record without an offset is nowhere": ((delivered("a", None), [log()], True), {Kind.RECORD_MISSING}),
    "the last record of a key is compacted away": (
        ((COMPACTED, *delivered("a", 0, key="k"), *delivered("b", 1, key="l")), [log(batch(1, "b", key="l"))], True),
        {Kind.RECORD_MISSING},
    ),
    "an aborted record compacts an acknowledged one away": (
        (
            (
                COMPACTED,
                *delivered("a", 0, key="k"),
                begun("x1"),
                *delivered("b", 1, key="k", transaction="x1"),
                ending("x1", commit=False),
                TransactionAborted("x1"),
            ),
            [log(batch(1, "b", key="k", producer=(7, 0, 0), transactional=True), marker(2, commit=False))],
            True,
        ),
        {Kind.RECORD_MISSING},
    ),
    "a consumer is led past an acknowledged record": (
        ((*delivered("a", 0), *delivered("b", 1), read("b", 1, position=0)), [], False),
        {Kind.RECORD_SKIPPED},
    ),
    "a consumer of committed records is led past a plain record": (
        ((*delivered("a", 0), *delivered("b", 1), read("b", 1, position=0, committed=True)), [], False),
        {Kind.RECORD_SKIPPED},
    ),
    "the log start moves by itself": ((delivered("a", 1), [log(batch(1, "a"), start=1)], False), {Kind.LOG_START_MOVED}),
    "the log start moves further than was asked": (
        ((*delivered("a", 0), *delivered("b", 1), LogStartMoved("t", 0, 1)), [log(start=2)], False),
        {Kind.LOG_START_MOVED},
    ),
    # 2. One content for one offset.
    "two readers get different records at an offset": (
        ((sent("a"), sent("b"), read("a", 0), read("b", 0)), [], False),
        {Kind.TWO_CONTENTS},
    ),
    "two records are acknowledged at one offset": (
        ((sent("a"), sent("b"), acked("a", 0), acked("b", 0)), [], False),
        {Kind.TWO_CONTENTS},
    ),
    "a log has another record than a consumer got": (
        ((sent("a"), sent("b"), read("a", 0)), [log(batch(0, "b"))], False),
        {Kind.TWO_CONTENTS},
    ),
    "a record that was sent after an acknowledgement has a lower offset": (
        ((*delivered("a", 5), *delivered("b", 4)), [], False),
        {Kind.ORDER_REVERSED},
    ),
    "a record that was sent after a read has a lower offset": (
        ((sent("a"), read("a", 5), sent("b"), read("b", 4)), [], False),
        {Kind.ORDER_REVERSED},
    ),
    "a consumer gets a record that nobody sent": (([read("a", 0)], [], False), {Kind.NEVER_SENT}),
    "a consumer gets a record of another partition": (
        ((sent("a", partition=1), read("a", 0)), [], False),
        {Kind.NEVER_SENT},
    ),
    "a log has a record that nobody sent": (
        (delivered("a", 0), [log(batch(0, "a", "b"))], False),
        {Kind.NEVER_SENT},
    ),
    "a consumer gets a record that failed": (
        ((sent("a"), SendFailed("a", "e"), read("a", 0)), [], False),
        {Kind.FAILED_RECORD_SHOWN},
    ),
    "the end of what consumers may read goes back": (
        ((EndOffsetRead("t", 0, 10, 1, True, 0), EndOffsetRead("t", 0, 4, 2, True, 1)), [], False),
        {Kind.END_WENT_BACK},
    ),
    # 3. Replicas agree.
    "replicas differ below both high watermarks": (
        (
            (sent("a"), sent("b"), sent("c")),
            [log(batch(0, "a"), batch(1, "b")), log(batch(0, "a"), batch(1, "c", epoch=1), broker=2)],
            False,
        ),
        {Kind.REPLICAS_DIFFER, Kind.TWO_CONTENTS},
    ),
    "replicas of a topic of the brokers differ in a key": (
        ((), [log(batch(0, "a", key="k")), log(batch(0, "a", key="l", epoch=1), broker=2)], False),
        {Kind.REPLICAS_DIFFER},
    ),
    "a replica lacks a record between others": (
        ((), [log(batch(0, "a"), batch(1, "b"), batch(2, "c")), log(batch(0, "a"), batch(2, "c"), broker=2)], False),
        {Kind.REPLICAS_DIFFER},
    ),
    "uncommitted records of one leader epoch differ": (
        ((), [log(batch(0, "a"), high_watermark=0), log(batch(0, "b"), high_watermark=0, broker=2)], False),
        {Kind.EPOCH_HAS_TWO_CONTENTS},
    ),
    "two brokers lead in one epoch": (
        ((LeaderSeen("t", 0, 3, 1), LeaderSeen("t", 0, 3, 2)), [], False),
        {Kind.EPOCH_HAS_TWO_LEADERS},
    ),
    "settled replicas have different ends": (
        ((), [log(batch(0, "a")), log(broker=2)], True),
        {Kind.ENDS_DIFFER},
    ),
    "a batch has an older epoch than the one before": (
        ((), [log(batch(0, "a", epoch=2), batch(1, "b", epoch=1))], False),
        {Kind.EPOCHS_DECREASE},
    ),
    "the checkpoint has another epoch than a batch": (
        ((), [log(batch(0, "a"), batch(1, "b", epoch=1), epochs=((0, 0), (1, 2)))], True),
        {Kind.EPOCHS_DISAGREE},
    ),
    "the checkpoint has no epochs": (((), [log(batch(0, "a"), epochs=())], True), {Kind.EPOCHS_DISAGREE}),
    "the high watermark is after the end of a settled log": (
        ((), [log(batch(0, "a"), high_watermark=2)], True),
        {Kind.HIGH_WATERMARK_PAST_END},
    ),
    "a settled log is torn": (((), [log(batch(0, "a"), unsound="torn")], True), {Kind.LOG_IS_UNSOUND}),
    # 4. Sequences.
    "a sequence is missing": (
        ((), [log(batch(0, "a", producer=(7, 0, 0)), batch(1, "b", producer=(7, 0, 2)))], False),
        {Kind.SEQUENCE_GAP},
    ),
    "an epoch does not begin with 0 after another epoch": (
        ((), [log(batch(0, "a", producer=(7, 0, 0)), batch(1, "b", producer=(7, 1, 1)))], False),
        {Kind.SEQUENCE_GAP},
    ),
    "a sequence comes again": (
        ((), [log(batch(0, "a", producer=(7, 0, 0)), batch(1, "a", producer=(7, 0, 0)))], False),
        {Kind.SEQUENCE_REPEATED},
    ),
    "a sequence comes again in a compacted log": (
        ([COMPACTED], [log(batch(0, "a", producer=(7, 0, 5)), batch(1, "a", producer=(7, 0, 5)))], False),
        {Kind.SEQUENCE_REPEATED},
    ),
    "a fenced producer appends": (
        ((), [log(batch(0, "a", producer=(7, 1, 0)), batch(1, "b", producer=(7, 0, 1)))], False),
        {Kind.PRODUCER_EPOCH_DECREASED},
    ),
    "a producer that a marker has fenced appends": (
        ((), [log(marker(0, commit=False, producer=(7, 1)), batch(1, "b", producer=(7, 0, 0)))], False),
        {Kind.PRODUCER_EPOCH_DECREASED},
    ),
    "a consumer gets a record of an idempotent producer twice": (
        ((sent("a", producer=(7, 0, 0)), read("a", 0), read("a", 1)), [], False),
        {Kind.RECORD_TWICE},
    ),
    # 5. All or nothing.
    "a consumer of committed records gets an aborted one": (
        (
            (
                begun("x1"),
                sent("a", transaction="x1"),
                ending("x1", commit=False),
                TransactionAborted("x1"),
                read("a", 0, committed=True),
            ),
            [],
            False,
        ),
        {Kind.TRANSACTION_DIVIDED},
    ),
    "a consumer of committed records gets one whose commit was never requested": (
        ((begun("x1"), sent("a", transaction="x1"), read("a", 0, committed=True)), [], False),
        {Kind.TRANSACTION_DIVIDED},
    ),
    "a consumer of committed records gets one before the request to commit": (
        ((begun("x1"), sent("a", transaction="x1"), read("a", 0, committed=True), ending("x1")), [], False),
        {Kind.SHOWN_BEFORE_COMMIT},
    ),
    "a consumer is led past a record of a committed transaction": (
        (
            (
                begun("x1"),
                *delivered("a", 0, transaction="x1"),
                ending("x1"),
                TransactionCommitted("x1"),
                *delivered("b", 2),
                read("b", 2, position=0, committed=True),
            ),
            [],
            False,
        ),
        {Kind.TRANSACTION_DIVIDED},
    ),
    "a consumer gets only one of two records of a transaction": (
        (
            (
                begun("x1"),
                *delivered("a", 0, transaction="x1"),
                *delivered("b", 1, transaction="x1"),
                ending("x1"),
                TransactionUnknown("x1", "timeout"),
                read("b", 1, position=0, committed=True),
            ),
            [],
            False,
        ),
        {Kind.TRANSACTION_DIVIDED},
    ),
    "a transaction is committed in one partition and aborted in another": (
        (
            (begun("x1"), *delivered("a", 0, transaction="x1"), ending("x1"), TransactionCommitted("x1")),
            [log(batch(0, "a", producer=(7, 0, 0), transactional=True), marker(1, commit=False))],
            False,
        ),
        {Kind.TRANSACTION_DIVIDED},
    ),
    "a part of a transaction of version 2 is committed with the transaction before it": (
        (
            (
                begun("x1", epoch=0),
                ending("x1"),
                TransactionUnknown("x1", "timeout"),
                begun("x2", epoch=1),
                *delivered("a", 0, transaction="x2"),
                *delivered("b", 2, transaction="x2"),
                ending("x2", commit=False),
                TransactionAborted("x2"),
            ),
            [
                log(
                    batch(0, "a", producer=(7, 0, 0), transactional=True),
                    marker(1, commit=True),
                    batch(2, "b", producer=(7, 0, 1), transactional=True),
                    marker(3, commit=False),
                )
            ],
            False,
        ),
        {Kind.TRANSACTION_DIVIDED},
    ),
    "a committed transaction has no marker in a settled log": (
        (
            (begun("x1"), *delivered("a", 0, transaction="x1"), ending("x1"), TransactionCommitted("x1")),
            [log(batch(0, "a", producer=(7, 0, 0), transactional=True))],
            True,
        ),
        {Kind.TRANSACTION_NOT_ENDED},
    ),
    "a group has the offset of an aborted transaction": (
        (
            (
                begun("x1"),
                commits("m1", 5, transaction="x1"),
                ending("x1", commit=False),
                TransactionAborted("x1"),
                group_has("m1", 5),
            ),
            [],
            False,
        ),
        {Kind.TRANSACTION_DIVIDED},
    ),
    # 6. Commits stay.
    "an offset goes back": (
        ((*committed("m1", 5), *committed("m2", 7), group_has("m1", 5)), [], False),
        {Kind.OFFSET_WENT_BACK},
    ),
    "an offset disappears": (((*committed("m1", 5), group_has(None, None)), [], False), {Kind.OFFSET_WENT_BACK}),
    "an offset goes back between two answers": (
        (
            (
                *committed("m1", 5),
                commits("m2", 7),
                OffsetsUnknown("m2", "timeout"),
                group_has("m2", 7, asked=4),
                group_has("m1", 5),
            ),
            [],
            False,
        ),
        {Kind.OFFSET_WENT_BACK},
    ),
    "the offset of a committed transaction is not shown to a client that asks for stable offsets": (
        (
            (
                *committed("m1", 5),
                begun("x1"),
                commits("m2", 7, transaction="x1"),
                OffsetsAcknowledged("m2"),
                ending("x1"),
                TransactionCommitted("x1"),
                group_has("m1", 5, stable=True),
            ),
            [],
            False,
        ),
        {Kind.OFFSET_WENT_BACK},
    ),
    "a late commit of an older generation replaces a newer one": (
        (
            (commits("m1", 5), OffsetsUnknown("m1", "timeout"), *committed("m2", 7, generation=2), group_has("m1", 5)),
            [],
            False,
        ),
        {Kind.FENCED_COMMIT_SHOWN},
    ),
    "a group has an offset whose commit failed": (
        ((commits("m1", 5), OffsetsFailed("m1", "e"), group_has("m1", 5)), [], False),
        {Kind.FAILED_COMMIT_SHOWN},
    ),
    "a group has an offset that nobody committed": (([group_has("m1", 5)], [], False), {Kind.NEVER_COMMITTED}),
    "a group has another offset than was committed": (
        ((*committed("m1", 5), group_has("m1", 6)), [], False),
        {Kind.NEVER_COMMITTED},
    ),
    "a group has the offset of another group": (
        ((*committed("m1", 5), OffsetsRead("h", (CommittedOffset("t", 0, 5, "m1"),), 2)), [], False),
        {Kind.NEVER_COMMITTED},
    ),
}

LEGAL: dict[str, Run] = {
    "nothing happened": ((), [], True),
    "records are delivered and read": (
        (*delivered("a", 0), *delivered("b", 1), read("a", 0), read("b", 1)),
        on_brokers(3, batch(0, "a"), batch(1, "b")),
        True,
    ),
    "a send of unknown outcome succeeded": ((sent("a"), SendUnknown("a", "timeout"), read("a", 0)), [log(batch(0, "a"))], True),
    "a send of unknown outcome is appended late": (
        (sent("a"), SendUnknown("a", "timeout"), *delivered("b", 0), read("a", 1)),
        [log(batch(0, "b"), batch(1, "a"))],
        True,
    ),
    "a send of unknown outcome is lost": ((sent("a"), SendUnknown("a", "timeout")), [log()], True),
    "a client was killed before it knew": (([sent("a")]), [log(batch(0, "a"))], True),
    "a retry without idempotence is appended twice": (
        (*delivered("a", 1), read("a", 0), read("a", 1)),
        [log(batch(0, "a"), batch(1, "a"))],
        True,
    ),
    "a duplicate is acknowledged without an offset": (delivered("a", None), [log(batch(0, "a"))], True),
    "a record with acks=1 is lost": (
        (sent("a", acks=1), acked("a", 0), *delivered("b", 0)),
        [log(batch(0, "b", epoch=1))],
        True,
    ),
    "concurrent records have offsets in any order": ((sent("a"), sent("b"), acked("b", 0), acked("a", 1)), [], False),
    "retention has removed the first records": (
        (RETAINED, *delivered("a", 0), *delivered("b", 1), read("b", 1)),
        [log(batch(1, "b"), start=1)],
        True,
    ),
    "records were deleted on request, inside a batch": (
        (*delivered("a", 0), *delivered("b", 1), LogStartMoved("t", 0, 1)),
        [log(batch(0, "a", "b"), start=1), log(batch(0, "a", "b"), broker=2)],
        True,
    ),
    "compaction has removed older records of a key on one replica": (
        (COMPACTED, *delivered("a", 0, key="k"), *delivered("b", 1, key="k"), read("b", 1, position=0)),
        [log(batch(1, "b", key="k")), log(batch(0, "a", key="k"), batch(1, "b", key="k"), broker=2)],
        True,
    ),
    "compaction has removed sequences": (
        (COMPACTED, *delivered("a", 0, key="k"), *delivered("b", 1, key="k"), *delivered("c", 2, key="k")),
        [log(batch(0, producer=(7, 0, 0)), batch(2, "c", key="k", producer=(7, 0, 2)))],
        True,
    ),
    "a follower has records above the high watermark that the leader lacks": (
        (),
        [
            log(batch(0, "a"), batch(1, "b", epoch=1)),
            log(batch(0, "a"), batch(1, "c"), batch(2, "d"), high_watermark=1, broker=2),
        ],
        False,
    ),
    "a broker that was killed has a high watermark after its end, torn bytes and old epochs": (
        delivered("a", 0),
        [log(batch(0, "a")), log(high_watermark=1, broker=2, unsound="torn", epochs=())],
        False,
    ),
    "a leader epoch has no records": ((), [log(batch(0, "a"), batch(1, "b", epoch=2), epochs=((0, 0), (1, 1), (2, 1)))], True),
    "one leader in each epoch": ((LeaderSeen("t", 0, 3, 1), LeaderSeen("t", 0, 4, 2), LeaderSeen("t", 0, 3, 1)), [], False),
    "Kafka itself may have lost the records": (
        (*delivered("a", 0), read("a", 0), LossPermitted("t", 0, "unclean election"), *delivered("b", 0)),
        [log(batch(0, "b", epoch=1)), log(batch(0, "a"), broker=2)],
        False,
    ),
    "a producer without state begins anywhere, and sequences begin again after the greatest": (
        (),
        [log(batch(0, "a", "b", producer=(7, 0, 2**31 - 1)), batch(2, "c", producer=(7, 0, 1)))],
        True,
    ),
    "a marker raises the epoch of a producer": (
        (),
        [
            log(
                batch(0, "a", producer=(7, 0, 0), transactional=True),
                marker(1, commit=True, producer=(7, 1)),
                batch(2, "b", producer=(7, 1, 0)),
            )
        ],
        True,
    ),
    "a transaction of unknown end is committed": (
        (
            begun("x1"),
            *delivered("a", 0, transaction="x1"),
            ending("x1"),
            TransactionUnknown("x1", "timeout"),
            read("a", 0, committed=True),
        ),
        [log(batch(0, "a", producer=(7, 0, 0), transactional=True), marker(1, commit=True))],
        True,
    ),
    "a transaction of unknown end is aborted": (
        (
            begun("x1"),
            *delivered("a", 0, transaction="x1"),
            ending("x1"),
            TransactionUnknown("x1", "timeout"),
            *delivered("b", 2),
            read("b", 2, position=0, committed=True),
        ),
        [log(batch(0, "a", producer=(7, 0, 0), transactional=True), marker(1, commit=False), batch(2, "b"))],
        True,
    ),
    "aborted records are shown to consumers of all records": (
        (
            begun("x1"),
            *delivered("a", 0, transaction="x1"),
            ending("x1", commit=False),
            TransactionAborted("x1"),
            *delivered("b", 2),
            read("a", 0),
            read("b", 2, position=1),
            read("b", 2, position=0, committed=True),
        ),
        [log(batch(0, "a", producer=(7, 0, 0), transactional=True), marker(1, commit=False), batch(2, "b"))],
        True,
    ),
    "a transaction without an end is open": (
        (begun("x1"), *delivered("a", 0, transaction="x1")),
        [log(batch(0, "a", producer=(7, 0, 0), transactional=True))],
        True,
    ),
    "an EndTxn that is late ends a part of the next transaction of version 1": (
        (
            begun("x1", version=1, epoch=0),
            ending("x1"),
            ending("x1"),
            TransactionCommitted("x1"),
            begun("x2", version=1, epoch=0),
            *delivered("a", 0, transaction="x2"),
            read("a", 0, committed=True),
            *delivered("b", 2, transaction="x2"),
            ending("x2", commit=False),
            TransactionAborted("x2"),
        ),
        [
            log(
                batch(0, "a", producer=(7, 0, 0), transactional=True),
                marker(1, commit=True),
                batch(2, "b", producer=(7, 0, 1), transactional=True),
                marker(3, commit=False),
            )
        ],
        True,
    ),
    "a concurrent commit of offsets may win": (
        (commits("m1", 5), commits("m2", 7), OffsetsAcknowledged("m2"), OffsetsAcknowledged("m1"), group_has("m1", 5)),
        [],
        False,
    ),
    "a commit of unknown outcome takes effect late in its generation": (
        (commits("m1", 5), OffsetsUnknown("m1", "timeout"), *committed("m2", 7), group_has("m2", 7, asked=4), group_has("m1", 5)),
        [],
        False,
    ),
    "a member moves back by its own commit": ((*committed("m1", 7), *committed("m2", 5), group_has("m2", 5)), [], False),
    "an answer that was asked for before the commit has the offset before it": (
        (*committed("m1", 5), *committed("m2", 7), group_has("m1", 5, asked=3)),
        [],
        False,
    ),
    "a deposed coordinator answers with an old offset": (
        (*committed("m1", 5), *committed("m2", 7), group_has("m1", 5, stale=True)),
        [],
        False,
    ),
    "the offset of a committed transaction is not yet shown to a client that does not ask for stable offsets": (
        (
            *committed("m1", 5),
            begun("x1"),
            commits("m2", 7, transaction="x1"),
            OffsetsAcknowledged("m2"),
            ending("x1"),
            TransactionCommitted("x1"),
            group_has("m1", 5),
            group_has("m2", 7, stable=True),
        ),
        [],
        False,
    ),
    "a later plain commit replaces the offset of a transaction": (
        (
            begun("x1"),
            commits("m1", 5, transaction="x1"),
            OffsetsAcknowledged("m1"),
            *committed("m2", 7),
            ending("x1"),
            TransactionCommitted("x1"),
            group_has("m2", 7, stable=True),
        ),
        [],
        False,
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_run_that_violates_a_property_is_reported(name: str) -> None:
    (events, replicas, is_settled), expected = VIOLATIONS[name]

    violations = check(history(*events), replicas, is_settled=is_settled)

    assert {violation.kind for violation in violations} == expected


@pytest.mark.parametrize("name", LEGAL)
def test_legal_run_is_not_reported(name: str) -> None:
    events, replicas, is_settled = LEGAL[name]

    assert [str(violation) for violation in check(history(*events), replicas, is_settled=is_settled)] == []


def test_each_kind_of_violation_has_a_run() -> None:
    shown = {kind for _, kinds in VIOLATIONS.values() for kind in kinds}

    assert shown == set(Kind)


def test_violation_as_text_names_the_property_the_place_both_contents_and_the_events() -> None:
    events = sent("a"), sent("b"), read("a", 3), RecordRead("d", "t", 0, 3, "b", False, 3)

    (violation,) = check(history(*events))

    assert str(violation).splitlines() == [
        "Property 2, one_content: an offset has two contents",
        "  at t-0, offset 3",
        "  expected: 'a', RecordRead at 3",
        "  found:    'b', RecordRead at 4",
        f"  3 at 2 ms: {events[2]}",
        f"  4 at 3 ms: {events[3]}",
    ]
