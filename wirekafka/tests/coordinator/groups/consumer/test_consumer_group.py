"""A consumer group without a coordinator: the check of commits, and the replay of its members' records in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from wirekafka.coordinator.effects import Effects
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.heartbeats import check_static, replace_static
from wirekafka.coordinator.groups.consumer.member import ClassicMembership, ConsumerMember, ResolvedRegex
from wirekafka.coordinator.groups.consumer.records import CurrentRecord, MemberRecord, RegexRecord, TargetEpochRecord
from wirekafka.coordinator.groups.requests import CommitRequest, PartitionCommit
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.tests.coordinator.groups.consumer.world import MemoryImage

EPOCH = 5
CLASSIC = ClassicMembership(10_000, [("range", b"")])


def group_of(*members: ConsumerMember) -> ConsumerGroup:
    """Makes a group with a topic `a` and members with these assignments."""
    image = MemoryImage()
    image.put("a", 4)
    group = ConsumerGroup("g", 0, image)
    for member in members:
        group.apply(MemberRecord("g", member.member_id, member))
        group.apply(CurrentRecord("g", member.member_id, member))
    return group


def topic_id(group: ConsumerGroup) -> bytes:
    topic = group.image.find("a")
    assert topic is not None
    return topic.topic_id


def refusal(group: ConsumerGroup, member_id: str, epoch: int, *, is_transactional: bool, partition: int = 0) -> ErrorCode:
    commits = [PartitionCommit("a", partition, 1, None, "", None)]
    request = CommitRequest("g", commits, member_id, epoch, knows_consumer_protocol=True)
    try:
        group.check_commit(request, is_transactional=is_transactional)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_commit_without_a_member_is_taken_from_an_old_producer_only_while_there_are_members() -> None:
    group = group_of(ConsumerMember("m", EPOCH))
    assert refusal(group, "", -1, is_transactional=True) is ErrorCode.NONE
    assert refusal(group, "", -1, is_transactional=False) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", EPOCH, is_transactional=True) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group_of(), "anybody", -1, is_transactional=False) is ErrorCode.NONE
    assert refusal(group_of(), "anybody", 0, is_transactional=False) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("classic", [None, CLASSIC])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_commit_with_another_epoch_is_refused_in_the_words_of_the_protocol(
    classic: ClassicMembership | None, is_transactional: bool
) -> None:
    group = group_of()
    owner = ConsumerMember("m", EPOCH, EPOCH - 1, assigned={topic_id(group): {0: EPOCH - 2}}, classic=classic)
    group = group_of(replace(owner, pending_revocation={topic_id(group): {1: EPOCH - 1}}))
    stale = ErrorCode.ILLEGAL_GENERATION if classic is not None or is_transactional else ErrorCode.STALE_MEMBER_EPOCH
    for epoch, partition, expected in [
        (EPOCH, 3, ErrorCode.NONE),
        (EPOCH + 1, 0, stale),
        (EPOCH - 2, 0, ErrorCode.NONE),
        (EPOCH - 3, 0, stale),
        (EPOCH - 1, 1, ErrorCode.NONE),
        (EPOCH - 2, 1, stale),
        (EPOCH - 1, 2, stale),
    ]:
        assert refusal(group, "m", epoch, is_transactional=is_transactional, partition=partition) is expected


def test_group_is_subscribed_to_what_matches_an_expression() -> None:
    group = group_of(ConsumerMember("m", EPOCH, subscribed_topic_regex="b.*"))
    group.apply(RegexRecord("g", "b.*", ResolvedRegex(frozenset({"b1"}), 1, 1)))
    assert group.is_subscribed_to("b1")
    group.apply(RegexRecord("g", "b.*", ResolvedRegex(frozenset({"b2"}), 2, 2)))
    assert not group.is_subscribed_to("b1")
    assert RegexRecord("g", "b.*", None) in group.tombstones()


def test_partition_that_has_a_new_owner_stays_with_it_when_the_former_one_says_so_later() -> None:
    group = group_of()
    had = ConsumerMember("m", EPOCH - 1, assigned={topic_id(group): {0: EPOCH - 1}})
    has = ConsumerMember("n", EPOCH, assigned={topic_id(group): {0: EPOCH}})
    group = group_of(had, has)
    group.apply(CurrentRecord("g", "m", ConsumerMember("m", EPOCH)))
    assert not group.is_free(topic_id(group), 0)
    group.apply(CurrentRecord("g", "n", ConsumerMember("n", EPOCH)))
    assert group.is_free(topic_id(group), 0)


def test_name_of_a_static_member_stays_with_its_successor_when_the_former_one_goes() -> None:
    group = group_of(ConsumerMember("m", EPOCH, instance_id="i"), ConsumerMember("n", EPOCH, instance_id="i"))
    group.apply(MemberRecord("g", "m", None))
    found = group.static_member("i")
    assert found is not None
    assert found.member_id == "n"
    group.apply(MemberRecord("g", "n", None))
    assert group.static_member("i") is None


def test_group_whose_target_is_gone_is_due_for_one() -> None:
    group = group_of(ConsumerMember("m", 0))
    group.apply(TargetEpochRecord("g", None))
    assert (group.assignment_epoch, group.state_name) == (-1, "Assigning")


def test_fenced_static_member_is_logged_with_the_member_that_has_replaced_it() -> None:
    group = group_of(ConsumerMember("m", EPOCH, instance_id="i"))
    effects = Effects()
    with capture_logs() as lines:
        replace_static(group, group.members["m"], "n", effects)
        for record in effects.records:
            if isinstance(record, MemberRecord) and record.member is not None:
                group.apply(record)
        with pytest.raises(KafkaError) as fenced:
            check_static(group, "i", "m")
    assert fenced.value.code is ErrorCode.FENCED_INSTANCE_ID
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("info", "Static member rejoined"),
        ("info", "Fenced a static member"),
    ]
    assert (lines[0]["group"], lines[0]["instance"], lines[0]["member"], lines[0]["was"]) == ("g", "i", "n", "m")
    assert (lines[1]["group"], lines[1]["instance"], lines[1]["member"], lines[1]["replaced_by"]) == ("g", "i", "m", "n")
