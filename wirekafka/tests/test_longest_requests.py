"""The options of `python -m tools.longest_requests`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tools import longest_requests


def test_longest_requests_asked_for_help_explains_itself() -> None:
    told = CliRunner().invoke(longest_requests.main, ["--help"])
    assert told.exit_code == 0
    assert "COUNT is the number of elements" in told.output


@pytest.mark.parametrize("count", ["many", "0", "20001"])
def test_longest_requests_of_a_bad_count_are_refused(count: str) -> None:
    told = CliRunner().invoke(longest_requests.main, [count])
    assert told.exit_code == 2
    assert "Invalid value" in told.output
