"""The command, in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest

import wirekafka
from wirekafka import __version__
from wirekafka.tests.server.frames import request

READY = re.compile(r"wirekafka (\S+) ready on (\S+:\d+(?:, \S+:\d+)*), data in (\S+) \(\d+\.\d\d s\)\n")


class Process:
    """A broker's process and its output."""

    def __init__(self, arguments: list[str], folder: Path, stderr: int | None = None) -> None:
        self.errors = folder / "stderr"
        command = [sys.executable, "-m", "wirekafka", "serve", *arguments]
        with self.errors.open("w") as errors:
            chosen = errors if stderr is None else stderr
            self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=chosen, text=True, cwd=folder)

    def ready_line(self) -> str:
        """Waits for the text in the output."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert READY.fullmatch(line), (line, self.errors.read_text())
        return line

    def addresses(self) -> list[tuple[str, int]]:
        """Returns the address on which it listens."""
        match = READY.fullmatch(self.ready_line())
        assert match is not None
        pairs = [address.rpartition(":") for address in match[2].split(", ")]
        return [(host, int(port)) for host, _, port in pairs]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Returns its exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(30)


@contextmanager
def default_action(number: signal.Signals) -> Iterator[None]:
    """Lets processes that are started in the block receive the signal, even if nohup has started the tests."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def serving(folder: Path, *arguments: str, stderr: int | None = None) -> Iterator[Process]:
    process = Process(list(arguments), folder, stderr)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.communicate()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wirekafka", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=30, check=False)


def ask_api_versions(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=10) as ours:
        ours.sendall(request(18, 0, 77))
        return ours.recv(8)


def test_serve_says_where_it_is_when_it_answers(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--data-dir", "records") as broker:
        line = broker.ready_line()
        match = READY.fullmatch(line)
        assert match is not None
        assert match[1] == __version__
        assert match[3] == str(tmp_path / "records")
        for address in match[2].split(", "):
            host, _, port = address.rpartition(":")
            assert ask_api_versions((host, int(port)))[4:] == b"\0\0\0\x4d"
        assert broker.stop() == 0
        assert broker.popen.stdout is not None
        assert broker.popen.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_stops_it_cleanly_with_clients_connected(tmp_path: Path, number: signal.Signals) -> None:
    with default_action(number), serving(tmp_path, "--listen", "127.0.0.1:0") as broker:
        (address,) = broker.addresses()
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(address)) for _ in range(20)]
            for each in clients:
                each.sendall(request(18, 0, 77) + b"\0\0")  # and the first half of a size
                assert each.recv(8)[4:] == b"\0\0\0\x4d"
            assert broker.stop(number) == 0
        assert "Closing took too long" not in broker.errors.read_text()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        assert "Stopped" in broker.errors.read_text()


def test_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0") as broker:
        broker.addresses()
        # Both arrive while it is not running, so both are delivered before it can close anything.
        broker.popen.send_signal(signal.SIGSTOP)
        broker.popen.send_signal(signal.SIGTERM)
        broker.popen.send_signal(signal.SIGINT)
        broker.popen.send_signal(signal.SIGCONT)
        assert broker.popen.wait(10) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_sighup_of_a_broker_started_by_nohup_is_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = Process(["--listen", "127.0.0.1:0"], tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        (address,) = process.addresses()
        process.popen.send_signal(signal.SIGHUP)
        assert ask_api_versions(address)[4:] == b"\0\0\0\x4d"
        assert process.stop() == 0
    finally:
        process.popen.kill()
        process.popen.communicate()


def test_process_1_of_a_container_obeys_sigterm(tmp_path: Path) -> None:
    probe = ["unshare", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets us make no process namespace")
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        sys.executable,
        "-m",
        "wirekafka",
        "serve",
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path) as outer:
        assert outer.stdout is not None
        assert READY.fullmatch(outer.stdout.readline())
        (child,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", child], check=True)
        assert outer.wait(10) == 0


def test_second_broker_on_a_data_directory_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0") as broker:
        ((_, port),) = broker.addresses()
        second = run(tmp_path, "serve", "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert len(second.stderr.splitlines()) == 1
        assert str(tmp_path / "data") in second.stderr
        assert f"process {broker.popen.pid}" in second.stderr
        assert f"127.0.0.1:{port}; --data-dir DIR names another directory" in second.stderr


def test_address_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = run(tmp_path, "serve", "--listen", f"127.0.0.1:{port}")
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(f"wirekafka: Cannot listen on 127.0.0.1:{port}: Address already in use; --listen HOST:PORT")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "num.partitions=many"], ["num.partitions", "many", "an integer"]),
        (["--set", "num.partition=3"], ["num.partition", "no such setting", "num.partitions"]),
        (["--listen", "127.0.0.1:9092", "--listen", "127.0.0.1:9092"], ["--listen 127.0.0.1:9092 is given twice"]),
        (["--set", "listeners=SSL://:9093", "--listen", "127.0.0.1:0"], ["SSL://:9093", "plaintext", "leave out --listen"]),
        (["--set", "num.partitions"], ["num.partitions", "KEY=VALUE"]),
        (["--listen", "localhost"], ["--listen", "localhost", "HOST:PORT"]),
        (["--listen", "localhost:http"], ["--listen", "localhost:http", "HOST:PORT"]),
        (["--listen", "localhost:99999"], ["99999"]),
        (["--advertise", "kafka"], ["--advertise", "kafka", "HOST:PORT"]),
        (["--advertise", "0.0.0.0:9092"], ["advertised.listeners", "0.0.0.0:9092"]),
        (["--published", "kafka"], ["--published", "kafka", "HOST:PORT"]),
        (["--published", ":9092"], ["--published", ":9092", "clients can connect to"]),
        (["--published", "0.0.0.0:9092"], ["--published", "0.0.0.0:9092", "clients can connect to"]),
        (["--published", "localhost:0"], ["--published", "localhost:0", "clients can connect to"]),
        (["--published", "localhost:65536"], ["--published", "localhost:65536", "clients can connect to"]),
        (["--data-dir", ""], ["log.dirs", "at least one item"]),
        (["--data-dir", "twice,twice"], ["log.dirs", "no empty item and no duplicate"]),
        (["--set", "listeners=SSL://:9093"], ["listeners", "SSL", "PLAINTEXT"]),
        (["absent.properties"], ["absent.properties", "does not exist"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_wrong_argument_is_named_with_what_is_accepted(tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    refused = run(tmp_path, "serve", *arguments)
    assert refused.returncode == 2
    for part in parts:
        assert part in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists()


def test_server_properties_are_read_and_arguments_go_before_them(tmp_path: Path) -> None:
    text = "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\nlog.dirs=from-file\n"
    (tmp_path / "server.properties").write_text(text)
    arguments = ["server.properties", "--set", "listeners=INTERNAL://127.0.0.1:0,CONTROLLER://:9093"]
    arguments += ["--set", "listener.security.protocol.map=INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"]
    with serving(tmp_path, *arguments, "--advertise", "kafka.example:1234") as broker:
        (address,) = broker.addresses()
        assert ask_api_versions(address)[4:] == b"\0\0\0\x4d"
        assert (tmp_path / "from-file" / "meta.properties").exists()
        assert broker.stop() == 0
        assert "Listeners for controllers are not opened" in broker.errors.read_text()


def test_wrong_settings_are_all_named_at_once_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("num.partitions=0\n\nlog.retention.ms=0\nbroker.rack=a\nnum.partitons=1\n")
    refused = run(tmp_path, "serve", "server.properties", "--set", "super.users=User:a", "--set", "broker.rack=b")
    assert refused.returncode == 2
    lines = refused.stderr.splitlines()
    starts = ["server.properties:1:", "server.properties:3:", "server.properties:5:", "Invalid value [hidden]"]
    starts[3] = "Invalid value User:a for configuration super.users"
    assert [line.startswith(f"wirekafka: {start}") for line, start in zip(lines, starts, strict=True)] == [True] * 4


def test_error_of_a_setting_in_the_file_that_an_argument_replaces_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("num.partitions=0\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs=data\n")
    refused = run(tmp_path, "serve", "server.properties", "--set", "num.partitions=1", "--set", "nonsense=1")
    assert len(refused.stderr.splitlines()) == 1


def test_argument_that_replaces_a_setting_is_said(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("listeners=PLAINTEXT://127.0.0.1:9\nlog.dirs=other\n")
    with serving(tmp_path, "server.properties", "--listen", "127.0.0.1:0", "--data-dir", "data") as broker:
        broker.addresses()
        broker.stop()
        errors = broker.errors.read_text()
        assert "--listen replaces listeners" in errors
        assert "PLAINTEXT://127.0.0.1:9" in errors
        assert "--data-dir replaces log.dirs" in errors
        assert not (tmp_path / "other").exists()


def test_listener_without_a_host_is_reported_as_it_is_bound(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", ":0") as broker:
        ((host, port),) = broker.addresses()
        assert host == ("[::]" if socket.has_dualstack_ipv6() else "0.0.0.0")
        assert ask_api_versions(("127.0.0.1", port))[4:] == b"\0\0\0\x4d"


@pytest.mark.parametrize(("data_dir", "is_refused"), [("data", True), ("absolute", False)])
def test_deleted_working_directory_is_named_unless_the_data_is_elsewhere(
    tmp_path: Path, data_dir: str, *, is_refused: bool
) -> None:
    directory = str(tmp_path / data_dir) if data_dir == "absolute" else data_dir
    command = [sys.executable, "-m", "wirekafka", "serve", "--listen", "127.0.0.1:0", "--data-dir", directory]
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    environment = os.environ | {"PYTHONPATH": str(Path(wirekafka.__file__).parents[1])}
    with subprocess.Popen(
        ["sh", "-c", script, "sh", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        process.terminate()
        if is_refused:
            assert process.stderr.read().startswith("wirekafka: The working directory was deleted")
            assert process.wait(10) == 1
        else:
            assert READY.fullmatch(line)
            assert process.wait(10) == 0


def test_log_format_json_gives_one_object_a_line_with_the_start_and_an_iso_time(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0", "--log-format", "json") as broker:
        broker.addresses()
        broker.stop()
        lines = [json.loads(line) for line in broker.errors.read_text().splitlines()]
    assert {"Started", "Stopping", "Stopped"} <= {line["event"] for line in lines}
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)


@pytest.mark.parametrize(("advertise", "is_said"), [([], True), (["--advertise", "kafka.example:1234"], False)])
def test_listen_beside_other_advertised_listeners_is_said(tmp_path: Path, advertise: list[str], *, is_said: bool) -> None:
    (tmp_path / "server.properties").write_text("advertised.listeners=PLAINTEXT://localhost:9092\n")
    with serving(tmp_path, "server.properties", "--listen", "127.0.0.1:0", "--data-dir", "data", *advertise) as broker:
        broker.addresses()
        assert ("PLAINTEXT://localhost:9092" in broker.errors.read_text()) == is_said


def test_data_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run(tmp_path, "serve", "--listen", "127.0.0.1:0", "--data-dir", "file/below")
    assert refused.returncode == 1
    assert (
        refused.stderr
        == f"wirekafka: Cannot use {tmp_path}/file/below: not a directory; --data-dir DIR names another directory\n"
    )


def test_data_directory_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run(tmp_path, "serve", "--listen", "127.0.0.1:0", "--data-dir", "file")
    assert refused.returncode == 1
    assert refused.stderr == f"wirekafka: Cannot use {tmp_path}/file: not a directory; --data-dir DIR names another directory\n"


@pytest.mark.parametrize("setting", ["log.dir", "log.dirs"])
def test_data_directory_can_be_set_by_each_of_kafkas_names(tmp_path: Path, setting: str) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0", "--set", f"{setting}=records") as broker:
        assert f"data in {tmp_path}/records (" in broker.ready_line()
        assert not (tmp_path / "data").exists()


def test_log_level_silences_what_is_below_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0", "--log-level", "error") as broker:
        broker.addresses()
        broker.stop()
        assert broker.errors.read_text() == ""


def test_system_without_epoll_is_told_where_a_broker_runs(tmp_path: Path) -> None:
    program = "import select; del select.epoll; from wirekafka.cli import main; main(['serve'])"
    refused = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=30, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "wirekafka: a broker runs on Linux; on another system run it in a container, see docs/docker.md"
    ]


def test_version_is_printed(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"wirekafka {__version__}\n"


def test_start_is_a_log_line_with_time_and_zone(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0") as broker:
        ((host, port),) = broker.addresses()
        assert broker.stop() == 0
    [line] = [line for line in broker.errors.read_text().splitlines() if "Started" in line]
    assert datetime.fromisoformat(line.partition(" ")[0]).utcoffset() is not None
    for part in (f"version={__version__}", f"{host}:{port}", "log_dirs=['data']", "node_id=", "cluster_id="):
        assert part in line


def provoke(address: tuple[str, int], count: int) -> None:
    """Makes the broker log lines: each request is of an API that does not exist, with a long client id."""
    for number in range(count):
        with socket.create_connection(address, timeout=10) as ours:
            ours.sendall(request(1000 + number, 0, client_id=b"x" * 30_000))
            assert ours.recv(8) == b""


@contextmanager
def failing_stderr(kind: str) -> Iterator[int]:
    """Returns a descriptor of a device that is full, of a pipe without a reader, or of a small pipe that is not read."""
    if kind == "full":
        fds = [os.open("/dev/full", os.O_WRONLY)]
    else:
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        fds = [writer, reader]
        if kind == "closed":
            os.close(fds.pop())
    try:
        yield fds[0]
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("kind", ["full", "closed", "unread"])
def test_broker_goes_on_whatever_becomes_of_its_stderr(tmp_path: Path, kind: str) -> None:
    with failing_stderr(kind) as stderr, serving(tmp_path, "--listen", "127.0.0.1:0", stderr=stderr) as broker:
        (address,) = broker.addresses()
        provoke(address, 40)
        assert ask_api_versions(address)[4:] == b"\0\0\0\x4d"
        assert broker.stop() == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_environment_of_the_process_gives_settings_and_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://127.0.0.1:0")
    monkeypatch.setenv("KAFKA_LOG_DIRS", str(tmp_path / "records"))
    monkeypatch.setenv("WIREKAFKA_TOPICS", "orders:3")
    with serving(tmp_path, "--env") as broker:
        assert str(tmp_path / "records") in broker.ready_line()
        assert sorted(each.name for each in (tmp_path / "records").glob("orders-*")) == ["orders-0", "orders-1", "orders-2"]
        assert broker.stop() == 0
