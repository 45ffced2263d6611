"""`wirekafka topic`: shows, creates, changes and deletes topics."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from wirekafka.cli.client.completion import complete_topic
from wirekafka.cli.client.errors import FAILED, ClientCommandError, ClientGroup, print_error
from wirekafka.cli.client.options import connection_options, json_option, parsed_settings

if TYPE_CHECKING:
    from wirekafka.cli.client.connection import Connection

set_option = click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parsed_settings,
    help="A setting of the topic, such as retention.ms=3600000. Can be given several times.",
)


@click.group(cls=ClientGroup)
def topic() -> None:
    """Shows and changes topics of any Kafka-compatible cluster.

    It needs confluent-kafka: pip install 'wirekafka[cli]'.
    """


@topic.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Show internal topics too, whose names begin with __.")
@click.option("--names", "is_names", is_flag=True, help="Print names only, one a line.")
@json_option
@connection_options
def list_topics(connection: Connection, pattern: str | None, internal: bool, is_names: bool, is_json: bool) -> None:
    """Shows topics: all, or those that match PATTERN, such as 'orders.*'.

    Example: wirekafka topic list -b localhost:9092
    """
    from wirekafka.cli.client.tables import print_json, print_table

    topics = connection.metadata().topics
    names = [name for name in sorted(topics) if fnmatchcase(name, pattern or "*") and (internal or not name.startswith("__"))]
    rows = [_summary(name, topics[name]) for name in names]
    if is_names:
        click.echo("".join(f"{name}\n" for name in names), nl=False)
    elif is_json:
        print_json(rows)
    else:
        print_table(
            ("topic", "partitions", "replication", "state"),
            [(row["topic"], row["partitions"], row["replication_factor"], _state(row)) for row in rows],
            health="state",
        )


def _summary(name: str, topic: Any) -> dict[str, Any]:
    partitions = topic.partitions.values()
    return {
        "topic": name,
        "partitions": len(partitions),
        "replication_factor": max((len(each.replicas) for each in partitions), default=0),
        "offline_partitions": sum(each.leader < 0 for each in partitions),
        "under_replicated_partitions": sum(len(each.isrs) < len(each.replicas) for each in partitions),
    }


def _state(row: dict[str, Any]) -> str:
    troubles = [
        f"{row[key]} {noun}"
        for key, noun in (("offline_partitions", "offline"), ("under_replicated_partitions", "under-replicated"))
        if row[key]
    ]
    return ", ".join(troubles) or "ok"


@topic.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="The number of partitions; otherwise the broker's default.")
@click.option(
    "--replication-factor", "-r", type=click.IntRange(min=1), help="The number of replicas; otherwise the broker's default."
)
@set_option
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists; it is left as it is.")
@click.option("--dry-run", is_flag=True, help="Let the broker check the request only.")
@connection_options
def create(
    connection: Connection,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Creates topics.

    Example: wirekafka topic create orders -b localhost:9092 --partitions 3 --set cleanup.policy=compact
    """
    from wirekafka.cli.client.connection import all_results, library

    new_topic = library().admin.NewTopic
    existing = connection.metadata().topics
    wanted = [name for name in dict.fromkeys(names) if not (if_not_exists and name in existing)]
    for name in names:
        if name not in wanted:
            click.echo(f"{name} exists")
    if not wanted:
        return
    topics = [
        new_topic(name, num_partitions=partitions or -1, replication_factor=replication_factor or -1, config=dict(settings))
        for name in wanted
    ]
    futures = connection.ask(connection.admin.create_topics, topics, validate_only=dry_run)
    done, failures = all_results(connection, futures, "topic")
    for name in done:
        click.echo(f"{name} can be created" if dry_run else f"{name} created")
    _end(failures)


@topic.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("--all-settings", is_flag=True, help="Show the settings that have their defaults too.")
@json_option
@connection_options
def describe(connection: Connection, names: tuple[str, ...], all_settings: bool, is_json: bool) -> None:
    """Shows the partitions of topics with leaders, replicas and offsets, and the settings that differ from their defaults.

    TOPIC may be a pattern, such as 'orders.*'.

    Example: wirekafka topic describe orders -b localhost:9092
    """
    from wirekafka.cli.client.tables import print_json

    found = [
        _description(connection, *each, has_defaults=all_settings) for each in _matching(connection.metadata().topics, names)
    ]
    if is_json:
        print_json(found)
        return
    for description in found:
        _print_description(description)


def _matching(topics: dict[str, Any], patterns: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Returns the topics that match a pattern.

    Raises:
        ClientCommandError: no topic matches one of them.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in topics else [name for name in sorted(topics) if fnmatchcase(name, pattern)]
        if not matching:
            raise ClientCommandError(f"topic {pattern} does not exist; `wirekafka topic list` shows the topics")
        names |= dict.fromkeys(matching)
    return [(name, topics[name]) for name in names]


def _description(connection: Connection, name: str, topic: Any, *, has_defaults: bool) -> dict[str, Any]:
    from wirekafka.cli.client.connection import library

    spec = library().admin.OffsetSpec
    partitions = [topic.partitions[number] for number in sorted(topic.partitions)]
    led = [(name, each.id) for each in partitions if each.leader >= 0]
    starts = connection.offsets(dict.fromkeys(led, spec.earliest()))
    ends = connection.offsets(dict.fromkeys(led, spec.latest()))
    return {
        "topic": name,
        "partitions": [
            {
                "partition": each.id,
                "leader": each.leader if each.leader >= 0 else None,
                "replicas": list(each.replicas),
                "isr": list(each.isrs),
                "start_offset": starts.get((name, each.id)),
                "end_offset": ends.get((name, each.id)),
            }
            for each in partitions
        ],
        "settings": _settings(connection, name, has_defaults=has_defaults),
    }


def _settings(connection: Connection, name: str, *, has_defaults: bool) -> dict[str, str | None]:
    from wirekafka.cli.client.connection import library

    admin = library().admin
    [future] = connection.ask(connection.admin.describe_configs, [admin.ConfigResource(admin.RESOURCE_TOPIC, name)]).values()
    entries = connection.result(future, f"the settings of topic {name}")
    own = admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {key: entries[key].value for key in sorted(entries) if has_defaults or entries[key].source == own}


def _print_description(description: dict[str, Any]) -> None:
    from wirekafka.cli.client.tables import print_heading, print_table

    rows = []
    for each in description["partitions"]:
        start, end = each["start_offset"], each["end_offset"]
        count = None if start is None or end is None else end - start
        state = "offline" if each["leader"] is None else "ok" if len(each["isr"]) >= len(each["replicas"]) else "under-replicated"
        rows.append((each["partition"], each["leader"], each["replicas"], each["isr"], start, end, count, state))
    settings = " ".join(f"{key}={value}" for key, value in description["settings"].items())
    print_heading(f"{description['topic']}: {settings or 'settings of the broker'}")
    print_table(("partition", "leader", "replicas", "in sync", "start", "end", "offsets", "state"), rows, health="state")


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="The new number of partitions; it cannot become smaller.")
@set_option
@click.option("--unset", metavar="KEY", multiple=True, help="Give a setting its default again. Can be given several times.")
@connection_options
def alter(
    connection: Connection, name: str, partitions: int | None, settings: tuple[tuple[str, str], ...], unset: tuple[str, ...]
) -> None:
    """Adds partitions to a topic, and changes its settings.

    Example: wirekafka topic alter orders -b localhost:9092 --partitions 6 --set retention.ms=3600000 --unset cleanup.policy
    """
    if partitions is None and not settings and not unset:
        raise click.UsageError("Nothing to change: give --partitions, --set or --unset.")
    if settings or unset:
        _alter_settings(connection, name, dict(settings), unset)
        click.echo(f"{name}: settings changed")
    if partitions is not None:
        _add_partitions(connection, name, partitions)
        click.echo(f"{name}: {partitions} partitions")


def _alter_settings(connection: Connection, name: str, settings: dict[str, str], unset: tuple[str, ...]) -> None:
    from wirekafka.cli.client.connection import library

    admin = library().admin
    operations: list[tuple[str, str | None, Any]] = [(key, value, admin.AlterConfigOpType.SET) for key, value in settings.items()]
    operations += [(key, None, admin.AlterConfigOpType.DELETE) for key in unset if key not in settings]
    entries = [admin.ConfigEntry(key, value, incremental_operation=operation) for key, value, operation in operations]
    _matching(connection.metadata().topics, (name,))
    resource = admin.ConfigResource(admin.RESOURCE_TOPIC, name, incremental_configs=entries)
    [future] = connection.ask(connection.admin.incremental_alter_configs, [resource]).values()
    connection.result(future, f"topic {name}")


def _add_partitions(connection: Connection, name: str, count: int) -> None:
    from wirekafka.cli.client.connection import library

    connection.metadata()
    wanted = [library().admin.NewPartitions(name, count)]
    [future] = connection.ask(connection.admin.create_partitions, wanted).values()
    connection.result(future, f"topic {name}")


@topic.command()
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@connection_options
def delete(connection: Connection, names: tuple[str, ...], if_exists: bool) -> None:
    """Deletes topics with all their records, without asking.

    Example: wirekafka topic delete orders -b localhost:9092
    """
    from wirekafka.cli.client.connection import all_results

    existing = connection.metadata().topics
    wanted = [name for name in dict.fromkeys(names) if name in existing or not if_exists]
    if not wanted:
        return
    done, failures = all_results(connection, connection.ask(connection.admin.delete_topics, wanted), "topic")
    for name in done:
        click.echo(f"{name} deleted")
    _end(failures)


def _end(failures: list[str]) -> None:
    """Prints the failures, and exits with 1 if there are any."""
    for failure in failures:
        print_error(failure)
    if failures:
        sys.exit(FAILED)
