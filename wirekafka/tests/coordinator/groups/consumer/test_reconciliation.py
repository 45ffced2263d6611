from dataclasses import replace

import pytest

from wirekafka.coordinator.groups.consumer.member import ConsumerMember, MemberState
from wirekafka.coordinator.groups.consumer.reconciliation import Target, reconcile
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.errors import ErrorCode, KafkaError

A, B = b"a" * 16, b"b" * 16
BEFORE, NOW = 2, 3
MEMBER = ConsumerMember("m", BEFORE, 1, assigned={A: {0: 1, 1: 2}})


def target(
    partitions: Partitions,
    *,
    owned: dict[bytes, list[int]] | None = None,
    taken: tuple[int, ...] = (),
    subscribed: tuple[bytes, ...] = (A, B),
    epoch: int = NOW,
) -> Target:
    return Target(epoch, partitions, subscribed, lambda topic_id, partition: partition not in taken, owned)


def test_member_that_has_its_target_stays_itself() -> None:
    assert reconcile(MEMBER, target({A: frozenset({0, 1})}, epoch=BEFORE)) is MEMBER


def test_member_with_a_new_epoch_of_the_same_target_moves_to_it() -> None:
    assert reconcile(MEMBER, target({A: frozenset({0, 1})})) == replace(MEMBER, member_epoch=NOW, previous_member_epoch=BEFORE)


def test_member_that_has_to_give_up_stays_in_its_epoch_until_it_says_it_has() -> None:
    wanted = {A: frozenset({1}), B: frozenset({0})}
    told = reconcile(MEMBER, target(wanted))
    assert (told.state, told.member_epoch) == (MemberState.UNREVOKED_PARTITIONS, BEFORE)
    assert (told.assigned, told.pending_revocation) == ({A: {1: 2}}, {A: {0: 1}})
    assert reconcile(told, target(wanted)) is told
    assert reconcile(told, target(wanted, owned={A: [0, 1]})) is told
    done = reconcile(told, target(wanted, owned={A: [1]}))
    assert (done.state, done.member_epoch, done.previous_member_epoch) == (MemberState.STABLE, NOW, BEFORE)
    assert (done.assigned, done.pending_revocation) == ({A: {1: 2}, B: {0: NOW}}, {})


def test_member_that_has_given_up_already_need_not_wait() -> None:
    done = reconcile(MEMBER, target({A: frozenset({1})}, owned={A: [1]}))
    assert (done.state, done.member_epoch, done.assigned) == (MemberState.STABLE, NOW, {A: {1: 2}})


def test_member_gets_what_is_free_and_waits_for_the_rest() -> None:
    waiting = reconcile(MEMBER, target({A: frozenset({0, 1, 2, 3})}, taken=(3,)))
    assert (waiting.state, waiting.member_epoch) == (MemberState.UNRELEASED_PARTITIONS, NOW)
    assert waiting.assigned == {A: {0: 1, 1: 2, 2: NOW}}
    done = reconcile(waiting, target({A: frozenset({0, 1, 2, 3})}))
    assert (done.state, done.assigned) == (MemberState.STABLE, {A: {0: 1, 1: 2, 2: NOW, 3: NOW}})


def test_member_gets_back_what_it_was_about_to_give_up() -> None:
    told = reconcile(MEMBER, target({A: frozenset({1})}))
    again = reconcile(told, target({A: frozenset({0, 1})}, owned={A: [1]}, taken=(0,), epoch=NOW + 1))
    assert (again.state, again.assigned) == (MemberState.STABLE, {A: {1: 2, 0: NOW + 1}})


def test_member_gives_up_a_topic_it_no_longer_reads_before_there_is_a_new_target() -> None:
    same = target({A: frozenset({0, 1})}, subscribed=(B,), epoch=BEFORE)
    told = reconcile(MEMBER, same, has_subscription_changed=True)
    assert (told.state, told.assigned, told.pending_revocation) == (MemberState.UNREVOKED_PARTITIONS, {}, MEMBER.assigned)
    gone = target({A: frozenset({0, 1})}, subscribed=(B,), epoch=BEFORE, owned={})
    assert reconcile(MEMBER, gone, has_subscription_changed=True) == replace(MEMBER, previous_member_epoch=BEFORE, assigned={})
    assert reconcile(MEMBER, target({}, epoch=BEFORE), has_subscription_changed=True) is MEMBER


def test_member_that_is_giving_up_already_gives_up_what_it_no_longer_reads_along_with_it() -> None:
    told = reconcile(MEMBER, target({A: frozenset({1})}))
    more = reconcile(told, target({A: frozenset({1})}, subscribed=(B,)), has_subscription_changed=True)
    assert (more.state, more.assigned, more.pending_revocation) == (MemberState.UNREVOKED_PARTITIONS, {}, MEMBER.assigned)


def test_member_is_not_given_a_topic_of_its_target_to_which_it_does_not_subscribe() -> None:
    done = reconcile(MEMBER, target({A: frozenset({0, 1}), B: frozenset({0})}, subscribed=(A,)))
    assert (done.state, done.assigned) == (MemberState.STABLE, MEMBER.assigned)


def test_member_in_an_unknown_state_begins_anew_with_nothing() -> None:
    unknown = replace(MEMBER, state=MemberState.UNKNOWN)
    for owned in (None, {A: [0]}):
        with pytest.raises(KafkaError) as raised:
            reconcile(unknown, target({A: frozenset({0})}, owned=owned))
        assert raised.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert reconcile(unknown, target({A: frozenset({0})}, owned={})).state is MemberState.STABLE
