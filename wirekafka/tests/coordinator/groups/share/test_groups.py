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
from wirekafka.coordinator.groups.share.requests import ShareHeartbeat
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


def test_heartbeat_of_a_settled_group_looks_at_no_topic_and_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ShareWorld()
    for number in range(10):
        world.image.put(f"t{number}", 3)
    for _ in range(2):
        for member_id in ("a", "b"):
            group = world.shares.find("g")
            epoch = 0 if group is None or member_id not in group.members else group.members[member_id].member_epoch
            names = [f"t{number}" for number in range(10)] if epoch == 0 else None
            world.heartbeat(ShareHeartbeat("g", member_id, epoch, subscribed_topic_names=names))
    group = world.shares.group("g")
    assert group.assignment_epoch == group.group_epoch
    world.heartbeat(ShareHeartbeat("g", "a", group.assignment_epoch))
    found: list[str] = []
    find = world.image.find
    monkeypatch.setattr(world.image, "find", lambda name: (found.append(name), find(name))[1])
    monkeypatch.setattr(type(group), "_has_unassigned", lambda *_: pytest.fail("all targets are gone through"))
    world.heartbeat(ShareHeartbeat("g", "a", group.assignment_epoch))
    assert found == []
    world.image.put("t0", 4)
    assert [name for name, _ in world.shares.uninitialized(ShareHeartbeat("g", "a", group.assignment_epoch)).values()] == ["t0"]
