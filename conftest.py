"""The option and the marker of long tests, of the unit tests and of the compatibility tests.

CI has each behaviour in one test of a size that it has time for. `pytest --long` also runs the tests that repeat another test's
proof, and gives other tests all their data, kills and time.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--long`."""
    parser.addoption("--long", action="store_true", help="run the long tests too, and all tests at their full size")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker."""
    config.addinivalue_line("markers", "long(reason): repeats at length what another test shows; runs with --long")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips the long tests unless `--long` is given, and lets the groups of xdist start first.

    The groups have most tests that take minutes. A worker that began one at the end would keep the others waiting.
    """
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    if config.getoption("--long"):
        return
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}; pytest --long runs it"))


@pytest.fixture(scope="session")
def is_long(request: pytest.FixtureRequest) -> bool:
    """Returns whether a test has its full size."""
    return bool(request.config.getoption("--long"))
