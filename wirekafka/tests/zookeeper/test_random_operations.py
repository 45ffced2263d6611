"""The model is deterministic, and random operations reach every kind of outcome. `compat_tests` compares them with ZooKeeper."""

from __future__ import annotations

import pytest
import trio

from wirekafka.tests.zookeeper.model_stage import ModelStage
from wirekafka.tests.zookeeper.random_operations import transcript


def play(seed: int) -> list[str]:
    played = []

    async def run() -> None:
        played.append(await transcript(ModelStage(), seed, 300))

    trio.run(run)
    return played[0]


def test_model_gives_the_same_transcript_for_the_same_seed() -> None:
    assert play(1) == play(1) != play(2)


@pytest.mark.parametrize(
    "outcome",
    [
        "NODE_EXISTS",
        "NO_NODE",
        "BAD_VERSION",
        "NOT_EMPTY",
        "NO_CHILDREN_FOR_EPHEMERALS",
        "RUNTIME_INCONSISTENCY",
        "NODE_CREATED",
        "NODE_DELETED",
        "NODE_DATA_CHANGED",
        "NODE_CHILDREN_CHANGED",
        "LOST",
        "client 1",
        "0000000001",
    ],
)
def test_random_operations_have_every_outcome(outcome: str) -> None:
    assert any(outcome in line for seed in range(3) for line in play(seed))
