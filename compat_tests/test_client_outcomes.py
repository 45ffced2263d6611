"""The tables of docs/testing.md say what real clients do under faults, and the log is sound after each case.

`python -m tools.client_outcomes` writes the tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.harness.tools import Tools
from compat_tests.test_files import data_files, faults
from tools.client_outcomes.all_clients import find_cells
from tools.client_outcomes.page import Row, rows, written_cells

pytestmark = [pytest.mark.wirekafka_only("the faults of its library for tests")]

QUICK: tuple[Row, ...] = (
    ("A producer", 'api="Produce", error="NOT_ENOUGH_REPLICAS"'),
    ("A producer", 'api="Produce", error="MESSAGE_TOO_LARGE"'),
    ("A producer", 'api="Produce", full_disk=True'),
    ("A producer", 'api="Produce", disconnect="reply"'),
    ("A consumer", 'api="Fetch", topic="orders", error="OFFSET_OUT_OF_RANGE"'),
    ("A consumer", 'api="Fetch", disconnect="mid_reply"'),
    ("A member of a group", 'api="OffsetCommit", error="OFFSET_METADATA_TOO_LARGE"'),
    ("A transaction", 'api="EndTxn", error="CONCURRENT_TRANSACTIONS"'),
    ("A transaction", 'api="EndTxn", error="PRODUCER_FENCED"'),
)
"""Rows in which no client waits for a timeout."""


def test_page_has_a_row_for_each_case() -> None:
    assert list(written_cells()) == list(rows())


@pytest.mark.java
@pytest.mark.xdist_group("java")
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(tuple(rows()), id="all", marks=[pytest.mark.long("all rows of the tables"), pytest.mark.timeout(1800)]),
    ],
)
def test_clients_do_what_the_page_says_and_leave_the_log_sound(chosen: tuple[Row, ...], tools_jvm: Tools, tmp_path: Path) -> None:
    """Each log is checked after the fault, and after the broker's time has moved past the timeouts and the retention."""
    found = find_cells({row: rows()[row] for row in chosen}, tmp_path)
    assert found == {row: written_cells()[row] for row in chosen}
    files = data_files(tmp_path)
    assert files
    assert faults(tools_jvm, files) == []
