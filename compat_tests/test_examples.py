"""The programs in examples/, each run as the README says, and their output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from compat_tests.harness.broker import Broker

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(example: str, bootstrap: str) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / example), bootstrap], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def test_produce_and_consume_reads_what_it_wrote(broker: Broker) -> None:
    printed = run("produce_and_consume.py", broker.bootstrap)
    assert re.findall(r"offset (\d+): (\d+) = greeting (\d+)", printed)[-10:] == [(f"{n}", f"{n}", f"{n}") for n in range(10)]


def test_group_shares_six_partitions_among_three_and_then_two(broker: Broker) -> None:
    printed = run("group.py", broker.bootstrap)
    shares = [
        (name, json.loads(partitions))
        for name, partitions in re.findall(r"(\w+) read \d+ records and has partitions (.*)", printed)
    ]
    three, two = shares[3:6], shares[6:]
    assert [name for name, _ in three] == ["ann", "ben", "cas"]
    assert [len(partitions) for _, partitions in three] == [2, 2, 2]
    assert [name for name, _ in two] == ["ann", "ben"]
    assert sorted(sum((partitions for _, partitions in two), [])) == list(range(6))
    assert "1200 different records" in printed


def test_exactly_once_bills_each_order_once_although_the_billing_crashes(broker: Broker) -> None:
    printed = run("exactly_once.py", broker.bootstrap)
    assert "the billing has crashed in the middle of a transaction" in printed
    (written,) = re.findall(r"read_uncommitted: (\d+) invoices, 100 different ones", printed)
    assert int(written) > 100
    assert "read_committed: 100 invoices, 100 different ones" in printed
