"""Random operations have the same results, errors and watch events on the model and on ZooKeeper itself."""

from __future__ import annotations

import pytest

from compat_tests.zookeeper.stage import SocketStage, play
from wirekafka.tests.zookeeper.model_stage import ModelStage
from wirekafka.tests.zookeeper.random_operations import transcript

OPERATION_COUNT = 200


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_have_the_outcomes_of_the_model(seed: int, server_address: str | None) -> None:
    async def test(stage: SocketStage) -> None:
        assert await transcript(stage, seed, OPERATION_COUNT) == await transcript(ModelStage(), seed, OPERATION_COUNT)

    play(test, server_address)
