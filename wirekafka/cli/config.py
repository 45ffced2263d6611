"""`wirekafka config`: checks a server.properties file, and lists the settings.

Exit codes: 0 no error, 1 the file has errors, 2 wrong arguments.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Container, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wirekafka.config import ConfigError
    from wirekafka.config.definition import Setting

HAS_ERRORS = 1
WIDTH = 100


@click.group()
def config() -> None:
    """Checks settings, and lists them."""


@config.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Checks a server.properties file.

    Prints every error with its line, and every setting without effect. The exit code is 1 if there are errors. Values of
    unknown settings and of secrets are never printed.
    """
    errors, notes = file_report(file)
    for note in notes:
        click.echo(f"note: {note}")
    for error in errors:
        click.echo(f"error: {error}")
    click.echo(f"{file}: {len(errors)} error{'' if len(errors) == 1 else 's'}")
    sys.exit(HAS_ERRORS if errors else 0)


def file_report(file: Path, *, replaced: Container[str] = ()) -> tuple[list[str], list[str]]:
    """Returns the errors of a server.properties, and its settings without effect; each line names the file and the line.

    Args:
        replaced: settings that the command line sets, so the file's values do not count.
    """
    from wirekafka.config import BrokerConfig, ConfigError
    from wirekafka.config.properties import parse_entries

    try:
        entries = [entry for entry in parse_entries(file.read_bytes()) if entry.name not in replaced]
    except ConfigError as error:
        return [f"{file}: {error}"], []
    except OSError as error:
        return [f"{file}: {error.strerror}"], []
    lines: dict[str, int] = {}
    notes: list[tuple[int, str]] = []
    for entry in entries:
        if entry.name in lines:
            notes.append((lines[entry.name], f"{entry.name} is set again on line {entry.line}, which counts"))
        lines[entry.name] = entry.line
    errors, without_effect = BrokerConfig.problems({entry.name: entry.value for entry in entries})
    notes += [(lines[name], f"{name} has no effect: {reason}") for name, reason in without_effect.items()]
    found = sorted((lines.get(error.name, 0), str(error)) for error in errors)
    return _with_places(file, found), _with_places(file, sorted(notes))


def _with_places(file: Path, messages: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{file}:{line}: {message}" if line else f"{file}: {message}" for line, message in messages]


def argument_errors(settings: dict[str, str], sources: Mapping[str, str]) -> list[str]:
    """Returns the errors of settings from the command line and the environment.

    Args:
        sources: the environment variables, by the settings that they set; their errors name the variable.
    """
    from wirekafka.config import BrokerConfig

    errors: list[ConfigError] = BrokerConfig.problems(settings)[0]
    return [f"{sources[error.name]}: {error}" if error.name in sources else str(error) for error in errors]


@config.command(name="list")
@click.argument("pattern", metavar="[NAME]", default="*")
@click.option(
    "--of",
    "scope",
    type=click.Choice(["broker", "member", "topic", "group"]),
    help="Only the settings of brokers, members of a cluster, topics or groups.",
)
def list_settings(pattern: str, scope: str | None) -> None:
    """Lists the settings and their meaning.

    Each setting has its type, default and accepted values. NAME may have wildcards: wirekafka config list 'log.*'. Settings of
    Apache Kafka that are refused or have no effect come last, with the reason.
    """
    from wirekafka.config.broker_table import BROKER_SETTINGS
    from wirekafka.config.cluster_table import CLUSTER_SETTINGS
    from wirekafka.config.group_table import GROUP_SETTINGS
    from wirekafka.config.topic_table import TOPIC_SETTINGS

    members = CLUSTER_SETTINGS
    tables = {"broker": BROKER_SETTINGS, "member": members, "topic": TOPIC_SETTINGS, "group": GROUP_SETTINGS}
    found = False
    for of, table in tables.items():
        settings = [setting for name, setting in table.items() if scope in (None, of) and fnmatchcase(name, pattern)]
        found = found or bool(settings)
        for setting in settings:
            click.echo(f"{setting.name} ({', '.join([of, *_properties(setting)])})")
            click.echo(textwrap.fill(setting.documentation, WIDTH, initial_indent="    ", subsequent_indent="    "))
    if scope in (None, "broker"):
        found = _list_unsupported(pattern) or found
    if not found:
        raise click.UsageError(f"There is no setting {pattern}; NAME may have wildcards, such as 'log.*'.")


def _properties(setting: Setting) -> list[str]:
    default = setting.show(setting.default)
    shown = [setting.type.name.lower(), "no default" if default is None else f"default {default}" if default else "default empty"]
    if setting.check is not None:
        shown.append(setting.check.accepted)
    if setting.is_dynamic:
        shown.append("dynamic")
    return shown


def _list_unsupported(pattern: str) -> bool:
    from wirekafka.config.unsupported_settings import REFUSED_UNLESS, REPLACED, WITHOUT_EFFECT

    lines = [f"{name} (no effect: {reason})" for name, reason in WITHOUT_EFFECT.items()]
    lines += [f"{name} (dropped by Apache Kafka 3: write {instead})" for name, instead in REPLACED.items()]
    for name, accepted in REFUSED_UNLESS.items():
        only = f", only {' or '.join(value or 'empty' for value in accepted)} is accepted" if accepted else ""
        lines.append(f"{name} (not supported yet{only})")
    shown = [line for line in sorted(lines) if _matches(line.partition(" ")[0], pattern)]
    for line in shown:
        click.echo(line)
    return bool(shown)


def _matches(name: str, pattern: str) -> bool:
    """Whether the user's pattern matches a name, which may be a pattern itself."""
    return fnmatchcase(name, pattern) or ("*" in name and fnmatchcase(pattern, name))
