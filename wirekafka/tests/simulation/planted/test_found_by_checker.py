"""The checker finds the known bugs of the two cores of replication, from histories of random runs of three replicas in memory."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.files import Batch, Record, Replica
from wirekafka.simulation.checker.violations import Violation
from wirekafka.simulation.history import History, RecordRead, RecordSent, SendAcknowledged, TopicCreated
from wirekafka.simulation.planted.catalogue import PLANTED
from wirekafka.simulation.planted.planting import PlantedBug, plant
from wirekafka.tests.replication import replicas
from wirekafka.tests.replication.replicas import ACTS, BROKERS, Cluster

MOST_SEEDS = 2_000
"""The seeds within which each bug must be found."""

STEPS = 250

CORE_BUGS = (
    "truncate-to-high-watermark",
    "truncate-to-end-of-unknown-epoch",
    "keep-diverging-records",
    "commit-without-followers",
    "high-watermark-over-committed-isr",
    "high-watermark-over-proposed-isr",
    "join-isr-before-epoch-start",
    "isr-without-broker-epochs",
    "forget-change-of-unknown-outcome",
)
"""The bugs of `Leadership` and `Following`. The others are in logs and in brokers, which these runs do not have."""


class RecordingCluster(Cluster):
    """Records what the clients see, and leaves the judgement to the checker.

    A consumer reads at the leader as soon as the high watermark moves, and a producer is told then too.
    """

    def __init__(self, min_insync_replicas: int) -> None:
        self.history = History()
        self.history.add(TopicCreated("t", 1, min_insync_replicas))
        self._sent_at: dict[int, int] = {}
        super().__init__(min_insync_replicas)

    def produce(self, broker_id: int) -> None:
        if self.replicas[broker_id].leadership is not None:
            value = self.next_value + 1
            self._sent_at[value] = broker_id
            self.history.add(RecordSent("p", "t", 0, str(value)), self.now_ms)
        super().produce(broker_id)

    def _commit(self, replica: replicas.Replica, offset: int) -> None:
        log, position = replica.log, replica.log.high_watermark
        log.high_watermark = offset
        for number in range(position, offset):
            value = log.records[number][1]
            if self._sent_at.pop(value, None) == replica.broker_id:
                self.history.add(SendAcknowledged(str(value), number), self.now_ms)
            self.history.add(RecordRead("c", "t", 0, number, str(value), False, number), self.now_ms)

    def logs(self) -> list[Replica]:
        """Returns the logs as the checker reads them from files: one batch for each record."""
        found = []
        for replica in self.replicas.values():
            log = replica.log
            batches = tuple(
                Batch(offset, offset, epoch, -1, -1, -1, False, False, None, (Record(offset, None, str(value).encode()),))
                for offset, (epoch, value) in enumerate(log.records)
            )
            epochs = tuple((entry.epoch, entry.start_offset) for entry in log.epochs.entries)
            found.append(Replica(replica.broker_id, "t", 0, batches, 0, log.end_offset, log.high_watermark, epochs))
        return found


@pytest.fixture(autouse=True)
def _only_the_checker_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "check_leadership", lambda leader: None)


def run_seed(seed: int) -> list[Violation]:
    """Plays a seed, heals the cluster, and returns what the checker finds."""
    dice = random.Random(seed)
    cluster = RecordingCluster(dice.choice([1, 2]))
    for _ in range(STEPS):
        getattr(cluster, dice.choice(ACTS).__name__)(dice.choice(BROKERS))
    with suppress(AssertionError):  # If the replicas do not become equal, the checker finds that too.
        cluster.heal()
    return check(cluster.history, cluster.logs(), is_settled=True)


def search(bug: PlantedBug) -> tuple[int, list[Violation]] | None:
    """Returns the first seed whose run with the bug violates a property, and the violations."""
    with plant(bug):
        for seed in range(MOST_SEEDS):
            if found := run_seed(seed):
                return seed, found
    return None


def test_runs_without_a_bug_violate_nothing() -> None:
    violations = [violation for seed in range(100) for violation in run_seed(seed)]

    assert [str(violation) for violation in violations] == []


@pytest.mark.parametrize("name", CORE_BUGS)
def test_planted_bug_of_a_core_is_found(name: str) -> None:
    assert search(PLANTED[name]) is not None
