"""`wirekafka topic` as a client of an embedded broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wirekafka.cli import main
from wirekafka.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def run(broker: EmbeddedBroker, *arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["topic", *arguments, "-b", broker.bootstrap, "--timeout", "60"])
    assert result.exit_code == exit_code, result.output
    return result


def test_created_topic_is_described_with_its_settings_and_offsets(broker: EmbeddedBroker) -> None:
    assert run(broker, "create", "made", "-p", "2", "--set", "cleanup.policy=compact").stdout == "made created\n"
    [found] = json.loads(run(broker, "describe", "made", "--json").stdout)
    assert found["settings"] == {"cleanup.policy": "compact"}
    assert [(each["partition"], each["leader"], each["end_offset"]) for each in found["partitions"]] == [(0, 1, 0), (1, 1, 0)]


def test_topics_are_listed_by_pattern_as_table_names_and_json(broker: EmbeddedBroker) -> None:
    for name in ("listed.a", "listed.b", "__listed"):
        broker.create_topic(name, 3)
    lines = run(broker, "list", "listed.*").stdout.splitlines()
    assert [line.split() for line in lines if line.split()[1:2] == ["3"]] == [
        ["listed.a", "3", "1", "ok"],
        ["listed.b", "3", "1", "ok"],
    ]
    assert run(broker, "list", "*listed*", "--names", "--internal").stdout == "__listed\nlisted.a\nlisted.b\n"
    [found] = json.loads(run(broker, "list", "listed.a", "--json").stdout)
    assert found == {
        "topic": "listed.a",
        "partitions": 3,
        "replication_factor": 1,
        "offline_partitions": 0,
        "under_replicated_partitions": 0,
    }


def test_topic_that_exists_fails_with_a_remedy_unless_that_is_allowed(broker: EmbeddedBroker) -> None:
    broker.create_topic("there")
    assert "already exists; `wirekafka topic alter` changes a topic" in run(broker, "create", "there", exit_code=1).stderr
    assert run(broker, "create", "there", "--if-not-exists").stdout == "there exists\n"


def test_dry_run_creates_nothing(broker: EmbeddedBroker) -> None:
    assert run(broker, "create", "planned", "--dry-run").stdout == "planned can be created\n"
    assert run(broker, "list", "planned", "--names").stdout == ""


def test_alter_adds_partitions_and_changes_settings(broker: EmbeddedBroker) -> None:
    broker.create_topic("altered", cleanup_policy="compact")
    run(broker, "alter", "altered", "-p", "3", "--set", "retention.ms=1000", "--unset", "cleanup.policy")
    [found] = json.loads(run(broker, "describe", "altered", "--json").stdout)
    assert (len(found["partitions"]), found["settings"]) == (3, {"retention.ms": "1000"})
    assert "would not be an increase" in run(broker, "alter", "altered", "-p", "2", exit_code=1).stderr
    assert "Nothing to change" in run(broker, "alter", "altered", exit_code=2).stderr


def test_delete_deletes_the_topics_that_exist_and_names_the_others(broker: EmbeddedBroker) -> None:
    broker.create_topic("old")
    result = run(broker, "delete", "old", "missing", exit_code=1)
    assert result.stdout == "old deleted\n"
    assert result.stderr == "wirekafka: topic missing: Unknown topic or partition; `wirekafka topic list` shows the topics\n"
    assert run(broker, "delete", "old", "--if-exists").output == ""


def test_unknown_topic_is_one_line_with_the_remedy(broker: EmbeddedBroker) -> None:
    result = run(broker, "describe", "nope", exit_code=1)
    assert result.stderr == "wirekafka: topic nope does not exist; `wirekafka topic list` shows the topics\n"


def test_broker_that_does_not_run_is_named_with_the_reason_and_no_line_of_librdkafka() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "wirekafka", "topic", "list", "-b", "127.0.0.1:1", "--timeout", "30"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    [line] = done.stderr.splitlines()
    assert line.startswith("wirekafka: no broker answers at 127.0.0.1:1 (")
    assert "start the broker" in line
    assert (done.returncode, done.stdout) == (1, "")


def test_properties_come_from_the_file_and_the_options_override_it(broker: EmbeddedBroker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"# where\n\nbootstrap.servers = {broker.bootstrap}\nclient.id=from-file\n")
    assert CliRunner().invoke(main, ["topic", "list", "--config", str(config), "--timeout", "60"]).exit_code == 0
    result = CliRunner().invoke(main, ["topic", "list", "--config", str(config), "-X", "no.such=1"])
    assert result.exit_code == 1
    assert 'librdkafka refuses a setting: No such configuration property: "no.such"' in result.stderr
    config.write_text("client.id\n")
    result = CliRunner().invoke(main, ["topic", "list", "--config", str(config)])
    assert (result.exit_code, f"{config}, line 1: client.id: accepted is NAME=VALUE" in result.stderr) == (2, True)


def test_address_may_come_from_the_environment_and_is_asked_for_without_it(broker: EmbeddedBroker) -> None:
    variable = "WIREKAFKA_BOOTSTRAP_SERVER"
    assert CliRunner().invoke(main, ["topic", "list", "--timeout", "60"], env={variable: broker.bootstrap}).exit_code == 0
    result = CliRunner().invoke(main, ["topic", "list"], env={variable: None})
    assert (result.exit_code, "Missing option '--bootstrap-server'" in result.stderr) == (2, True)


def test_missing_client_library_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    result = CliRunner().invoke(main, ["topic", "list", "-b", "127.0.0.1:1"])
    assert (result.exit_code, "pip install 'wirekafka[cli]'" in result.stderr) == (1, True)
    shown = CliRunner().invoke(main, ["version"])
    assert (shown.exit_code, "not installed" in shown.stdout) == (0, True)


def test_version_names_the_client_library() -> None:
    found = json.loads(CliRunner().invoke(main, ["version", "--json"]).stdout)
    assert list(found) == ["wirekafka", "python", "confluent-kafka", "librdkafka"]


def test_help_and_the_command_serve_import_no_client() -> None:
    source = (
        "import click, sys; from click.testing import CliRunner; from wirekafka.cli import main\n"
        "assert main.get_command(click.Context(main), 'serve') is not None\n"
        "assert not [name for name in sys.modules if name.startswith(('wirekafka.cli.client', 'wirekafka.cli.cluster'))]\n"
        "for words in [['--help'], ['topic', '--help'], ['topic', 'create', '--help'], ['group', '--help']]:\n"
        "    assert CliRunner().invoke(main, words).exit_code == 0, words\n"
        "heavy = {'confluent_kafka', 'rich', 'wirekafka.wire'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
