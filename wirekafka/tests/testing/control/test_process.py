"""`wirekafka serve` with a control port, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer

from wirekafka.tests.testing.control.http_client import ask

READY = re.compile(r"wirekafka \S+ ready on (\S+), data in ([^, ]+)(?:, control on (\S+))? \(.* s\)\n")


@contextmanager
def serving(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> Iterator[tuple[str, Path, str | None]]:
    """Runs a broker; the block has its address, its data directory and the URL of its control port."""
    command = [sys.executable, *options, "-m", "wirekafka", "serve", "--listen", "127.0.0.1:0", *arguments]
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder)
    with process:
        try:
            assert process.stdout is not None
            ready = READY.fullmatch(process.stdout.readline())
            assert ready is not None, (folder / "stderr").read_text()
            yield ready[1], Path(ready[2]), ready[3]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_process_with_temporary_data_is_controlled_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "--control-port", "0", "--temporary") as (bootstrap, data, url):
        assert url is not None
        assert ask("GET", f"{url}/health") == (200, {"live": True, "ready": True, "reason": None})
        assert ask("GET", f"{url}/broker")[1]["bootstrap"] == bootstrap
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "session.timeout.ms": 30_000})
        assert ask("POST", f"{url}/topics", {"name": "orders"})[0] == 201
        consumer.subscribe(["orders"])
        consumer.poll(0)
        while True:
            consumer.poll(0.1)
            status, group = ask("GET", f"{url}/groups/readers/stable/wait?members=1&timeout_s=0.1")
            if status == 200:
                break
        assert group["members"][0]["partitions"] == [{"topic": "orders", "partition": 0}]
        consumer.close()
        assert ask("POST", f"{url}/reset")[0] == 200
        assert ask("GET", f"{url}/topics") == (200, [])
        assert data.parent.exists()
    assert not data.parent.exists()
    assert not (tmp_path / "data").exists()


def test_process_that_keeps_its_data_takes_faults_and_moves_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, "--control-port", "0") as (_, data, url):
        assert data == tmp_path / "data"
        assert ask("POST", f"{url}/faults", {"api": "Produce", "lose": "reply"})[0] == 201
        before = ask("GET", f"{url}/clock")[1]["now_ms"]
        assert ask("POST", f"{url}/clock/advance", {"seconds": 60})[1]["now_ms"] - before >= 60_000
        assert ask("POST", f"{url}/reset")[0] == 409


def test_process_without_a_control_port_imports_nothing_of_it(tmp_path: Path) -> None:
    with serving(tmp_path, options=("-X", "importtime")) as (_, _, url):
        assert url is None
    imported = {
        line.rpartition("|")[2].strip() for line in (tmp_path / "stderr").read_text().splitlines() if "import time:" in line
    }
    assert "wirekafka.server.running" in imported
    assert not {each for each in imported if each.startswith(("wirekafka.testing", "wirekafka.server.http", "h11"))}


def test_member_of_a_cluster_with_temporary_data_is_refused(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "wirekafka",
        "serve",
        "--temporary",
        "--set",
        "zookeeper.connect=127.0.0.1:1",
        "--set",
        "broker.id=1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert (done.returncode, "--temporary: the data of a member" in done.stderr) == (2, True)
