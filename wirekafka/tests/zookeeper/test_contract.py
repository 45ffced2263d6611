"""The model does what ZooKeeper does: the scenarios of the contract. `compat_tests` runs them against ZooKeeper itself."""

from __future__ import annotations

import pytest
import trio

from wirekafka.tests.zookeeper.contract import SCENARIOS, Scenario
from wirekafka.tests.zookeeper.model_stage import ModelStage


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_model_passes_the_contract(scenario: Scenario) -> None:
    async def play() -> None:
        await scenario(ModelStage())

    trio.run(play)
