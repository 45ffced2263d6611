"""The simulator finds known bugs of replication when they are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wirekafka.replication import following, leadership
from wirekafka.replication.following import Following
from wirekafka.replication.leadership import Leadership
from wirekafka.replication.partition import Partition
from wirekafka.simulation.run import run_seed
from wirekafka.simulation.world import Mode

MOST_SEEDS = 40
FIRST_SEED = {"truncate_to_the_high_watermark": 50}
"""Where the search begins for bugs that show themselves in few seeds only; 0 for the others."""


def commit_without_followers(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Leadership, now_ms: int) -> leadership.Effects:
        if self.log_end_offset <= self.high_watermark:
            return []
        self.high_watermark = self.log_end_offset
        return [leadership.AdvanceHighWatermark(self.log_end_offset)]

    patch.setattr(Leadership, "_commit", commit)


def truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Apache Kafka did so before KIP-101."""
    follow: Callable[[Following, Any], following.Effects] = Following._follow

    def truncate(self: Following, event: following.BecameFollower) -> following.Effects:
        effects = follow(self, event)
        if effects and event.leader_id is not None and event.high_watermark < event.log_end_offset:
            return self._truncate(event.high_watermark)
        return effects

    patch.setattr(Following, "_follow", truncate)


def do_not_compare_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "check_leader_epoch", lambda self, epoch: None)
    patch.setattr(Partition, "find_divergence", lambda self, epoch, offset: None)


def do_not_truncate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "_diverge", lambda self, epoch, end_offset, now_ms: self._back_off(now_ms))


@pytest.mark.parametrize(
    "plant", [commit_without_followers, truncate_to_the_high_watermark, do_not_compare_epochs, do_not_truncate]
)
def test_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    first = FIRST_SEED.get(plant.__name__, 0)
    assert any(run_seed(seed, Mode.SAFETY).problems for seed in range(first, first + MOST_SEEDS))
