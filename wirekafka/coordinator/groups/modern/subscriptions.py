"""How many members subscribe to what, counted as they come and go.

Rule of this file: what nobody subscribes to is not in the counts.

Source: SubscriptionCount, ModernGroup.subscribedTopicNames.
"""

from __future__ import annotations

from collections.abc import Iterable

Counts = dict[str, int]
"""The number of subscribers by what they subscribe to."""


def count_in(counts: Counts, names: Iterable[str]) -> None:
    """One more subscribes to each of the names."""
    for name in names:
        counts[name] = counts.get(name, 0) + 1


def count_out(counts: Counts, names: Iterable[str]) -> None:
    """One less subscribes to each of the names."""
    for name in names:
        left = counts[name] - 1
        if left:
            counts[name] = left
        else:
            del counts[name]
