"""The examples of docs/cli.md, run in order and unchanged except for the address of the broker and the time limits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from compat_tests.conftest import BrokerFactory

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "cli.md").read_text()
ADDRESS = "localhost:9092"
EXAMPLES = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
NOT_HERE = ("pip install", "wirekafka serve")
"""What the harness has done before the test."""
WITH_MORE_TIME = """\
#!/bin/sh
case "$1" in topic|group|produce|consume|doctor) set -- "$@" --timeout 100;; esac
exec {python} -m wirekafka "$@"
"""
"""The command, which a machine with many tests may slow down."""


def test_every_example_of_the_page_runs_in_its_order(make_broker: BrokerFactory, tmp_path: Path) -> None:
    (tmp_path / "wirekafka").write_text(WITH_MORE_TIME.format(python=sys.executable))
    (tmp_path / "wirekafka").chmod(0o755)
    script = "\n".join(each for each in EXAMPLES if not each.startswith(NOT_HERE)).replace(ADDRESS, make_broker().bootstrap)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    assert ["orders", "created"] in printed
    assert ["orders", "3", "1", "ok"] in printed
    assert ["billing", "deleted"] in printed
    assert ["Everything", "is", "fine."] in printed
    assert ["a", "=", "a", "third", "one"] in printed
    [copied] = [line for line in done.stdout.splitlines() if "written to orders-copy" in line]
    assert copied.startswith("8 records written to orders-copy")
