"""`wirekafka serve`: runs a broker until a signal stops it.

Rules of this file: the modules of the broker are imported after the arguments are checked, so that `--help` and a wrong argument
are answered at once. Exit codes: 0 the broker was stopped by a signal, 1 it could not run, 2 wrong arguments or settings.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from wirekafka import __version__
from wirekafka.cli.arguments import ArgumentError, Arguments, config_of, first_topics_of, published_address

if TYPE_CHECKING:
    from types import FrameType

    import trio

    from wirekafka.config import BrokerConfig
    from wirekafka.server.first_topics import FirstTopic
    from wirekafka.server.listener import Published
    from wirekafka.server.running import RunningBroker

COULD_NOT_RUN = 1
ASKED_WRONG = 2

COLLECTION_THRESHOLDS = (10_000, 1, 1)
"""The thresholds of Python's garbage collector: it scans the new objects once there are 10,000 more, each second time also the
objects that survived the last scan, and each second of these times all objects that are not frozen (`Collections`). Reference
counts free the objects of a request. The full scans are frequent, so that each is short: what is scanned is frozen when it takes
10 ms. With 50,000 and a freeze after 20 ms, the first LeaderAndIsr of 10,000 partitions was held up for 84 ms, now for 22
(2026-11, busy machine). Python counts the objects that are created less those that are freed, so more than 10,000 may be new."""

SWITCH_INTERVAL_SECONDS = 0.0005
"""The time that the loop waits for the interpreter while a thread computes. With Python's default of 5 ms, a turn of the loop
with 20 system calls took up to 12 ms beside an assignor (10,000 members, 10,000 partitions), now 1.5 ms; the assignor took no
longer (2026-11)."""

UNUSED_MODULES = ("asyncio", "ssl")
"""structlog and trio import these modules, and the broker does not use them: 20 ms of 200 at start, 2.8 MiB of 38 at rest
(2026-11)."""


class _Later(ModuleType):
    """Stands in for a module until the first attribute of that module is used."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@click.command()
@click.argument(
    "properties", metavar="[SERVER.PROPERTIES]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    multiple=True,
    help="Listen here; can be given several times. No HOST means every interface, PORT 0 lets the kernel choose.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Tell clients to connect here. Without it, each client is told the address at which it reached the broker.",
)
@click.option(
    "--published",
    metavar="HOST:PORT|@FILE",
    envvar="WIREKAFKA_PUBLISHED",
    show_envvar=True,
    help="In a container: the address that clients of a published port are told; or @FILE, a file that will have it.",
)
@click.option("--data-dir", metavar="DIR", help="Keep topics and their records here; overrides log.dirs.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="One of Kafka's broker settings, such as num.partitions=3; overrides SERVER.PROPERTIES. Can be given several times.",
)
@click.option(
    "--env",
    "reads_environment",
    is_flag=True,
    help="Take settings from environment variables too, such as KAFKA_NUM_PARTITIONS; they override SERVER.PROPERTIES.",
)
@click.option(
    "--topics",
    metavar="LIST",
    envvar="WIREKAFKA_TOPICS",
    show_envvar=True,
    help="Create these topics unless they exist: NAME[:PARTITIONS[:compact|delete]], separated by commas.",
)
@click.option(
    "--control-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    envvar="WIREKAFKA_CONTROL_PORT",
    show_envvar=True,
    help="For tests: let programs of this machine control the broker over HTTP on this port of 127.0.0.1; 0 lets the kernel "
    "choose. They can inject faults and move its time.",
)
@click.option(
    "--temporary",
    is_flag=True,
    help="For tests: keep the data in memory, or in a temporary directory if there is less than 1 GiB of memory for it, and "
    "remove it at the end; overrides log.dirs.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least severe lines that are logged on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How lines are logged on stderr: for people, or one JSON object a line.",
)
def serve(
    properties: Path | None,
    listen: tuple[str, ...],
    advertise: str | None,
    published: str | None,
    data_dir: str | None,
    settings: tuple[str, ...],
    reads_environment: bool,
    topics: str | None,
    control_port: int | None,
    temporary: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Runs one broker until a signal stops it.

    SIGTERM, SIGINT and SIGHUP stop it cleanly. A second signal ends it at once.

    Without SERVER.PROPERTIES the broker listens on 127.0.0.1:9092 and keeps its data in ./data. With it, or with --env, the
    settings and their defaults are Kafka's own. The default of log.dirs is then /tmp/kafka-logs.

    With the setting zookeeper.connect the broker is a member of a cluster of wirekafka, of Apache Kafka 2.8 to 3.9, or of both.
    Otherwise it is the only broker.
    """
    if not hasattr(select, "epoll"):
        _fail("a broker runs on Linux; on another system run it in a container, see docs/docker.md", COULD_NOT_RUN)
    stop = _Stop()
    # The objects that imports create are never freed. A search for cycles among them would take a tenth of the time to start.
    gc.disable()
    # If rich is installed, structlog imports it for coloured tracebacks: a quarter of the time to start, and 6 MiB.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    for name in UNUSED_MODULES:
        sys.modules.setdefault(name, _Later(name))
    from wirekafka.server.logging import configure_logging

    configure_logging(log_level, log_format)
    arguments = Arguments(properties, listen, advertise, data_dir, settings, os.environ if reads_environment else None)
    try:
        config = config_of(arguments)
        address = published_address(published)
        first_topics = first_topics_of(topics, config)
    except ArgumentError as error:
        _fail(str(error), ASKED_WRONG)
    except OSError as error:
        _fail(f"Cannot read {properties}: {error.strerror}", ASKED_WRONG)
    if temporary and config.is_member:
        _fail("--temporary: the data of a member of a cluster is not temporary", ASKED_WRONG)
    if not (temporary or _has_working_directory() or all(map(os.path.isabs, config.log_dirs))):
        _fail("The working directory was deleted: change to another one, or give --data-dir an absolute path", COULD_NOT_RUN)
    sys.exit(_run(config, stop, _Start(address, first_topics, control_port, temporary)))


class _Start(NamedTuple):
    """How a broker is started, apart from its settings.

    Attributes:
        published: the address that clients of a published port are told.
        first_topics: are created unless they exist.
        control_port: None for a broker without a control port.
        is_temporary: the data is removed at the end.
    """

    published: Published | None
    first_topics: list[FirstTopic]
    control_port: int | None
    is_temporary: bool

    @property
    def is_for_tests(self) -> bool:
        """Whether the broker can do more than one that is not for tests."""
        return self.control_port is not None or self.is_temporary


class _Stop:
    """Handles signals: the first one stops the broker cleanly, the second one ends the process at once.

    The handlers are installed before anything else, because process 1 of a container ignores SIGTERM without a handler. A closed
    terminal sends SIGHUP. If SIGHUP was ignored at start, as under `nohup`, it stays ignored.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._scope: trio.CancelScope | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def cancels(self, scope: trio.CancelScope, token: trio.lowlevel.TrioToken) -> None:
        """Sets the scope that the first signal cancels."""
        self._scope, self._token = scope, token
        if self.is_requested:
            scope.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            os._exit(128 + number)
        self.is_requested = True
        if self._scope is not None and self._token is not None:
            self._token.run_sync_soon(self._scope.cancel)


def _fail(message: str, status: int) -> NoReturn:
    """Ends the process. Each line of the message is printed as one line on stderr."""
    _flush_log()
    for line in message.splitlines():
        click.echo(f"wirekafka: {line}", err=True)
    sys.exit(status)


def _flush_log() -> None:
    """Writes the waiting log lines before other output goes to stderr."""
    logging = sys.modules.get("wirekafka.server.logging")
    if logging is not None:
        logging.flush_log()


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard limit, as Java does; a shell's soft limit is 1,024."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(config: BrokerConfig, stop: _Stop, start: _Start) -> int:
    """Runs the broker; returns the exit code."""
    import trio

    from wirekafka.config import ConfigError
    from wirekafka.errors import KafkaError
    from wirekafka.log.directory import DirectoryLockedError
    from wirekafka.server.listener import ListenError
    from wirekafka.server.running import only_cause

    _raise_file_limit()
    try:
        trio.run(_serve, config, stop, start, clock=_clock(start))
    except BaseException as error:
        cause = only_cause(error)
        if isinstance(cause, ConfigError):
            _fail(str(cause), ASKED_WRONG)
        if not isinstance(cause, (ListenError, DirectoryLockedError, KafkaError, OSError)):
            raise
        _fail(_message_of(cause), COULD_NOT_RUN)
    return 0


def _message_of(cause: Exception) -> str:
    """Returns why the broker cannot run, and what the operator can do."""
    from wirekafka.errors import KafkaError
    from wirekafka.log.directory import DirectoryLockedError
    from wirekafka.server.listener import ListenError

    match cause:
        case ListenError():
            return f"{cause}; --listen HOST:PORT names another address, port 0 a free port"
        case DirectoryLockedError():
            return f"{cause}; --data-dir DIR names another directory"
        case KafkaError():
            return cause.message or str(cause)
        case FileExistsError() | NotADirectoryError():
            return f"Cannot use {cause.filename}: not a directory; --data-dir DIR names another directory"
        case OSError() if cause.filename is not None:
            return f"Cannot use {cause.filename}: {cause.strerror}; check the path and its permissions"
    return str(cause)


def _clock(start: _Start) -> trio.abc.Clock | None:
    """Returns the clock of the loop; None for that of the machine."""
    if start.control_port is None:
        return None
    from wirekafka.testing.advancing_clock import AdvancingClock

    return AdvancingClock()


async def _serve(config: BrokerConfig, stop: _Stop, start: _Start) -> None:
    import structlog
    import trio

    log = structlog.get_logger(__name__)
    with trio.CancelScope() as scope:
        stop.cancels(scope, trio.lowlevel.current_trio_token())
        async with _opened(config, start) as (running, control_url):
            gc.freeze()
            gc.set_threshold(*COLLECTION_THRESHOLDS)
            running.lag.collections.freezes = True
            sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
            gc.enable()
            print(_ready_line(running, control_url), flush=True)
            async with _service_manager():
                try:
                    await trio.sleep_forever()
                finally:
                    log.info("Stopping")
    log.info("Stopped")


@asynccontextmanager
async def _opened(config: BrokerConfig, start: _Start) -> AsyncIterator[tuple[RunningBroker, str | None]]:
    """Runs the broker; the block has it and the URL of its control port."""
    if start.is_for_tests:
        from wirekafka.testing.control.process import open_for_tests

        opened = open_for_tests(
            config,
            start.published,
            start.first_topics,
            control_port=start.control_port,
            is_temporary=start.is_temporary,
        )
        async with opened as process:
            yield process.running, process.control_url
        return
    from wirekafka.server.running import open_broker

    async with open_broker(config, published=start.published, first_topics=start.first_topics) as running:
        yield running, None


def _service_manager() -> AbstractAsyncContextManager[None]:
    """Returns the block in which systemd knows that the broker serves, if systemd has started it."""
    if "NOTIFY_SOCKET" not in os.environ:
        return nullcontext()
    from wirekafka.server.systemd import service_manager

    return service_manager()


def _ready_line(running: RunningBroker, control_url: str | None) -> str:
    where = ", ".join(map(str, running.addresses))
    data = ", ".join(map(os.path.abspath, running.broker.config.log_dirs))
    control = "" if control_url is None else f", control on {control_url}"
    return f"wirekafka {__version__} ready on {where}, data in {data}{control} ({_seconds_up():.2f} s)"


def _seconds_up() -> float:
    """Returns the seconds since this process started; they include the start of Python."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
