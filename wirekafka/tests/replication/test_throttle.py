"""The throttles of replication: rates, lists of replicas, and decisions, as tables."""

from __future__ import annotations

import pytest

from wirekafka.replication.throttle import Rate, ReplicationThrottle, lists_replica

BROKER = 7


@pytest.mark.parametrize(
    ("replicas", "listed"),
    [
        ([], False),
        (["*"], True),
        (["0:7"], True),
        (["0:8", "1:7"], False),
        (["0:8", "0:7"], True),
        (["0:77"], False),
        ([""], False),
    ],
)
def test_list_of_throttled_replicas_names_partition_and_broker(replicas: list[str], listed: bool) -> None:
    assert lists_replica(frozenset(replicas), 0, BROKER) == listed


@pytest.mark.parametrize(
    ("recorded", "now_ms", "rate"),
    [
        pytest.param([], 0, 0, id="no traffic"),
        pytest.param([(0, 100)], 0, 100, id="a short time counts as one window"),
        pytest.param([(0, 100)], 999, 100, id="still one window"),
        pytest.param([(0, 100)], 2_000, 50, id="the time since the first sample"),
        pytest.param([(0, 100), (500, 100)], 1_000, 200, id="one sample for each window"),
        pytest.param([(0, 100), (1_000, 300)], 2_000, 200, id="two samples"),
        pytest.param([(0, 100), (1_000, 300)], 3_000, 150, id="the oldest sample is forgotten"),
        pytest.param([(0, 100), (1_000, 300), (2_000, 500), (3_000, 100)], 3_000, 450, id="no more samples than windows"),
        pytest.param([(0, 100), (100, -100)], 1_000, 0, id="bytes that were not sent"),
        pytest.param([(0, 100)], 3_000, 0, id="all samples are forgotten"),
    ],
)
def test_rate_is_that_of_the_last_windows(recorded: list[tuple[int, int]], now_ms: int, rate: float) -> None:
    measured = Rate(3, 1_000)
    for time_ms, size_bytes in recorded:
        measured.record(size_bytes, time_ms)
    assert measured.per_second(now_ms) == rate


@pytest.mark.parametrize(
    ("index", "size_bytes", "is_in_sync", "holds_back"),
    [
        pytest.param(0, 101, False, True, id="over the rate"),
        pytest.param(0, 100, False, False, id="at the rate"),
        pytest.param(0, 101, True, False, id="in sync"),
        pytest.param(1, 101, False, False, id="not throttled, and not counted"),
    ],
)
def test_throttled_partition_out_of_sync_is_held_back_over_the_rate(
    index: int, size_bytes: int, is_in_sync: bool, holds_back: bool
) -> None:
    throttle = ReplicationThrottle(lambda: 100, lambda topic, index: (topic, index) == ("flights", 0), Rate(11, 1_000))
    throttle.record("flights", index, size_bytes, 0)
    assert throttle.holds_back("flights", index, 0, is_in_sync=is_in_sync) == holds_back


def test_rate_that_is_raised_frees_the_partitions_at_once() -> None:
    limits = {"rate": 10}
    throttle = ReplicationThrottle(lambda: limits["rate"], lambda topic, index: True, Rate(11, 1_000))
    throttle.record("flights", 0, 50, 0)
    assert throttle.is_exceeded(0)
    limits["rate"] = 50
    assert not throttle.is_exceeded(0)
