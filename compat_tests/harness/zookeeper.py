"""ZooKeeper 3.8 in a process of its own, and Kafka 3.9 brokers that use a ZooKeeper.

with zookeeper(directory) as running:
    running.address
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from compat_tests.harness import jars
from compat_tests.harness.broker import OlderApacheKafka, random_loopback_host
from compat_tests.harness.networks import Machine
from compat_tests.harness.waiting import wait_until

LOGGING = f"-Dlog4j.configuration=file:{jars.HERE / 'java' / 'log4j.properties'}"
READY_TIMEOUT_S = 120.0
TICK_MS = 100
"""ZooKeeper grants session timeouts of 2 to 20 ticks; the configuration here grants up to 40,000 ms."""

PORT_IN_NAMESPACE = 2181
"""No other process listens in the network namespace of the server."""

SERVING = b"Zookeeper version"
"""The first words of the answer to `srvr` of a server that serves."""


class ZooKeeper:
    """One ZooKeeper server, which keeps its address and its data when it is started again.

    The address is on a random loopback host (Linux has 127.0.0.0/8), so that no other process takes the port meanwhile.
    """

    def __init__(self, directory: Path, machine: Machine | None = None) -> None:
        self.log_path = directory / "zookeeper.log"
        self._properties = directory / "zoo.cfg"
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = () if machine is None else machine.prefix
        self._address = _free_loopback_address() if machine is None else (machine.host, PORT_IN_NAMESPACE)
        host = self._address[0]
        settings = {
            "dataDir": str(directory / "data"),
            "clientPortAddress": host,
            "clientPort": str(self._address[1]),
            "tickTime": str(TICK_MS),
            "maxSessionTimeout": "40000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self._address[0]}:{self._address[1]}"

    def start(self) -> None:
        """Starts the server, and waits until it serves."""
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = jars.java_command(jars.OLDER_KAFKA, main, heap_mib=96, flags=(LOGGING,))
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *command, str(self._properties)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._is_serving, timeout_s=READY_TIMEOUT_S, what="ZooKeeper serves")

    def _is_serving(self) -> bool:
        """Returns whether the server opens sessions. To `ruok` it answers earlier, and then a session may get no answer."""
        assert self._process is not None
        assert self._process.poll() is None, f"ZooKeeper ended:\n{self.log_path.read_text()[-3000:]}"
        with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=1) as client:
            client.sendall(b"srvr")
            return client.recv(len(SERVING)) == SERVING
        return False

    def pause(self) -> None:
        """Stops the process (SIGSTOP), so that it is silent and keeps its connections. On return no thread of it runs."""
        self._signal(signal.SIGSTOP)
        wait_until(self._is_stopped, timeout_s=60, what="ZooKeeper has stopped")

    def _is_stopped(self) -> bool:
        assert self._process is not None
        stats = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)

    def resume(self) -> None:
        """Lets the process continue."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills the process (kill -9), to simulate a crash."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


def _free_loopback_address() -> tuple[str, int]:
    host = random_loopback_host()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]


@contextlib.contextmanager
def zookeeper(directory: Path, machine: Machine | None = None) -> Iterator[ZooKeeper]:
    """Yields a running ZooKeeper, and kills it at the end.

    Args:
        machine: where it runs; on loopback if it is None.
    """
    server = ZooKeeper(directory, machine)
    try:
        server.start()
        yield server
    finally:
        server.kill()


class KafkaOfZooKeeper(OlderApacheKafka):
    """A broker of Kafka 3.9 in ZooKeeper mode."""

    def __init__(self, directory: Path, connect: str, broker_id: int, settings: Mapping[str, str] = {}) -> None:
        super().__init__(directory, settings)
        self._connect = connect
        self._broker_id = broker_id

    def _configure(self) -> None:
        settings = {
            "broker.id": str(self._broker_id),
            "zookeeper.connect": self._connect,
            "listeners": f"PLAINTEXT://{self.listen_address}",
            "log.dirs": str(self.data_dir),
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "num.network.threads": "1",
            "num.io.threads": "2",
            **self.settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.directory / "server.properties").write_text(text)

    def start(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._configure()
        before = len(self.log_text())
        self._spawn(self.command())

        def ready() -> str:
            assert self.is_running(), f"Kafka ended:\n{self.log_text()[-3000:]}"
            text = self.log_text()[before:]
            bound = re.search(rf"Awaiting socket connections on ({re.escape(self.host)}:\d+)", text)
            return bound[1] if bound is not None and "started (kafka.server.KafkaServer)" in text else ""

        self.bootstrap = wait_until(ready, timeout_s=self.ready_timeout_s, what="Kafka is ready")
