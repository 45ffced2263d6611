"""`wirekafka pipeline ...` in processes of their own, which tests kill and start again.

pipeline = PipelineProcess(["ingest", topic, "--to", lake, "--bootstrap", broker.bootstrap], tmp_path / "ingest")
with pipeline:
    kill_at_random(seed, pipeline, [broker], kills=5)
    assert pipeline.wait() == 0
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from compat_tests.harness import jars
from compat_tests.harness.broker import Broker
from compat_tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
POLL_S = 0.05
START_MS = 1_700_000_000_000
PIPELINE = ("-m", "wirekafka", "pipeline")


def arrow_batch(first: int, count: int, target: str, *, source: tuple[str, int] = ("s", 0), value: bytes | None = None) -> Any:
    """Makes a batch of rows for the transactional sink, whose values are their source offsets."""
    import pyarrow

    offsets = range(first, first + count)
    headers = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
    return pyarrow.record_batch(
        {
            "source_topic": [source[0]] * count,
            "source_partition": pyarrow.array([source[1]] * count, pyarrow.int32()),
            "source_offset": pyarrow.array(offsets, pyarrow.int64()),
            "topic": [target] * count,
            "partition": pyarrow.array([source[1]] * count, pyarrow.int32()),
            "key": [b"k"] * count,
            "value": [value or b"%d" % offset for offset in offsets],
            "headers": pyarrow.array([None] * count, headers),
            "timestamp_ms": pyarrow.array([START_MS + offset for offset in offsets], pyarrow.int64()),
        }
    )


def small_session() -> list[str]:
    """Returns the arguments of a session for tests: the jars of the tests, two threads, a small heap."""
    settings = (
        "spark.driver.memory=640m",
        "spark.sql.shuffle.partitions=2",
        "spark.databricks.delta.snapshotPartitions=2",
        f"spark.driver.extraJavaOptions={' '.join(jars.spark_options())}",
    )
    conf = [word for setting in settings for word in ("--conf", setting)]
    return ["--jars", str(jars.jars(jars.SPARK_PIPELINES)), "--master", "local[2]", *conf]


class PipelineProcess:
    """A command of `wirekafka pipeline`, or another program with the options of a SparkSession.

    Python, Spark's JVM and Spark's Python workers are a session of processes of their own.

    Attributes:
        arguments: the words after those of the program, without those of the session.
        directory: the process works here; `out.txt` has what it printed in all its runs, `log.txt` what it wrote on stderr.
        kill_count: how often it was killed.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        directory: Path,
        session: Sequence[str] | None = None,
        program: Sequence[str] = PIPELINE,
    ) -> None:
        self.arguments = [str(word) for word in arguments]
        self.directory = directory
        self.program = program
        self.session = small_session() if session is None else list(session)
        self.out_path, self.log_path = directory / "out.txt", directory / "log.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.kill_count = 0
        self._run_begins_at = 0

    def start(self) -> None:
        """Starts the command, for the first time or again."""
        assert not self.is_running()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.close()
        self._run_begins_at = len(self.out_text())
        places = {"TMPDIR": str(self.directory), "SPARK_LOCAL_DIRS": str(self.directory / "spark"), "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, *self.program, *self.arguments, *self.session]
        with self.out_path.open("ab") as out, self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), **places},
                cwd=self.directory,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kills Python and the JVM (kill -9), to simulate a crash. Spark's Python workers notice it and end by themselves."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.kill_count += 1

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends SIGTERM, or another signal, to Python; `wait` waits for the end."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 240.0) -> int:
        """Waits for the end; returns the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end within {timeout_s} s:\n{self.log_text()[-4000:]}") from None

    def run(self, timeout_s: float = 240.0) -> int:
        """Starts the command and waits for its end; returns the exit code."""
        self.start()
        try:
            return self.wait(timeout_s)
        finally:
            self.close()

    def check(self, timeout_s: float = 240.0) -> None:
        """Runs a command that must succeed."""
        code = self.run(timeout_s)
        assert code == 0, f"{self} exited with {code}:\n{self.out_text()[-2000:]}\n{self.log_text()[-4000:]}"

    def out_text(self) -> str:
        """Returns what all runs printed."""
        return self.out_path.read_text(errors="replace") if self.out_path.exists() else ""

    def log_text(self) -> str:
        """Returns what all runs wrote on stderr."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def json_lines(self, *, of_this_run: bool = False) -> list[dict[str, Any]]:
        """Returns the JSON objects that were printed, one a line; a line that was cut by a kill is left out."""
        text = self.out_text()[self._run_begins_at if of_this_run else 0 :]
        found = []
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
        return found

    def wait_for_batches(self, count: int, timeout_s: float = 240.0) -> None:
        """Waits until this run has reported so many batches."""
        wait_until(
            lambda: len(self.json_lines(of_this_run=True)) >= count or self._fail_if_ended(),
            timeout_s=timeout_s,
            what=f"{self} has reported {count} batches",
            poll_s=POLL_S,
        )

    def close(self) -> None:
        """Kills what runs of it, Spark's Python workers too."""
        if self.process is None:
            return
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not session_members(self.process_id), timeout_s=60, what=f"the processes of {self} are dead")

    @property
    def process_id(self) -> int:
        assert self.process is not None
        return self.process.pid

    def _fail_if_ended(self) -> bool:
        assert self.is_running(), f"{self} ended:\n{self.out_text()[-2000:]}\n{self.log_text()[-4000:]}"
        return False

    def __enter__(self) -> PipelineProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __str__(self) -> str:
        return " ".join([*self.program, *self.arguments])


def kill_at_random(
    seed: int, pipeline: PipelineProcess, brokers: Sequence[Broker], kills: int, *, most_s: float = 2.0, timeout_s: float = 240.0
) -> list[str]:
    """Kills the running pipeline and the brokers at random points, and starts them again; returns what was killed, in order.

    The first kills are one of each. Two of three kills wait for a batch of the pipeline's run, so that the pipeline makes
    progress between them; the others hit also its start. A kill comes before the pipeline has done another whole batch, so a
    pipeline with more than two batches a kill still runs at the last one, however fast the machine is. A pipeline that ends by
    itself is left alone, and no more is killed.

    Args:
        seed: of the choices and of the moments.
        pipeline: runs, and prints a JSON line for each batch.
        brokers: each keeps its address when it is started again.
        kills: the number of kills.
        most_s: the longest time from a batch or a start to a kill.
        timeout_s: how long a batch may take.
    """
    chance = random.Random(seed)
    victims: list[PipelineProcess | Broker] = [pipeline, *brokers]
    order = chance.sample(victims, len(victims)) + chance.choices(victims, k=kills)
    killed = []
    for victim in order[:kills]:
        if chance.random() < 2 / 3:
            _wait_for_batch(pipeline, timeout_s)
        with contextlib.suppress(AssertionError):  # no batch came within the random time
            _wait_for_batch(pipeline, chance.uniform(0, most_s))
        if not pipeline.is_running():
            break
        victim.kill()
        killed.append("pipeline" if victim is pipeline else "broker")
        time.sleep(chance.uniform(0, 0.5))
        victim.start()
    return killed


def _wait_for_batch(pipeline: PipelineProcess, timeout_s: float) -> None:
    """Waits until the pipeline reports another batch, or ends."""
    batches = len(pipeline.json_lines())
    wait_until(
        lambda: len(pipeline.json_lines()) > batches or not pipeline.is_running(),
        timeout_s=timeout_s,
        what=f"{pipeline} has reported a batch",
        poll_s=POLL_S,
    )


def session_members(session_id: int) -> list[int]:
    """Returns the processes of a session that run, from /proc."""
    return [pid for pid, session, state in _processes() if session == session_id and state != "Z"]


def _processes() -> Iterator[tuple[int, int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
                yield int(entry.name), int(fields[3]), fields[0]
