"""Fixtures of the tests of the server."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["epoll", "stream"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)
