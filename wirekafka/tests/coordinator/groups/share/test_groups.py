from __future__ import annotations

import pytest

from wirekafka.coordinator.groups.share.records import (
    ShareCurrentRecord,
    ShareGroupEpochRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    ShareTargetEpochRecord,
    ShareTargetRecord,
    StatePartitionsRecord,
)
from wirekafka.tests.coordinator.groups.share.world import ShareWorld


@pytest.mark.parametrize(
    "record",
    [
        ShareMemberRecord("g", "m", None),
        ShareCurrentRecord("g", "m", None),
        ShareTargetRecord("g", "m", None),
        ShareTargetEpochRecord("g", None),
        ShareGroupEpochRecord("g", None),
        StatePartitionsRecord("g", None),
    ],
    ids=lambda record: type(record).__name__,
)
def test_tombstone_of_a_group_that_there_is_not_makes_none(record: ShareGroupRecord) -> None:
    world = ShareWorld()
    world.shares.replay(record)
    assert world.shares.all() == []
