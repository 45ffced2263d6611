"""Runs the processes of a cluster on one machine, and the model of ZooKeeper that they share.

How it works: this process serves the model, and writes its znodes to a file whenever they have changed. Each broker is a process
of its own, in a session of its own, so that Ctrl-C reaches this process only. Each line of a broker is printed with its number.
If this process is killed, the kernel stops the brokers.

Rules of this file:
    The file is replaced as a whole. A crash of this process may lose the changes of the last `SNAPSHOT_PAUSE_S` seconds, so the
    cluster is for development.
    A broker that ends before the whole cluster serves ends all. Later the others go on without it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click
import structlog
import trio

from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.log.directory import is_held
from wirekafka.log.storage import Storage
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.model.snapshot import MalformedSnapshotError, read_snapshot, write_snapshot
from wirekafka.zookeeper.server import serve_model

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
"""Where the brokers listen."""
SNAPSHOT_FILE = "zookeeper.json"
LOCK_FILE = ".lock"
SNAPSHOT_PAUSE_S = 0.05
STOP_TIMEOUT_S = 30.0
"""How long brokers may take to stop before they are killed."""
_READY = re.compile(rb"wirekafka \S+ ready on (\S+), data in ")
_BROKER_FOLDER = re.compile(r"broker-([1-9][0-9]*)")
_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `wirekafka cluster start` was told.

    Attributes:
        base_port: the port of the first broker; None if the kernel chooses.
        settings: KEY=VALUE of all brokers.
    """

    broker_count: int
    data_dir: str
    base_port: int | None
    settings: tuple[str, ...]
    log_level: str

    def folder_of(self, broker_id: int) -> str:
        """Returns the data directory of a broker."""
        return os.path.join(self.data_dir, f"broker-{broker_id}")

    def port_of(self, broker_id: int) -> int:
        """Returns the port of a broker; 0 if the kernel chooses."""
        return 0 if self.base_port is None else self.base_port + broker_id - 1

    def settings_of_all(self) -> list[str]:
        """Returns the settings of all brokers, those that the user has given last."""
        replicas, in_sync = min(3, self.broker_count), min(2, self.broker_count)
        defaults = {
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "transaction.state.log.min.isr": in_sync,
            "zookeeper.session.timeout.ms": 6000,
            "controlled.shutdown.retry.backoff.ms": 500,
        }
        return [*(f"{name}={value}" for name, value in defaults.items()), *self.settings]


@dataclass(slots=True)
class _Broker:
    """One broker.

    Attributes:
        address: where it listens, once it is ready.
        is_ready: set when it serves, or has ended.
    """

    broker_id: int
    process: subprocess.Popen[bytes]
    address: str | None = None
    is_ready: trio.Event = field(default_factory=trio.Event)
    has_ended: trio.Event = field(default_factory=trio.Event)


async def supervise(options: Options) -> None:
    """Runs a cluster until a signal stops it, or until all brokers have ended.

    Raises:
        ClusterCommandError: the cluster cannot run.
        OSError: the directory cannot be used.
    """
    os.makedirs(options.data_dir, exist_ok=True)
    with _locked(options.data_dir):
        _check_count(options)
        await _until_free(options)
        _check_ports(options)
        path = os.path.join(options.data_dir, SNAPSHOT_FILE)
        model = _open_model(path)
        snapshot = _Snapshot(model, path)
        async with serve_model(model) as address, trio.open_nursery() as nursery:
            nursery.start_soon(snapshot.keep)
            try:
                await _run_brokers(options, f"{address}/kafka", snapshot.save)
            finally:
                with trio.CancelScope(shield=True):
                    await snapshot.save()
            nursery.cancel_scope.cancel()


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    fd = os.open(os.path.join(folder, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ClusterCommandError(f"The cluster of {folder} is running already: stop it, or name another --data-dir") from None
    finally:
        os.close(fd)


def _check_count(options: Options) -> None:
    """Raises if the cluster has had more brokers: their partitions would be offline."""
    matches = map(_BROKER_FOLDER.fullmatch, os.listdir(options.data_dir))
    greatest = max((int(match[1]) for match in matches if match is not None), default=0)
    if greatest > options.broker_count:
        raise ClusterCommandError(f"The cluster of {options.data_dir} has {greatest} brokers: start it with {greatest} or more")


async def _until_free(options: Options) -> None:
    """Waits until the brokers of a run whose supervisor was killed have ended.

    Raises:
        ClusterCommandError: they do not end.
    """
    folders = [options.folder_of(broker_id) for broker_id in range(1, options.broker_count + 1)]
    with trio.move_on_after(STOP_TIMEOUT_S):
        while any(map(is_held, folders)):  # noqa: ASYNC110 - nothing tells that a lock of another process is free
            await trio.sleep(0.1)
    held = [folder for folder in folders if is_held(folder)]
    if held:
        raise ClusterCommandError(f"Another broker uses {held[0]}: stop it")


def _check_ports(options: Options) -> None:
    """Raises unless all brokers can listen: otherwise the first one would end and its message would name options of `serve`."""
    for broker_id in range(1, options.broker_count + 1):
        port = options.port_of(broker_id)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError as error:
                reason = error.strerror or str(error)
                remedy = "stop the program that uses it, or name another --port"
                raise ClusterCommandError(f"Broker {broker_id} cannot listen on {HOST}:{port} ({reason}): {remedy}") from None


# The model


def _open_model(path: str) -> ModelServer:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return ModelServer(_now_ms)
    try:
        return read_snapshot(data, _now_ms)
    except MalformedSnapshotError as error:
        raise ClusterCommandError(f"{path} is not the state of a cluster: {error}") from None


def _now_ms() -> int:
    return round(time.time() * 1000)


class _Snapshot:
    """The file that has the znodes of a model."""

    def __init__(self, model: ModelServer, path: str) -> None:
        self._model, self._path = model, path
        self._saved = -1
        self._lock = trio.Lock()

    async def keep(self) -> None:
        """Writes the znodes after each change, until it is cancelled."""
        while True:
            await self.save()
            await trio.sleep(SNAPSHOT_PAUSE_S)

    async def save(self) -> None:
        """Writes the znodes if they have changed."""
        async with self._lock:
            zxid = self._model.last_zxid
            if zxid != self._saved:
                data = write_snapshot(self._model)
                await trio.to_thread.run_sync(partial(Storage().write_file, self._path, data, sync=True))
                self._saved = zxid


# The brokers


async def _run_brokers(options: Options, connect: str, save: Callable[[], Awaitable[None]]) -> None:
    """Starts the brokers, prints their addresses, and stops them at a signal.

    The znodes are saved before the addresses are printed: without the id of the cluster its brokers do not start again.
    """
    brokers: list[_Broker] = []
    is_stopping = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        try:
            async with trio.open_nursery() as nursery:
                for broker_id in range(1, options.broker_count + 1):
                    broker = _Broker(broker_id, _spawn(options, connect, broker_id))
                    brokers.append(broker)
                    nursery.start_soon(_watch, broker)
                nursery.start_soon(_until_signal, signals, brokers, is_stopping)
                if await _are_ready(brokers, is_stopping):
                    await save()
                    click.echo(f"bootstrap.servers={','.join(str(broker.address) for broker in brokers)}")
                    sys.stdout.flush()
                for broker in brokers:
                    await broker.has_ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            _kill(brokers)


def _spawn(options: Options, connect: str, broker_id: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "wirekafka", "serve", "--listen", f"{HOST}:{options.port_of(broker_id)}"]
    command += ["--data-dir", options.folder_of(broker_id)]
    settings = [*options.settings_of_all(), f"broker.id={broker_id}", f"zookeeper.connect={connect}"]
    command += ["--log-level", options.log_level, *(word for setting in settings for word in ("--set", setting))]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )


def _die_with_parent() -> None:
    """Lets the kernel send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


async def _watch(broker: _Broker) -> None:
    """Prints the lines of a broker until it ends."""
    assert broker.process.stdout is not None, "it is a pipe"
    try:
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(broker.process.stdout.fileno())) as stream:
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    _take_line(broker, line)
        code = await trio.to_thread.run_sync(broker.process.wait)
        _log_end(broker, code)
    finally:
        broker.is_ready.set()
        broker.has_ended.set()


def _log_end(broker: _Broker, code: int) -> None:
    again = "to start it again, stop the cluster with Ctrl-C, and repeat the command"
    if code == 0:
        log.info("A broker has ended", broker=broker.broker_id)
    elif code < 0:
        log.error("A signal has ended a broker", broker=broker.broker_id, signal=signal.strsignal(-code), remedy=again)
    else:
        log.error("A broker has ended", broker=broker.broker_id, exit_code=code, remedy=f"its lines say why; {again}")


def _take_line(broker: _Broker, line: bytes) -> None:
    found = _READY.match(line)
    if found is not None:
        broker.address = found[1].decode()
        broker.is_ready.set()
    click.echo(b"%d | %s" % (broker.broker_id, line), err=True)


async def _are_ready(brokers: list[_Broker], is_stopping: trio.Event) -> bool:
    """Waits until all brokers serve; returns False if a signal stops them before.

    Raises:
        ClusterCommandError: a broker has ended.
    """
    for broker in brokers:
        await broker.is_ready.wait()
        if broker.address is None:
            break
    ended = [broker for broker in brokers if broker.is_ready.is_set() and broker.address is None]
    if is_stopping.is_set():
        return False
    if ended:
        raise ClusterCommandError(f"Broker {ended[0].broker_id} has ended; its lines say why")
    return True


async def _until_signal(signals: AsyncIterator[int], brokers: list[_Broker], is_stopping: trio.Event) -> None:
    """Stops the brokers at the first signal, and kills them at the second one or if they take too long."""
    await anext(signals)
    is_stopping.set()
    for broker in brokers:
        _send(broker, signal.SIGTERM)
    with trio.move_on_after(STOP_TIMEOUT_S):
        await anext(signals)
    _kill(brokers)


def _kill(brokers: list[_Broker]) -> None:
    for broker in brokers:
        _send(broker, signal.SIGKILL)
        broker.process.wait()


def _send(broker: _Broker, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        broker.process.send_signal(number)
