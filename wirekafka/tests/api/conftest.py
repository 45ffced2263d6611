"""What the tests of APIs are held to."""

from __future__ import annotations

from importlib import import_module

import pytest

TIME_LIMITS = {
    "wirekafka.slices": "SLICE_SECONDS",
    "wirekafka.api.list_offsets": "SECONDS_ON_LOOP",
    "wirekafka.api.produce.produce_pass": "SECONDS_ON_LOOP",
}
"""The constants after which a handler answers later, by module."""


@pytest.fixture(autouse=True)
def _no_time_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers answer at once however slow the machine is, but in tests with the mark `time_limits`.

    A test that asks a small question expects its response at once. On a loaded machine, a handler may reach its time limit
    before it has done anything.
    """
    if request.node.get_closest_marker("time_limits") is None:
        for module, name in TIME_LIMITS.items():
            monkeypatch.setattr(import_module(module), name, 60.0)
