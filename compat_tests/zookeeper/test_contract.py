"""kazoo passes the contract of the clients of ZooKeeper, with ZooKeeper itself and with the model on a socket."""

from __future__ import annotations

import pytest

from compat_tests.zookeeper.stage import play
from wirekafka.tests.zookeeper.contract import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_kazoo_passes_the_contract(scenario: Scenario, server_address: str | None) -> None:
    play(scenario, server_address)
