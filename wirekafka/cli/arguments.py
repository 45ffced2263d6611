"""Turns the arguments of `wirekafka serve` into a configuration.

An option overrides `--set`, `--set` overrides the environment of `--env`, and the environment overrides server.properties. An
option that replaces the value of a setting is logged. An option that would replace an encrypted listener is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig
    from wirekafka.server.first_topics import FirstTopic
    from wirekafka.server.listener import Published

DEFAULT_LISTENER = "PLAINTEXT://127.0.0.1:9092"
DEFAULT_DATA_DIR = "data"


class ArgumentError(Exception):
    """An argument is malformed, or contradicts another. The text names the argument and what is accepted."""


class Arguments(NamedTuple):
    """The arguments of the command line.

    Attributes:
        environment: the variables of the process with `--env`; None without it.
    """

    properties: Path | None
    listen: tuple[str, ...] = ()
    advertise: str | None = None
    data_dir: str | None = None
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


def config_of(arguments: Arguments) -> BrokerConfig:
    """Returns the configuration.

    Raises:
        ArgumentError: an argument or a setting is malformed or contradicts another; each error is a line of the text.
        OSError: server.properties cannot be read.
    """
    from wirekafka.config import BrokerConfig, ConfigError
    from wirekafka.config.environment import listeners_for, read_environment
    from wirekafka.config.properties import parse_properties

    properties = arguments.properties
    # log.dir and not log.dirs, so that a --set of either one takes precedence.
    has_kafkas_defaults = properties is not None or arguments.environment is not None
    overrides = {} if has_kafkas_defaults else {"listeners": DEFAULT_LISTENER, "log.dir": DEFAULT_DATA_DIR}
    variables = read_environment(arguments.environment or {})
    given = parse_settings(arguments.settings)
    settings = variables.values | given
    overrides |= settings
    options = _options(arguments)
    try:
        in_file = parse_properties(properties.read_bytes()) if properties else {}
        _note_replaced(arguments, in_file | settings, options)
        overrides |= options
        if "advertised.listeners" in variables.values and "listeners" not in in_file | overrides:
            overrides["listeners"] = listeners_for(overrides["advertised.listeners"])
        if arguments.advertise:
            listeners = (in_file | overrides).get("listeners", DEFAULT_LISTENER)
            overrides["advertised.listeners"] = _advertised(arguments.advertise, listeners)
        config = BrokerConfig.load(properties, overrides)
    except ConfigError as error:
        replaced = given.keys() | options.keys()
        sources = {name: variable for name, variable in variables.variables.items() if name not in replaced}
        raise ArgumentError("\n".join(_all_errors(properties, overrides, sources)) or str(error)) from None
    if variables.ignored:
        _note_ignored(variables.ignored)
    if arguments.listen and not arguments.advertise:
        _note_what_is_advertised(config)
    return config


def published_address(address: str | None) -> Published | None:
    """Returns the address of `--published`, or the file that will have it; None without one.

    Raises:
        ArgumentError: no client can connect to it.
    """
    from wirekafka.config.endpoints import UNROUTABLE_HOSTS
    from wirekafka.server.listener import Address, PublishedFile

    if address is None:
        return None
    if address.startswith("@"):
        return PublishedFile(address[1:])
    _check_address("--published", address)
    host, _, port = address.rpartition(":")
    found = Address(host.strip("[]"), int(port))
    if found.host in UNROUTABLE_HOSTS or not 0 < found.port < 65536:
        raise ArgumentError(f"--published {address}: accepted is an address that clients can connect to, such as localhost:9092")
    return found


def first_topics_of(topics: str | None, config: BrokerConfig) -> list[FirstTopic]:
    """Returns the topics of `--topics`.

    Raises:
        ArgumentError: the list is malformed, or the broker is a member of a cluster.
    """
    if not topics:
        return []
    if config.is_member:
        raise ArgumentError("--topics is for a broker without other brokers: create the topics of a cluster with a client")
    from wirekafka.server.first_topics import parse_first_topics

    try:
        return parse_first_topics(topics)
    except ValueError as error:
        raise ArgumentError(f"--topics {error}") from None


def parse_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Returns the settings of `--set`, by key.

    Raises:
        ArgumentError: one is not KEY=VALUE.
    """
    overrides = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ArgumentError(f"--set {setting}: accepted is KEY=VALUE, such as num.partitions=3")
        overrides[key.strip()] = value
    return overrides


def _options(arguments: Arguments) -> dict[str, str]:
    """Returns the settings that `--listen` and `--data-dir` stand for."""
    options = {}
    if arguments.data_dir is not None:
        options["log.dirs"] = arguments.data_dir
    if arguments.listen:
        options |= _listeners(arguments.listen)
    return options


def _listeners(addresses: tuple[str, ...]) -> dict[str, str]:
    """Returns the addresses as Kafka's listeners, whose names must differ: PLAINTEXT, PLAINTEXT_2, ..."""
    for index, address in enumerate(addresses):
        _check_address("--listen", address)
        if address in addresses[:index] and not address.endswith(":0"):
            raise ArgumentError(f"--listen {address} is given twice: accepted is each address once")
    names = ["PLAINTEXT", *(f"PLAINTEXT_{number}" for number in range(2, len(addresses) + 1))]
    return {
        "listeners": ",".join(f"{name}://{address}" for name, address in zip(names, addresses, strict=True)),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
    }


def _check_address(option: str, address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise ArgumentError(f"{option} {address}: accepted is HOST:PORT, such as 127.0.0.1:9092")


def _advertised(address: str, listeners: str) -> str:
    """Returns Kafka's advertised.listeners with this address for every listener."""
    _check_address("--advertise", address)
    return ",".join(f"{listener.partition('://')[0].strip()}://{address}" for listener in listeners.split(","))


def _note_replaced(arguments: Arguments, settings: Mapping[str, str], options: Mapping[str, str]) -> None:
    """Logs the settings that an option replaces with another value.

    Raises:
        ArgumentError: `--listen` would replace a listener that is not PLAINTEXT.
    """
    import structlog

    log = structlog.get_logger(__name__)
    if arguments.listen and "listeners" in settings:
        _check_no_encryption_is_lost(settings)
        if settings["listeners"] != options["listeners"]:
            log.warning("--listen replaces listeners", listeners=settings["listeners"], listen=list(arguments.listen))
    for name in ("log.dirs", "log.dir"):
        if arguments.data_dir is not None and settings.get(name) not in (None, arguments.data_dir):
            log.warning(f"--data-dir replaces {name}", directories=settings[name], data_dir=arguments.data_dir)


def _check_no_encryption_is_lost(settings: Mapping[str, str]) -> None:
    from wirekafka.config.broker_table import BROKER_SETTINGS
    from wirekafka.config.endpoints import parse_listeners, parse_protocols

    protocol_map = "listener.security.protocol.map"
    given = settings.get(protocol_map, str(BROKER_SETTINGS[protocol_map].default))
    protocols = parse_protocols(protocol_map, given)
    controllers = {name.strip().upper() for name in settings.get("controller.listener.names", "").split(",")}
    for listener in parse_listeners("listeners", settings["listeners"].split(",")):
        protocol = protocols.get(listener.name, "PLAINTEXT")
        if listener.name not in controllers and protocol != "PLAINTEXT":
            raise ArgumentError(
                f"--listen listens in plaintext, but listeners={listener} asks for {protocol}, which is not supported yet: "
                "leave out --listen, or set listeners to PLAINTEXT"
            )


def _note_what_is_advertised(config: BrokerConfig) -> None:
    """Logs a warning if server.properties still advertises another address than `--listen` gives."""
    import structlog

    ports = {listener.port for listener in config.listeners}
    elsewhere = [str(each) for each in config.advertised_listeners.values() if each.port and each.port not in ports]
    if elsewhere:
        log = structlog.get_logger(__name__)
        log.warning("Clients are told advertised.listeners, not the address of --listen; see --advertise", advertised=elsewhere)


def _note_ignored(variables: list[str]) -> None:
    """Logs the environment variables that begin like those of settings, and are none."""
    import structlog

    structlog.get_logger(__name__).info("Environment variables without effect in wirekafka", variables=variables)


def _all_errors(properties: Path | None, overrides: dict[str, str], sources: Mapping[str, str]) -> list[str]:
    """Returns every error of server.properties, and every error of the other settings, each checked without the other.

    Args:
        sources: the environment variables, by the settings that they set.
    """
    from wirekafka.cli.config import argument_errors, file_report

    errors = file_report(properties, replaced=overrides)[0] if properties is not None else []
    return errors + argument_errors(overrides, sources)
