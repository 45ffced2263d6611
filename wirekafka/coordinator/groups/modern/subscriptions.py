"""The topics to which the members of a group subscribe, counted as members join, leave and change their subscription.

How it works: most members of a group subscribe to the same topics. So the members are counted for each subscription, and
the subscriptions for each topic: a member that joins or leaves costs O(1) as long as another member has the same subscription.

Rule of this file: a topic or a subscription without subscribers is not in the counts.

Source: SubscriptionCount, ModernGroup.subscribedTopicNames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Counts = dict[str, int]
"""The number of subscribers of each topic, expression or assignor."""

TopicNames = frozenset[str]
"""The names of the topics to which a member subscribes."""


def count_in(counts: Counts, names: Iterable[str]) -> None:
    """Adds one subscriber to each of the names."""
    for name in names:
        counts[name] = counts.get(name, 0) + 1


def count_out(counts: Counts, names: Iterable[str]) -> None:
    """Removes one subscriber from each of the names."""
    for name in names:
        left = counts[name] - 1
        if left:
            counts[name] = left
        else:
            del counts[name]


class Subscriptions:
    """The subscriptions of a group's members by name.

    Attributes:
        revision: increases with each change of the set of topics.
    """

    __slots__ = ("_member_counts", "_shared", "_subscription_counts", "revision")

    def __init__(self) -> None:
        self.revision = 0
        self._member_counts: dict[TopicNames, int] = {}
        self._shared: dict[TopicNames, TopicNames] = {}
        self._subscription_counts: Counts = {}

    def __contains__(self, topic: object) -> bool:
        return topic in self._subscription_counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._subscription_counts)

    def share(self, names: TopicNames) -> TopicNames:
        """Returns the stored object of an equal subscription, which makes comparisons cheap; the argument if there is none."""
        return self._shared.get(names, names)

    def add(self, names: TopicNames) -> None:
        """Counts a member with this subscription."""
        count = self._member_counts.get(names, 0)
        self._member_counts[names] = count + 1
        if not count:
            self._shared[names] = names
            self.revision += 1
            count_in(self._subscription_counts, names)

    def remove(self, names: TopicNames) -> None:
        """Removes a member with this subscription from the counts."""
        count = self._member_counts[names] - 1
        if count:
            self._member_counts[names] = count
            return
        del self._member_counts[names]
        del self._shared[names]
        self.revision += 1
        count_out(self._subscription_counts, names)

    def topics_after(self, removed: Iterable[TopicNames], added: Iterable[TopicNames] = ()) -> set[str] | None:
        """Returns the topics after these subscriptions are removed and added; None if the subscriptions stay the same."""
        changes: dict[TopicNames, int] = {}
        for names in removed:
            changes[names] = changes.get(names, 0) - 1
        for names in added:
            changes[names] = changes.get(names, 0) + 1
        known = self._member_counts
        begun = [names for names, change in changes.items() if change > 0 and names not in known]
        ended = [names for names, change in changes.items() if change < 0 and known.get(names, 0) + change == 0]
        if not begun and not ended:
            return None
        counts = dict(self._subscription_counts)
        for names in begun:
            count_in(counts, names)
        for names in ended:
            count_out(counts, names)
        return {*counts}
