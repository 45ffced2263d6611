"""The snippets of README.md, run in order and unchanged except for the address of the broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from compat_tests.harness import jars
from compat_tests.harness.broker import Broker
from wirekafka.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PIPELINES = (ROOT / "docs" / "pipelines.md").read_text()
COMMAND_LINE = (ROOT / "docs" / "cli.md").read_text()
CLIENTS = ("topic", "group", "produce", "consume", "doctor", "version")
"""The commands whose options are in docs/cli.md."""
ADDRESS = "127.0.0.1:9092"
ACTIVATION = ". .venv/bin/activate"

pytestmark = [pytest.mark.wirekafka_only("its README"), pytest.mark.timeout(300)]


class Snippet(NamedTuple):
    """A block of README.md.

    Attributes:
        language: `sh` or `python`.
    """

    language: str
    text: str

    @property
    def is_about_docker(self) -> bool:
        """The commands that test_docker.py runs, because they need an engine."""
        return self.text.startswith("docker ")


SNIPPETS = [Snippet(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]


@pytest.fixture
def started(make_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    """Starts a broker as `make run` does, in a directory with the files of a checkout."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    return make_broker(directory=tmp_path)


def run(snippet: Snippet, broker: Broker) -> str:
    """Runs a snippet in the directory of the broker; returns its output."""
    text = snippet.text.replace(ADDRESS, broker.bootstrap)
    command = [sys.executable, "-c", text] if snippet.language == "python" else ["bash", "-ec", f"{ACTIVATION}\n{text}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=broker.directory, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, snippet.text + done.stdout + done.stderr[-5000:]
    return done.stdout


def find(snippets: list[Snippet], part: str) -> Snippet:
    (found,) = [snippet for snippet in snippets if part in snippet.text]
    return found


def test_every_snippet_of_the_readme_runs_in_its_order_and_prints_what_it_should(started: Broker) -> None:
    first, *others = SNIPPETS
    assert first == Snippet("sh", "make run\n")
    without_java = [each for each in others if not each.is_about_docker and "pyspark" not in each.text]
    printed = {snippet: run(snippet, started) for snippet in without_java}
    assert len(printed) == len(others) - 2, "all are run but those of Spark and of Docker"
    assert printed[find(others, "KafkaConsumer")].splitlines()[-1] == "[b'hello']"
    assert "9 = greeting 9" in printed[find(others, "examples/")]
    assert "log.retention.ms (broker" in printed[find(others, "config list")]
    assert "hello" in printed[find(others, "log dump")]
    assert printed[find(others, "log verify")].splitlines()[-1].endswith(": no damage")
    assert re.fullmatch(r"127\.0\.0\.1:\d+", printed[find(others, "open_broker")].splitlines()[-1])


@pytest.mark.java
@pytest.mark.xdist_group("spark")
def test_the_snippet_of_spark_reads_what_the_one_before_it_wrote(started: Broker) -> None:
    jars.jars(jars.SPARK_PIPELINES)  # whether Maven Central can be reached
    run(find(SNIPPETS, "KafkaConsumer"), started)
    assert re.search(r"\|\s*hello\|", run(find(SNIPPETS, "pyspark"), started))


def test_the_readme_activates_the_environment_before_it_uses_its_commands() -> None:
    texts = [snippet.text for snippet in SNIPPETS]
    activation = next(index for index, text in enumerate(texts) if ACTIVATION in text)
    used = [index for index, text in enumerate(texts) if re.match(r"(wirekafka|python|pip) ", text)]
    assert used
    assert min(used) > activation


def test_make_run_starts_what_the_tests_start() -> None:
    assert re.search(r"^run: .*\n\t@exec \$\(BIN\)/wirekafka serve \$\(ARGS\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_ready_line_of_the_readme_has_the_form_of_the_real_one(started: Broker) -> None:
    shown = next(line.strip() for line in README.splitlines() if " ready on " in line)
    form = r"wirekafka \d+\.\d+\.\d+ ready on 127\.0\.0\.1:\d+, data in /\S+ \(\d+\.\d\d s\)"
    assert re.fullmatch(form, shown)
    assert re.fullmatch(form, started.ready_line.strip())


def commands(group: click.Group, path: str = "wirekafka") -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, f"{path} {name}") if isinstance(command, click.Group) else [(f"{path} {name}", command)]
    return found


@pytest.mark.parametrize(("path", "command"), commands(main), ids=lambda value: value if isinstance(value, str) else "")
def test_the_readme_names_every_command_and_its_options(path: str, command: click.Command) -> None:
    is_client = path.split()[1] in CLIENTS
    page = COMMAND_LINE if is_client else README
    assert path in page
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if path.startswith("wirekafka pipeline "):
        assert path in PIPELINES
        assert [option.name for option in options if not option.help] == [], "their options are in --help alone"
        return
    assert [option.opts[0] for option in options if option.opts[0] not in page and option.opts[0] != "--of"] == []
