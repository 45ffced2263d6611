import pytest
from structlog.testing import capture_logs

from wirekafka.coordinator.groups.classic.group import TRANSITIONS, ClassicGroup, GroupState, Member
from wirekafka.coordinator.groups.records import GroupMetadataValue, MemberMetadata
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError


def make_member(member_id: str, *protocols: str, instance: str | None = None) -> Member:
    return Member(member_id, instance, "client", "/host", 20, 10, [(name, b"m") for name in protocols or ("range",)])


def make_group(*members: Member) -> ClassicGroup:
    group = ClassicGroup("g")
    for member in members:
        group.add(member, "consumer")
    return group


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("following", GroupState)
def test_state_follows_only_as_the_table_says(state: GroupState, following: GroupState) -> None:
    group = ClassicGroup("g", state=state)
    if following in TRANSITIONS[state]:
        group.transition_to(following, 5)
        assert (group.previous_state, group.state, group.state_timestamp_ms) == (state, following, 5)
    else:
        with pytest.raises(AssertionError):
            group.transition_to(following, 5)


def test_first_member_leads_and_the_next_follows_when_it_is_gone() -> None:
    group = make_group(make_member("a"), make_member("b"))
    assert group.leader == "a"
    group.remove("a")
    assert group.leader == "b"
    group.remove("b")
    assert group.leader is None


def test_protocol_is_what_most_prefer_of_what_all_support() -> None:
    group = make_group(make_member("a", "x", "y", "z"), make_member("b", "z", "y"), make_member("c", "z", "y"))
    assert group.select_protocol() == "z"
    group.remove("c")
    assert group.select_protocol() == "y"


def test_protocol_named_twice_counts_once() -> None:
    group = make_group(make_member("a", "x", "x"))
    group.state = GroupState.STABLE
    assert not group.supports("consumer", [("y", b"")])
    group.add(make_member("b", "x"), "consumer")
    assert group.select_protocol() == "x"


def test_replaced_static_member_keeps_place_and_leadership() -> None:
    group = make_group(make_member("a", instance="one"), make_member("b"))
    group.replace_static("one", "a2")
    assert list(group.members) == ["a2", "b"]
    assert group.leader == "a2"
    group.check_member("a2", "one")


@pytest.mark.parametrize(
    ("member_id", "instance", "error"),
    [
        ("a", "one", None),
        ("a", None, None),
        ("x", "one", ErrorCode.FENCED_INSTANCE_ID),
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", "two", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_member_is_known_by_id_and_instance(member_id: str, instance: str | None, error: ErrorCode | None) -> None:
    group = make_group(make_member("a", instance="one"))
    if error is None:
        group.check_member(member_id, instance)
        return
    with pytest.raises(KafkaError) as refused:
        group.check_member(member_id, instance)
    assert refused.value.code is error


def test_fenced_static_member_is_logged_with_the_member_that_has_replaced_it() -> None:
    group = make_group(make_member("a", instance="one"))
    group.replace_static("one", "b")
    with capture_logs() as lines, pytest.raises(KafkaError):
        group.check_member("a", "one")
    [line] = lines
    assert (line["log_level"], line["event"]) == ("info", "Fenced a static member")
    assert (line["group"], line["instance"], line["member"], line["replaced_by"]) == ("g", "one", "a", "b")


def test_generation_starts_over_before_it_would_be_negative() -> None:
    group = make_group(make_member("a"))
    group.state, group.generation_id = GroupState.PREPARING_REBALANCE, 0x7FFFFFFF
    group.start_generation(0)
    assert group.generation_id == 1


def test_group_of_a_record_takes_the_session_timeout_where_an_old_record_has_no_other() -> None:
    loaded = MemberMetadata(member_id="a", session_timeout=10, rebalance_timeout=-1)
    group = ClassicGroup.of_record(
        "g", 3, GroupMetadataValue(protocol_type="consumer", protocol="range", leader="a", members=[loaded])
    )
    assert group.members["a"].rebalance_timeout_ms == 10
    assert (group.state, group.partition, group.state_timestamp_ms) == (GroupState.STABLE, 3, None)


def test_group_of_a_record_with_members_but_no_protocol_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ClassicGroup.of_record("g", 0, GroupMetadataValue(members=[MemberMetadata(member_id="a")]))


@pytest.mark.parametrize(
    ("first", "second"), [(("a", None), ("a", None)), (("a", "one"), ("b", "one")), (("a", "one"), ("a", "two"))]
)
def test_group_of_a_record_that_names_a_member_twice_is_refused(
    first: tuple[str, str | None], second: tuple[str, str | None]
) -> None:
    members = [MemberMetadata(member_id=member_id, group_instance_id=instance) for member_id, instance in (first, second)]
    with pytest.raises(ProtocolError):
        ClassicGroup.of_record("g", 0, GroupMetadataValue(protocol="range", members=members))


@pytest.mark.parametrize("leader", [None, "gone"])
def test_group_of_a_record_whose_leader_is_no_member_is_led_by_the_first(leader: str | None) -> None:
    members = [MemberMetadata(member_id="a"), MemberMetadata(member_id="b")]
    group = ClassicGroup.of_record("g", 0, GroupMetadataValue(protocol="range", leader=leader, members=members))
    assert group.leader == "a"
