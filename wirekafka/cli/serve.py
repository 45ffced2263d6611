"""`wirekafka serve`: arguments become a configuration, and a broker runs until it is told to stop.

Rules of this file: what the broker needs is imported once the arguments are read, so that `--help` and a wrong argument are
answered at once. Exit codes: 0 stopped as asked, 1 could not run, 2 asked for something wrong.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from wirekafka import __version__

if TYPE_CHECKING:
    from types import FrameType

    import trio

    from wirekafka.config import BrokerConfig
    from wirekafka.server.listener import Address

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"
DEFAULT_DATA_DIR = "data"

COULD_NOT_RUN = 1
ASKED_WRONG = 2

COLLECT_AFTER_OBJECTS = 50_000
"""Between two collections of the youngest objects. A request's objects die by their reference counts, so Python's 700 would only
look through a large request again and again while it is read."""

UNUSED_MODULES = ("asyncio", "ssl")
"""Imported by structlog and trio for what is not used here: 20 ms of 200 at the start, 2.8 MiB of 38 at rest (2026-11)."""


class _Later(ModuleType):
    """Stands in for a module until something of it is wanted."""

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
    help="Tell clients to connect here. Without it each is told the address on which it reached the broker.",
)
@click.option(
    "--published",
    metavar="HOST:PORT",
    envvar="WIREKAFKA_PUBLISHED",
    show_envvar=True,
    help="In a container: tell clients that come in through a published port to connect here.",
)
@click.option("--data-dir", metavar="DIR", help="Keep topics and their records here.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="One of Kafka's broker settings, such as num.partitions=3; goes before SERVER.PROPERTIES.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is worth a line on stderr.",
)
def serve(
    properties: Path | None,
    listen: tuple[str, ...],
    advertise: str | None,
    published: str | None,
    data_dir: str | None,
    settings: tuple[str, ...],
    log_level: str,
) -> None:
    """Runs one broker until SIGTERM or SIGINT; a second signal ends it at once.

    Without SERVER.PROPERTIES it listens on 127.0.0.1:9092 and keeps its data in ./data. With it, the settings are Kafka's own,
    and so are the defaults.
    """
    if not hasattr(select, "epoll"):
        _fail("a broker runs on Linux; on another system run it in a container, see docs/docker.md", COULD_NOT_RUN)
    stop = _Stop()
    # What imports make stays: looking through it again and again would be a tenth of the time to start.
    gc.disable()
    # Where rich is installed, structlog imports it for coloured tracebacks: a quarter of the time to start, and 6 MiB.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    for name in UNUSED_MODULES:
        sys.modules.setdefault(name, _Later(name))
    from wirekafka.config import BrokerConfig, ConfigError
    from wirekafka.server.logging import configure_logging

    configure_logging(log_level)
    # log.dir, not log.dirs: it holds unless either is set.
    overrides = {} if properties else {"listeners": DEFAULT_LISTENER, "log.dir": DEFAULT_DATA_DIR}
    overrides |= _parse_settings(settings)
    if data_dir is not None:
        overrides["log.dirs"] = data_dir
    if listen:
        overrides |= _listeners(listen)
    try:
        if advertise:
            overrides["advertised.listeners"] = _advertised(advertise, properties, overrides)
        config = BrokerConfig.load(properties, overrides)
    except ConfigError as error:
        _fail(str(error), ASKED_WRONG)
    except OSError as error:
        _fail(f"Cannot read {properties}: {error.strerror}", ASKED_WRONG)
    if listen and not advertise:
        _note_what_is_advertised(config)
    sys.exit(_run(config, stop, _published(published)))


class _Stop:
    """What signals ask for: the first stops the broker in order, the second ends the process.

    A handler of our own from the very start, because process 1 of a container ignores SIGTERM without one.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._scope: trio.CancelScope | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def cancels(self, scope: trio.CancelScope, token: trio.lowlevel.TrioToken) -> None:
        """Names what the first signal cancels."""
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
    _flush_log()
    click.echo(f"wirekafka: {message}", err=True)
    sys.exit(status)


def _flush_log() -> None:
    """Lets the lines of the log come before what is written to stderr next."""
    logging = sys.modules.get("wirekafka.server.logging")
    if logging is not None:
        logging.flush_log()


def _parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    overrides = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            _fail(f"--set {setting}: accepted is KEY=VALUE, such as num.partitions=3", ASKED_WRONG)
        overrides[key.strip()] = value
    return overrides


def _check_address(option: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        _fail(f"{option} {address}: accepted is HOST:PORT, such as 127.0.0.1:9092", ASKED_WRONG)


def _listeners(addresses: tuple[str, ...]) -> dict[str, str]:
    """The addresses as Kafka's listeners, whose names must differ: PLAINTEXT, PLAINTEXT_2, ..."""
    for address in addresses:
        _check_address("--listen", address)
    names = ["PLAINTEXT", *(f"PLAINTEXT_{number}" for number in range(2, len(addresses) + 1))]
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in zip(names, addresses, strict=True)),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
    }


def _advertised(address: str, properties: Path | None, overrides: dict[str, str]) -> str:
    """The address for every listener, as Kafka's advertised.listeners."""
    from wirekafka.config.properties import parse_properties

    _check_address("--advertise", address)
    given = (parse_properties(properties.read_bytes()) if properties else {}) | overrides
    listeners = given.get("listeners", DEFAULT_LISTENER).split(",")
    return ",".join(f"{listener.partition('://')[0].strip()}://{address}" for listener in listeners)


def _note_what_is_advertised(config: BrokerConfig) -> None:
    """Says so where `--listen` moved the broker, and a server.properties tells clients where it was."""
    import structlog

    ports = {listener.port for listener in config.listeners}
    elsewhere = [str(each) for each in config.advertised_listeners.values() if each.port and each.port not in ports]
    if elsewhere:
        log = structlog.get_logger(__name__)
        log.warning("Clients are told advertised.listeners, not what --listen says; see --advertise", advertised=elsewhere)


def _published(address: str | None) -> Address | None:
    from wirekafka.config.endpoints import UNROUTABLE_HOSTS
    from wirekafka.server.listener import Address

    if address is None:
        return None
    _check_address("--published", address)
    host, _, port = address.rpartition(":")
    found = Address(host.strip("[]"), int(port))
    if found.host in UNROUTABLE_HOSTS or not 0 < found.port < 65536:
        _fail(f"--published {address}: accepted is an address that clients can connect to, such as localhost:9092", ASKED_WRONG)
    return found


def _take_all_files() -> None:
    """Lets the process open as many files as it may, as the Java machine does: a shell gives 1,024 to begin with."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(config: BrokerConfig, stop: _Stop, published: Address | None) -> int:
    """Runs the broker; returns the exit code."""
    import trio

    from wirekafka.config import ConfigError
    from wirekafka.errors import KafkaError
    from wirekafka.log.directory import DirectoryLockedError
    from wirekafka.server.listener import ListenError
    from wirekafka.server.running import only_cause

    _take_all_files()
    try:
        trio.run(_serve, config, stop, published)
    except BaseException as error:
        cause = only_cause(error)
        if isinstance(cause, ConfigError):
            _fail(str(cause), ASKED_WRONG)
        if not isinstance(cause, (ListenError, DirectoryLockedError, KafkaError, OSError)):
            raise
        _flush_log()
        click.echo(f"wirekafka: {_told(cause)}", err=True)
        return COULD_NOT_RUN
    return 0


def _told(cause: Exception) -> str:
    """Why a broker cannot run, and what would change that."""
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
            return f"Cannot use {cause.filename}: not a directory"
        case OSError() if cause.filename is not None:
            return f"Cannot use {cause.filename}: {cause.strerror}"
    return str(cause)


async def _serve(config: BrokerConfig, stop: _Stop, published: Address | None) -> None:
    import structlog
    import trio

    from wirekafka.server.running import open_broker

    log = structlog.get_logger(__name__)
    with trio.CancelScope() as scope:
        stop.cancels(scope, trio.lowlevel.current_trio_token())
        async with open_broker(config, published=published) as running:
            gc.freeze()
            gc.set_threshold(COLLECT_AFTER_OBJECTS)
            gc.enable()
            print(_ready_line(running.addresses, config.log_dirs), flush=True)
            try:
                await trio.sleep_forever()
            finally:
                log.info("Stopping")
    log.info("Stopped")


def _ready_line(addresses: list[Address], folders: list[str]) -> str:
    where = ", ".join(map(str, addresses))
    data = ", ".join(map(os.path.abspath, folders))
    return f"wirekafka {__version__} ready on {where}, data in {data} ({_seconds_up():.2f} s)"


def _seconds_up() -> float:
    """Since this process was started, Python's own start included."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
