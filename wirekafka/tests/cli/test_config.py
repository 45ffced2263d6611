"""`wirekafka config` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wirekafka.cli import main
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.cluster_table import CLUSTER_SETTINGS
from wirekafka.config.group_table import GROUP_SETTINGS
from wirekafka.config.topic_table import TOPIC_SETTINGS
from wirekafka.config.unsupported_settings import REFUSED_UNLESS, WITHOUT_EFFECT

KAFKAS = Path(__file__).parent.parent / "config" / "kafka_4_3_server.properties"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["config", *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def test_check_of_kafkas_own_file_finds_no_error() -> None:
    result = run("check", KAFKAS)
    assert result.exit_code == 0
    assert result.output.endswith(f"{KAFKAS}: 0 errors\n")
    assert f"note: {KAFKAS}:" in result.output
    assert "num.io.threads has no effect" in result.output


def test_check_names_all_errors_with_their_lines(file: Path) -> None:
    file.write_text("# a comment\nnum.partitons=3\nnum.partitions=0\n\nlog.retention.ms=0\nsasl.jaas.config=sesame\n")
    result = run("check", file)
    assert result.exit_code == 1
    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[2] for line in errors] == ["2", "3", "5", "6"]
    assert "perhaps num.partitions" in errors[0]
    assert result.output.endswith("4 errors\n")


@pytest.mark.parametrize("line", ["ssl.keystore.pasword=sesame", "sasl.jaas.config=sesame", "password.encoder.secret=sesame"])
def test_check_never_prints_what_may_be_a_secret(file: Path, line: str) -> None:
    file.write_text(f"{line}\n")
    assert "sesame" not in run("check", file).output


def test_check_says_which_of_two_lines_counts(file: Path) -> None:
    file.write_text("num.partitions=2\nnum.partitions=3\n")
    result = run("check", file)
    assert result.exit_code == 0
    assert f"note: {file}:1: num.partitions is set again on line 2, which counts" in result.output


def test_check_of_a_file_that_is_no_properties_file_is_an_error(file: Path) -> None:
    file.write_text("a=\\u00")
    assert run("check", file).exit_code == 1


def test_list_shows_every_setting() -> None:
    result = run("list")
    assert result.exit_code == 0
    shown = {line.partition(" ")[0] for line in result.output.splitlines() if not line.startswith(" ")}
    assert shown >= {*BROKER_SETTINGS, *CLUSTER_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS, *WITHOUT_EFFECT, *REFUSED_UNLESS}


def test_list_of_a_name_shows_type_default_bounds_and_meaning() -> None:
    lines = run("list", "num.partitions").output.splitlines()
    assert lines[0] == "num.partitions (broker, int, default 1, at least 1)"
    assert lines[1].startswith("    ")


@pytest.mark.parametrize(
    ("name", "shown"), [("num.io.threads", "no effect"), ("port", "write listeners="), ("super.users", "not")]
)
def test_list_says_what_becomes_of_a_setting_that_is_not_supported(name: str, shown: str) -> None:
    assert shown in run("list", name).output


def test_list_can_be_narrowed() -> None:
    shown = run("list", "*retention*", "--of", "topic").output
    assert "retention.bytes (topic, " in shown
    assert "broker" not in shown.replace("broker's", "").partition("(topic")[0]
    assert run("list", "nonsense").exit_code == 2
