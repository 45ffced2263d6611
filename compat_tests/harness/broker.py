"""A broker in a process of its own: wirekafka, or Apache Kafka as the reference that shows that a test is right.

    with start(kind, directory, settings) as broker:
        broker.bootstrap

Both brokers take Kafka's setting names. The kernel chooses the ports, and the harness reads them from the broker's output.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from compat_tests.harness import jars
from compat_tests.harness.waiting import wait_until

WIREKAFKA = "wirekafka"
KINDS = (WIREKAFKA, jars.KAFKA, jars.OLDER_KAFKA)

TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
"""The settings of every broker in the tests: short delays, and no retention by time, so that records of any timestamp stay."""

VERSIONS_OF_2019 = (
    "Produce:7,Fetch:11,ListOffsets:5,Metadata:8,OffsetCommit:6,OffsetFetch:5,FindCoordinator:2,JoinGroup:5,Heartbeat:3,"
    "LeaveGroup:2,SyncGroup:3,DescribeGroups:3,ListGroups:2,ApiVersions:2,CreateTopics:3,DeleteTopics:3,InitProducerId:1,"
    "OffsetForLeaderEpoch:3,DescribeConfigs:2,DescribeTopicPartitions:none,DescribeCluster:none,OffsetDelete:none"
)
"""For wirekafka.api.versions.max: about the versions that Apache Kafka 2.3 served."""

RUNNING: list[Broker] = []
"""The brokers that run now; a failed test shows the ends of their logs."""


STARTED: set[Broker] = set()
"""The brokers that have run in this test; at the end of the test their logs are searched for faults."""

FAULT = re.compile(r"^.*(?:Traceback \(most recent call last\)|A request failed|a timer failed).*$", re.IGNORECASE | re.MULTILINE)
"""A line of wirekafka's log about a fault in the broker itself."""


def random_loopback_host() -> str:
    """Returns an address of this machine on which hardly any other process listens."""
    return f"127.7.{random.randint(0, 255)}.{random.randint(1, 254)}"


class Broker:
    """A broker's process, data directory and log.

    Attributes:
        bootstrap: HOST:PORT of its listener while it runs.
        ready_line: the line that it printed when it was ready.
        data_dir: the directory of its partitions; it remains after a stop, so that the broker can be started again.
        prefix: precedes the command line, for example to run the process in a network namespace.
        keeps_address: whether a start after the first one uses the same address. The address is then on a random loopback
            host (Linux has 127.0.0.0/8), so that no other process takes the port while the broker is down.
    """

    ready_timeout_s = 120.0

    def __init__(
        self, directory: Path, settings: Mapping[str, str] = {}, *, advertised: str | None = None, keeps_address: bool = False
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.log_path = directory / "broker.log"
        self.settings = {**TEST_SETTINGS, **settings}
        self.advertised = advertised
        self.keeps_address = keeps_address
        self.host = random_loopback_host() if keeps_address else "127.0.0.1"
        self.prefix: tuple[str, ...] = ()
        self.process: subprocess.Popen[str] | None = None
        self.bootstrap = ""
        self.ready_line = ""
        self._searched_bytes = 0

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def address(self) -> tuple[str, int]:
        return self.bootstrap.rpartition(":")[0], self.port

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def listen_address(self) -> str:
        """HOST:PORT for the next start; port 0 lets the kernel choose."""
        return self.bootstrap if self.keeps_address and self.bootstrap else f"{self.host}:0"

    def command(self) -> list[str]:
        """Returns the command line that starts the broker."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the broker and waits until it is ready."""
        raise NotImplementedError

    def is_running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def terminate(self, timeout_s: float = 60.0, *, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends SIGTERM, or another signal, and waits for the end; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self._reap(timeout_s)

    def kill(self) -> None:
        """Kills the process (kill -9), to simulate a crash."""
        assert self.process is not None
        self.process.kill()
        self._reap(30.0)

    def _reap(self, timeout_s: float) -> int:
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            if self in RUNNING:
                RUNNING.remove(self)

    def log_text(self) -> str:
        """Returns all log lines so far, those before restarts included."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def new_faults(self) -> list[str]:
        """Returns the lines about faults among those logged since the last call."""
        if not self.log_path.exists():
            return []
        with self.log_path.open("rb") as log:
            log.seek(self._searched_bytes)
            text = log.read()
        self._searched_bytes += len(text)
        return [found[0] for found in FAULT.finditer(text.decode(errors="replace"))]

    def resident_kib(self) -> int:
        """Returns the resident memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def _spawn(self, command: list[str], environment: Mapping[str, str] = {}) -> None:
        assert not self.is_running()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment},
                cwd=self.directory,
            )
        RUNNING.append(self)
        STARTED.add(self)

    def _read_ready_line(self) -> str:
        """Returns the first line on stdout.

        Raises:
            AssertionError: no line came in time, or the process ended.
        """
        assert self.process is not None
        assert self.process.stdout is not None
        timer = threading.Timer(self.ready_timeout_s, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._reap(5.0)
        assert line, f"the broker did not become ready:\n{self.log_text()[-3000:]}"
        return line


class Wirekafka(Broker):
    """`wirekafka serve`, installed in the interpreter that runs the tests."""

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "wirekafka", "serve", "--listen", self.listen_address]
        if "log.dirs" not in self.settings:
            command += ["--data-dir", str(self.data_dir)]
        if self.advertised is not None:
            command += ["--advertise", self.advertised]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def start(self) -> None:
        self._spawn(self.command())
        self.ready_line = line = self._read_ready_line()
        found = re.search(rf"{re.escape(self.host)}:\d+", line)
        assert found is not None, f"no address in the ready line: {line!r}"
        self.bootstrap = found[0]


class ApacheKafka(Broker):
    """Apache Kafka from Maven Central, broker and KRaft controller in one process.

    The controller cannot use port 0, because its address is written to a file before the controller starts. The kernel
    chooses a port beforehand, on a random loopback address (Linux has 127.0.0.0/8), so that no other process takes the port in
    between.
    """

    ready_timeout_s = 180.0
    profile = jars.KAFKA
    other_listeners: tuple[str, ...] = ()
    """The listeners besides PLAINTEXT, NAME://HOST:PORT each."""
    format_arguments: tuple[str, ...] = ()
    """More arguments of the tool that formats the data directory."""
    logging_flags = (f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'log4j2.properties'}",)

    def _controller(self) -> str:
        host = random_loopback_host()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def command(self) -> list[str]:
        properties = self.directory / "server.properties"
        return jars.java_command(self.profile, "kafka.Kafka", heap_mib=384, flags=self.logging_flags) + [str(properties)]

    def _configure(self) -> None:
        controller = self._controller()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join((f"PLAINTEXT://{self.listen_address}", *self.other_listeners, f"CONTROLLER://{controller}")),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **self.settings,
        }
        settings = {name: value for name, value in settings.items() if not name.startswith("wirekafka.")}
        if self.advertised is not None:
            settings["advertised.listeners"] = f"PLAINTEXT://{self.advertised}"
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.directory / "server.properties").write_text(text)

    def _format(self) -> None:
        command = jars.java_command(self.profile, "kafka.tools.StorageTool", flags=self.logging_flags)
        properties = str(self.directory / "server.properties")
        arguments = ["format", "--cluster-id", "4L6g3nShT-eMCtK--X86sw", "--config", properties, "--ignore-formatted"]
        with self.log_path.open("ab") as log:
            subprocess.run([*command, *arguments, *self.format_arguments], check=True, stdout=log, stderr=log, timeout=180)

    def prepare(self) -> None:
        """Writes the settings, and formats the data directory if that was not done before."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._configure()
        self._format()

    def start(self) -> None:
        self.prepare()
        before = len(self.log_text())
        self._spawn(self.command())

        def ready() -> str:
            assert self.is_running(), f"Kafka ended:\n{self.log_text()[-3000:]}"
            text = self.log_text()[before:]
            bound = re.search(rf"Awaiting socket connections on ({re.escape(self.host)}:\d+)", text)
            return bound[1] if bound is not None and "Kafka Server started" in text else ""

        self.bootstrap = wait_until(ready, timeout_s=self.ready_timeout_s, what="Kafka is ready")


class OlderApacheKafka(ApacheKafka):
    """Apache Kafka 3.9, which still converts the message formats 0 and 1."""

    profile = jars.OLDER_KAFKA
    logging_flags = (f"-Dlog4j.configuration=file:{jars.HERE / 'java' / 'log4j.properties'}",)


CLASSES: dict[str, type[Broker]] = {WIREKAFKA: Wirekafka, jars.KAFKA: ApacheKafka, jars.OLDER_KAFKA: OlderApacheKafka}


@contextlib.contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Starts the broker, and kills it at the end of the block, whatever state it is in."""
    broker.start()
    try:
        yield broker
    finally:
        if broker.is_running():
            broker.kill()
