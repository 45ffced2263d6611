"""The counts of subscribers by topic, and their cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wirekafka.coordinator.groups.modern.subscriptions import Subscriptions

NAMES = st.frozensets(st.sampled_from("abcd"))


def of(*members: str) -> Subscriptions:
    subscriptions = Subscriptions()
    for names in members:
        subscriptions.add(frozenset(names))
    return subscriptions


@given(st.lists(NAMES), st.lists(NAMES), st.data())
def test_topics_after_a_change_are_those_of_the_members_that_stay_and_come(
    before: list[frozenset[str]], added: list[frozenset[str]], data: st.DataObject
) -> None:
    subscriptions = Subscriptions()
    for names in before:
        subscriptions.add(names)
    removed = data.draw(st.lists(st.sampled_from(range(len(before))), unique=True)) if before else []
    stay = [names for place, names in enumerate(before) if place not in removed]
    foreseen = subscriptions.topics_after([before[place] for place in removed], added)
    after = {*subscriptions} if foreseen is None else foreseen
    for names in added:
        subscriptions.add(names)
    for place in removed:
        subscriptions.remove(before[place])
    assert after == {*subscriptions} == set().union(*stay, *added)


def test_member_that_subscribes_as_another_does_changes_nothing() -> None:
    subscriptions = of("ab")
    revision = subscriptions.revision
    shared = subscriptions.share(frozenset("ba"))
    assert subscriptions.topics_after([], [shared]) is None
    subscriptions.add(shared)
    assert subscriptions.topics_after([shared]) is None
    subscriptions.remove(shared)
    assert subscriptions.revision == revision
    assert subscriptions.share(frozenset("ba")) is subscriptions.share(frozenset("ab"))


def test_last_subscription_with_a_topic_takes_the_topic_away() -> None:
    subscriptions = of("ab", "a")
    revision = subscriptions.revision
    assert subscriptions.topics_after([frozenset("ab")]) == {"a"}
    subscriptions.remove(frozenset("ab"))
    assert "b" not in subscriptions
    assert subscriptions.revision > revision
