"""The ends of partitions that clients were told never go back."""

from __future__ import annotations

from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.violations import Kind
from wirekafka.simulation.history import EndOffsetRead, History, LossPermitted, TopicCreated


def history_of(*reads: EndOffsetRead) -> History:
    history = History()
    history.add(TopicCreated("t", 2))
    for read in reads:
        history.add(read)
    return history


def read(offset: int, epoch: int | None, asked: int, *, is_read_committed: bool = True, partition: int = 0) -> EndOffsetRead:
    return EndOffsetRead("t", partition, offset, epoch, is_read_committed, asked)


def kinds(history: History) -> list[Kind]:
    return [violation.kind for violation in check(history)]


def test_end_that_goes_back_under_a_later_leader_is_a_violation() -> None:
    violations = check(history_of(read(10, 1, 1), read(4, 2, 2)))

    assert [(each.kind, each.partition, each.offset) for each in violations] == [(Kind.END_WENT_BACK, ("t", 0), 4)]
    assert violations[0].expected == "a last stable offset of 10 or more"


def test_end_that_goes_back_under_the_same_leader_is_a_violation() -> None:
    assert kinds(history_of(read(10, 1, 1, is_read_committed=False), read(9, 1, 2, is_read_committed=False))) == [
        Kind.END_WENT_BACK
    ]


def test_greatest_of_several_former_ends_counts() -> None:
    assert kinds(history_of(read(10, 1, 1), read(12, 2, 2), read(11, 2, 3))) == [Kind.END_WENT_BACK]


def test_ends_that_stay_or_grow_are_sound() -> None:
    assert kinds(history_of(read(10, 1, 1), read(10, 2, 2), read(12, 2, 3))) == []


def test_answer_of_a_deposed_leader_may_be_old() -> None:
    assert kinds(history_of(read(10, 2, 1), read(4, 1, 2))) == []


def test_answers_to_requests_at_the_same_time_have_no_order() -> None:
    assert kinds(history_of(read(10, 1, 1), read(4, 1, 1))) == []


def test_isolation_levels_and_partitions_have_ends_of_their_own() -> None:
    assert kinds(history_of(read(10, 1, 1, is_read_committed=False), read(4, 1, 2), read(3, 1, 3, partition=1))) == []


def test_answer_without_a_leader_epoch_is_not_judged() -> None:
    assert kinds(history_of(read(10, 1, 1), read(4, None, 2))) == []


def test_partition_that_may_lose_records_is_not_judged() -> None:
    history = history_of(read(10, 1, 1))
    history.add(LossPermitted("t", 0, "unclean election"))
    history.add(read(4, 2, 3))

    assert kinds(history) == []
