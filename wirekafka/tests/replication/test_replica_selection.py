"""Which replica a leader names to a consumer, as a table."""

from __future__ import annotations

import pytest

from wirekafka.replication.leadership import Follower, Leadership
from wirekafka.replication.replica_selection import preferred_read_replica

LEADER, NOW_MS = 1, 1_000


def follower(end_offset: int | None, start_offset: int | None = 0, *, caught_up_ms: int | None = 900) -> Follower:
    return Follower(log_end_offset=end_offset, log_start_offset=start_offset, last_caught_up_ms=caught_up_ms)


RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: None}


@pytest.mark.parametrize(
    ("rack", "followers", "in_sync", "chosen"),
    [
        pytest.param("b", {2: follower(10)}, (1, 2), 2, id="in the rack of the consumer"),
        pytest.param("a", {2: follower(10)}, (1, 2), None, id="leader is in the rack"),
        pytest.param("c", {2: follower(10)}, (1, 2), None, id="no replica is in the rack"),
        pytest.param("b", {2: follower(10)}, (1,), None, id="not in sync"),
        pytest.param("b", {2: follower(9)}, (1, 2), None, id="has not reached the offset"),
        pytest.param("b", {2: follower(20, 11)}, (1, 2), None, id="starts after the offset"),
        pytest.param("b", {2: follower(None, None)}, (1, 2), None, id="has never fetched"),
        pytest.param("b", {2: follower(10), 3: follower(11)}, (1, 2, 3), 3, id="the longer log"),
        pytest.param("b", {2: follower(12), 3: follower(11)}, (1, 2, 3), 2, id="the longer log, by a lower id"),
        pytest.param(
            "b", {2: follower(11, caught_up_ms=950), 3: follower(11)}, (1, 2, 3), 2, id="as long, and caught up more recently"
        ),
        pytest.param(
            "b", {2: follower(11), 3: follower(11, caught_up_ms=None)}, (1, 2, 3), 2, id="as long, and was ever caught up"
        ),
        pytest.param("b", {2: follower(11), 3: follower(11)}, (1, 2, 3), 3, id="the higher id decides last"),
        pytest.param("b", {5: follower(11)}, (1, 5), None, id="follower has no rack"),
    ],
)
def test_leader_names_the_most_caught_up_replica_of_the_rack(
    rack: str, followers: dict[int, Follower], in_sync: tuple[int, ...], chosen: int | None
) -> None:
    leadership = Leadership(LEADER, high_watermark=10, min_insync_replicas=1, replica_lag_time_max_ms=100, broker_epochs={})
    leadership.followers = followers
    leadership.committed_isr = frozenset(in_sync)
    assert preferred_read_replica(leadership, rack, 10, RACKS.__getitem__, NOW_MS) == chosen
