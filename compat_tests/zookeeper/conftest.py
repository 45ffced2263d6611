"""Fixtures of the tests with ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.zookeeper import ZooKeeper, zookeeper
from wirekafka.faults import forget_logged


@pytest.fixture(autouse=True)
def _forget_logged_faults() -> None:
    """Resets the rate limits of the log, so that each test sees all lines about a failure."""
    forget_logged()


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Returns a ZooKeeper that no test stops."""
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    """Returns a ZooKeeper of one test, which may stop it."""
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with zookeeper(tmp_path) as running:
        yield running


@pytest.fixture(params=["model", "zookeeper"])
def server_address(request: pytest.FixtureRequest) -> str | None:
    """Returns the address of ZooKeeper; None for a model, which the test serves itself."""
    if request.param == "model":
        return None
    return request.getfixturevalue("shared_zookeeper").address
