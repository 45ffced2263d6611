"""`wirekafka pipeline`: the options that its commands share, and what its errors look like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from wirekafka.cli import main
from wirekafka.cli.pipeline import PipelineGroup
from wirekafka.cli.pipeline.shared import cluster_options, dry_run_option, print_plan, session_options
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.session import SessionOptions


@click.group(cls=PipelineGroup)
def group() -> None:
    pass


@group.command()
@cluster_options()
@cluster_options("target", "target-", required=False)
@session_options
@dry_run_option
def show(cluster: Cluster, target: Cluster | None, session: SessionOptions, dry_run: bool) -> None:
    print_plan({"cluster": repr(cluster), "target": repr(target), "session": repr(session), "dry run": dry_run})


@group.command()
def fail() -> None:
    raise PipelineError("the topic is missing:\n  create it")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, [str(each) for each in arguments])


def test_the_options_of_a_cluster_give_a_cluster() -> None:
    more = ("--kafka-option", "fetch.min.bytes=1", "--client-option", "a=b=c", "--target-bootstrap", "h:2")
    output = run("show", "--bootstrap", "h:1", *more).output
    assert repr(Cluster("h:1", {"fetch.min.bytes": "1"}, {"a": "b=c"})) in output
    assert repr(Cluster("h:2", {}, {})) in output


def test_a_cluster_that_is_not_required_is_none_without_an_address() -> None:
    assert "target   None" in run("show", "--bootstrap", "h:1").output


def test_the_options_of_the_session_give_session_options(tmp_path: Path) -> None:
    result = run("show", "--bootstrap", "h:1", "--master", "spark://h:7077", "--jars", tmp_path, "--conf", "spark.a=b")
    assert repr(SessionOptions("spark://h:7077", tmp_path, {"spark.a": "b"})) in result.output


def test_the_session_is_local_without_options() -> None:
    assert "master='local[*]'" in run("show", "--bootstrap", "h:1").output


def test_a_dry_run_is_told_to_the_command() -> None:
    assert "dry run  True" in run("show", "--bootstrap", "h:1", "--dry-run").output


@pytest.mark.parametrize(
    "arguments", [(), ("--bootstrap", "h:1", "--conf", "spark.a"), ("--bootstrap", "h:1", "--jars", "/none")]
)
def test_wrong_arguments_exit_with_2(arguments: tuple[str, ...]) -> None:
    assert run("show", *arguments).exit_code == 2


@pytest.mark.parametrize("address", ["localhost", "localhost:", "a:1,b", ""])
def test_an_address_without_a_port_exits_with_2(address: str) -> None:
    result = run("show", "--bootstrap", address)
    assert result.exit_code == 2
    assert "is not HOST:PORT, such as localhost:9092" in result.output


@pytest.mark.parametrize("addresses", ["localhost:9092", "a:1,b:2", "[::1]:9092"])
def test_addresses_with_ports_are_accepted(addresses: str) -> None:
    assert run("show", "--bootstrap", addresses).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("ingest", "lake", "--bootstrap", "h:1", "--pattern", "("),
        ("audit", "--bootstrap", "h:1", "--pattern", "("),
        ("mirror", "--source-bootstrap", "h:1", "--target-bootstrap", "h:2", "--pattern", "("),
        ("mirror", "t", "--source-bootstrap", "h:1", "--target-bootstrap", "h:2", "--groups", "("),
    ],
)
def test_a_pattern_that_is_no_regular_expression_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, ["pipeline", *arguments])
    assert result.exit_code == 2
    assert "'(' is not a regular expression" in result.output


def test_a_schema_file_that_does_not_exist_exits_with_2() -> None:
    missing = ("--schema-file", "orders=/no/such/file")
    result = CliRunner().invoke(
        main, ["pipeline", "ingest", "lake", "--bootstrap", "h:1", "--topic", "orders", "--format", "json", *missing]
    )
    assert result.exit_code == 2
    assert "File '/no/such/file' does not exist" in result.output


def test_an_error_of_a_pipeline_is_one_line_and_exits_with_1() -> None:
    result = run("fail")
    assert result.exit_code == 1
    assert result.stderr == "wirekafka: the topic is missing: create it\n"


def test_a_plan_has_a_line_for_each_item_of_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan({"reads": ["a", "b"], "writes to": "c", "dead letters": []})
    assert capsys.readouterr().out == "reads         a\n              b\nwrites to     c\ndead letters  none\n"


def test_every_command_of_the_group_has_help_with_an_example() -> None:
    commands = main.get_command(click.Context(main), "pipeline")
    assert isinstance(commands, click.Group)
    for name in commands.commands:
        result = CliRunner().invoke(main, ["pipeline", name, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


def test_help_imports_no_spark() -> None:
    source = (
        "import click, sys; from click.testing import CliRunner; from wirekafka.cli import main\n"
        "names = list(main.get_command(click.Context(main), 'pipeline').commands)\n"
        "for words in [['--help'], ['pipeline', '--help'], *(['pipeline', name, '--help'] for name in names)]:\n"
        "    assert CliRunner().invoke(main, words).exit_code == 0, words\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'confluent_kafka', 'plotly', 'rich'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
