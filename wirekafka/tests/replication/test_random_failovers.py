"""Replicas with leaders that change by chance: what was committed stays, and the logs become equal."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wirekafka.replication import following
from wirekafka.replication.following import BecameFollower, Fetch, Following
from wirekafka.replication.leadership import Effects, Follower, IsrChange, Leadership
from wirekafka.tests.replication import replicas
from wirekafka.tests.replication.replicas import ACTS, BROKERS, Act, Cluster

STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(BROKERS)), min_size=30, max_size=300)
MOST_SEEDS = 2_000
"""The seeds within which each planted bug must be found. A seed takes about 2 ms; most bugs show within 100."""


def run(steps: Iterable[tuple[Act, int]], min_insync_replicas: int) -> None:
    cluster = Cluster(min_insync_replicas)
    for act, broker_id in steps:
        act(cluster, broker_id)
        cluster.check()
    cluster.heal()
    cluster.check()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps=STEPS, min_insync_replicas=st.sampled_from([1, 2]))
def test_committed_records_stay_and_replicas_become_equal(steps: list[tuple[Act, int]], min_insync_replicas: int) -> None:
    run(steps, min_insync_replicas)


def run_seed(seed: int) -> None:
    dice = random.Random(seed)
    run([(dice.choice(ACTS), dice.choice(BROKERS)) for _ in range(250)], dice.choice([1, 2]))


def fails(seed: int) -> bool:
    try:
        run_seed(seed)
    except AssertionError:
        return True
    return False


def test_no_seed_fails_without_a_bug() -> None:
    assert [seed for seed in range(300) if fails(seed)] == []


# The bugs


def ignore_the_pending_change(leader: Leadership) -> frozenset[int]:
    return leader.committed_isr


def believe_the_pending_change(leader: Leadership) -> frozenset[int]:
    return leader.committed_isr if leader.pending is None else leader.pending.proposed


def join_at_the_high_watermark(leader: Leadership, replica_id: int, follower: Follower) -> Effects:
    if leader.pending is not None or replica_id in leader.committed_isr or (follower.log_end_offset or 0) < leader.high_watermark:
        return ()
    return leader._propose(leader.committed_isr | {replica_id})


def forget_the_change_when_the_state_is_repeated(leader: Leadership) -> Effects:
    leader.pending = None
    return ()


def forget_the_change_after_every_error(leader: Leadership, change: IsrChange, error: object, now_ms: int) -> Effects:
    if leader.pending is change:
        leader.pending = None
    return ()


FOLLOW = Following._follow


def truncate_to_the_high_watermark(follower: Following, event: BecameFollower) -> following.Effects:
    effects = FOLLOW(follower, event)
    return follower._truncate(event.high_watermark) if any(isinstance(effect, Fetch) for effect in effects) else effects


def truncate_to_the_leaders_end(follower: Following, epoch: int, end_offset: int, now_ms: int) -> following.Effects:
    return follower._truncate(end_offset)


def take_late_answers(follower: Following, event: following.Event) -> bool:
    return True


def find_no_divergence(log: replicas.MemoryLog, asked: Fetch) -> None:
    return None


BUGS: dict[str, tuple[object, str, object]] = {
    "the high watermark depends on the committed in-sync replicas only": (
        Leadership,
        "maximal_isr",
        property(ignore_the_pending_change),
    ),
    "the high watermark depends on the proposed in-sync replicas (KIP-497)": (
        Leadership,
        "maximal_isr",
        property(believe_the_pending_change),
    ),
    "a replica joins before the start of the epoch": (Leadership, "_expand", join_at_the_high_watermark),
    "broker epochs are not sent (KIP-903)": (Leadership, "_epoch_of", lambda leader, replica_id: None),
    "a repeated state ends a pending change": (Leadership, "_propose_again", forget_the_change_when_the_state_is_repeated),
    "every error ends a pending change": (Leadership, "_fail_change", forget_the_change_after_every_error),
    "a follower truncates to its high watermark (KIP-101)": (Following, "_follow", truncate_to_the_high_watermark),
    "a follower truncates to the end of an epoch that it lacks (KIP-279)": (
        Following,
        "_diverge",
        truncate_to_the_leaders_end,
    ),
    "a follower takes late answers": (Following, "_is_current", take_late_answers),
    "a leader does not notice that logs diverge (KIP-595)": (replicas, "find_divergence", find_no_divergence),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = BUGS[bug]
    monkeypatch.setattr(owner, name, wrong)
    assert any(fails(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} seeds do not show that {bug}"
