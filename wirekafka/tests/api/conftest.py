"""Fixtures of all tests of APIs."""

from __future__ import annotations

from importlib import import_module

import pytest

TIME_LIMITS = (
    ("wirekafka.slices", "FIRST_SLICE_SECONDS"),
    ("wirekafka.slices", "SLICE_SECONDS"),
    ("wirekafka.api.list_offsets", "SECONDS_ON_LOOP"),
    ("wirekafka.api.produce.produce_pass", "SECONDS_ON_LOOP"),
    ("wirekafka.replication.purgatory", "SECONDS_AT_ONCE"),
)
"""The constants, with their modules, that bound the time in which a handler answers at once."""


@pytest.fixture(autouse=True)
def _no_time_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets handlers answer at once however slow the machine is, except in tests with the mark `time_limits`.

    A test with a small request expects its response at once. On a loaded machine, a handler may reach its time limit before it
    has done anything.
    """
    if request.node.get_closest_marker("time_limits") is None:
        for module, name in TIME_LIMITS:
            monkeypatch.setattr(import_module(module), name, 60.0)
