"""`wirekafka cluster`: what its commands share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from wirekafka.cli import main
from wirekafka.cli.cluster import cluster
from wirekafka.cli.cluster.errors import ClusterCommandError


def test_an_error_of_a_command_is_one_line_on_stderr_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fail() -> None:
        raise ClusterCommandError("no broker answers;\n start one")

    monkeypatch.setitem(cluster.commands, "fail", fail)
    result = CliRunner().invoke(main, ["cluster", "fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "wirekafka: no broker answers; start one\n")
