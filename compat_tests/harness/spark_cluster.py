"""A standalone cluster of Spark on loopback, from the jars of the installed PySpark: a master and workers.

Source: https://spark.apache.org/docs/latest/spark-standalone.html
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from compat_tests.harness import jars
from compat_tests.harness.pipelines import ROOT
from compat_tests.harness.waiting import wait_until

START_TIMEOUT_S = 90.0
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class Daemon:
    """A master or a worker, started by `spark-class`. The executors of a worker are in its process group."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        import pyspark

        directory.mkdir(parents=True)
        self.log_path = directory / "daemon.log"
        home = Path(pyspark.__file__).parent
        logging = f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'spark-daemon-log4j2.properties'}"
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join((*jars.QUICK_START, logging)),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                cwd=directory,
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """Waits for a line of the log; returns the first group of the pattern, or the whole match."""

        def found() -> str:
            text = self.log_path.read_text(errors="replace")
            assert self.process.poll() is None, f"the process ended:\n{text[-3000:]}"
            match = re.search(pattern, text)
            return (match[1] if match.groups() else match[0]) if match else ""

        return wait_until(found, timeout_s=START_TIMEOUT_S, what=f"{pattern} in {self.log_path}")

    def kill(self) -> None:
        """Kills the process and its executors (kill -9)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class StandaloneCluster:
    """A running cluster.

    Attributes:
        url: the master URL, for `--master`.
        workers: each can be killed; killed ones are not started again.
    """

    def __init__(self, directory: Path, workers: int, cores: int, memory_mib: int) -> None:
        common = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._master = Daemon(directory / "master", MASTER, *common)
        self.url = ""
        self.workers: list[Daemon] = []
        try:
            self.url = self._master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
            size = ("--cores", str(cores), "--memory", f"{memory_mib}m")
            for number in range(workers):
                place = directory / f"worker-{number}"
                work = ("--work-dir", str(place / "work"))
                self.workers.append(Daemon(place, WORKER, *common, *size, *work, self.url))
            for worker in self.workers:
                worker.wait_for("Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def session(self, executor_memory_mib: int = 640) -> list[str]:
        """Returns the arguments of a pipeline whose session uses this cluster."""
        java_options = " ".join(jars.QUICK_START)
        settings = (
            "spark.driver.memory=640m",
            f"spark.executor.memory={executor_memory_mib}m",
            "spark.executor.cores=1",
            "spark.sql.shuffle.partitions=2",
            f"spark.driver.extraJavaOptions={java_options}",
            f"spark.executor.extraJavaOptions={java_options}",
            f"spark.pyspark.python={sys.executable}",
        )
        conf = [word for setting in settings for word in ("--conf", setting)]
        return ["--jars", str(jars.jars(jars.SPARK_PIPELINES)), "--master", self.url, *conf]

    def close(self) -> None:
        """Kills all processes."""
        for daemon in (*self.workers, self._master):
            daemon.kill()


@contextlib.contextmanager
def standalone_cluster(directory: Path, workers: int = 2, cores: int = 1, memory_mib: int = 1100) -> Iterator[StandaloneCluster]:
    """Starts a master and workers, and kills them at the end of the block."""
    cluster = StandaloneCluster(directory, workers, cores, memory_mib)
    try:
        yield cluster
    finally:
        cluster.close()
