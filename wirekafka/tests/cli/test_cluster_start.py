"""`wirekafka cluster start`: processes that start, serve, stop and start again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from wirekafka.cli.cluster.start import start
from wirekafka.tests.testing.test_cluster import VALUES, consume, create, produce


@contextmanager
def started(count: int, path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a cluster, and yields the process and the bootstrap addresses."""
    command = [sys.executable, "-m", "wirekafka", "cluster", "start", str(count), "--data-dir", str(path), *options]
    with (path.parent / "stderr").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        name, equals, addresses = line.partition("=")
        assert (name, equals) == ("bootstrap.servers", "="), (path.parent / "stderr").read_text()[-3000:]
        yield process, addresses
    finally:
        process.kill()
        process.communicate()


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(60)


def test_cluster_keeps_its_topics_and_records_and_grows_when_it_is_started_again(tmp_path: Path) -> None:
    with started(3, tmp_path / "cluster") as (process, bootstrap):
        create(bootstrap, "kept", [[1, 2, 3]])
        produce(bootstrap, "kept", VALUES)
        assert run_alone(3, tmp_path / "cluster").endswith("is running already: stop it, or name another --data-dir\n")
        assert stop(process) == 0
    assert "has 3 brokers: start it with 3 or more" in run_alone(2, tmp_path / "cluster")
    with started(4, tmp_path / "cluster") as (process, bootstrap):
        assert bootstrap.count(",") == 3
        assert consume(bootstrap, "kept", len(VALUES)) == VALUES
        create(bootstrap, "new", [[4, 1]])
        assert stop(process) == 0


def test_brokers_end_with_their_supervisor(tmp_path: Path) -> None:
    with started(1, tmp_path / "cluster") as (process, _):
        process.kill()
        process.wait()
    with started(1, tmp_path / "cluster") as (process, _):
        assert stop(process) == 0


def test_broker_that_cannot_start_ends_the_cluster(tmp_path: Path) -> None:
    message = run_alone(2, tmp_path / "cluster", "--set", "num.partitions=none")
    assert "has ended; its lines say why" in message
    assert "1 | wirekafka: Invalid value none for configuration num.partitions" in message


def test_port_of_another_program_is_named_before_any_broker_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = run_alone(1, tmp_path / "cluster", "--port", str(port))
    assert f"Broker 1 cannot listen on 127.0.0.1:{port}" in message
    assert message.endswith(": stop the program that uses it, or name another --port\n")
    assert not (tmp_path / "cluster" / "broker-1").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [("broker.id=5", "broker.id differs between the brokers"), ("num.partitions", "accepted is KEY=VALUE")],
)
def test_setting_that_no_broker_can_have_is_refused_at_once(setting: str, message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(start, ["2", "--data-dir", str(tmp_path / "cluster"), "--set", setting])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "cluster").exists()


def run_alone(count: int, path: Path, *options: str) -> str:
    """Runs a cluster that cannot start, and returns what it prints on stderr."""
    command = [sys.executable, "-m", "wirekafka", "cluster", "start", str(count), "--data-dir", str(path), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr
