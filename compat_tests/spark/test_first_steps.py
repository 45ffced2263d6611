"""The first steps of docs/pipelines.md: its snippets and commands run in their order, and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.harness.broker import Broker
from compat_tests.harness.pipelines import ROOT, small_session

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-backfill"),
    pytest.mark.wirekafka_only("its documentation"),
    pytest.mark.timeout(600),
]

PAGE = (ROOT / "docs" / "pipelines.md").read_text()
ADDRESS = "127.0.0.1:9092"
VARIABLE = re.compile(r"\.\.\.|\d{4}-\d\d-\d\dT[\d:.]+Z|\d+\.\d+(?=[,}])|\b[0-9a-f]{16}\b")
"""What the page leaves out, and what differs from run to run: times, rates, and the name made from the path of the lake."""


def blocks() -> Iterator[str]:
    """Yields the indented blocks of the section, without their indentation; those of the shell's installation are left out."""
    section = PAGE.split("\n## First steps\n")[1].split("\n## ")[0]
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE):
        text = "\n".join(line.removeprefix("    ") for line in block.strip("\n").splitlines())
        if text.strip() and "pip install" not in text:
            yield text


def expected(line: str) -> str:
    """Returns the pattern of a line of the page."""
    return ".+".join(map(re.escape, VARIABLE.split(line.strip())))


def run(arguments: list[str], directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "COLUMNS": "200"}
    done = subprocess.run(arguments, cwd=directory, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr[-5000:]}"
    return done.stdout


def test_the_first_steps_print_what_the_page_shows(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    broker, ran = make_broker(), list[str]()
    for block in blocks():
        text = block.replace(ADDRESS, broker.bootstrap)
        if not text.startswith("$ "):
            run([sys.executable, "-c", text], tmp_path)
            continue
        command, *shown = text.splitlines()
        words = command.removeprefix("$ wirekafka ").split()
        printed = run([sys.executable, "-m", "wirekafka", *words, *small_session()], tmp_path).splitlines()
        for line, pattern in zip(printed, map(expected, shown), strict=True):
            assert re.fullmatch(pattern, line.strip()), f"{command}\nprinted: {line}\nexpected: {pattern}"
        ran.append(words[1])
    assert ran == ["ingest", "check", "backfill"]
