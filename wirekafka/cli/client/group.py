"""`wirekafka group`: shows consumer groups, resets their offsets and deletes them."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from wirekafka.cli.client.completion import complete_group, complete_topic
from wirekafka.cli.client.errors import FAILED, ClientCommandError, ClientGroup, print_error
from wirekafka.cli.client.options import connection_options, json_option

if TYPE_CHECKING:
    from wirekafka.cli.client.connection import Connection
    from wirekafka.cli.client.resets import Target

Name = tuple[str, int]


@click.group(cls=ClientGroup)
def group() -> None:
    """Shows and changes consumer groups of any Kafka-compatible cluster.

    It needs confluent-kafka: pip install 'wirekafka[cli]'.
    """


@group.command("list")
@click.argument("pattern", required=False)
@json_option
@connection_options
def list_groups(connection: Connection, pattern: str | None, is_json: bool) -> None:
    """Shows consumer groups with their states: all, or those that match PATTERN, such as 'billing-*'.

    Example: wirekafka group list -b localhost:9092
    """
    from wirekafka.cli.client.tables import print_json, print_table

    rows = [row for row in _listing(connection) if fnmatchcase(row["group"], pattern or "*")]
    if is_json:
        print_json(rows)
    else:
        print_table(("group", "type", "state"), [(row["group"], row["type"], row["state"]) for row in rows])


def _listing(connection: Connection) -> list[dict[str, Any]]:
    connection.metadata()
    result = connection.result(connection.ask(connection.admin.list_consumer_groups), "the list of groups")
    for error in result.errors:
        print_error(f"a broker does not list its groups: {error.args[0].str() if hasattr(error, 'args') else error}")
    return [
        {"group": each.group_id, "type": each.type.name.lower(), "state": _state_name(each.state)}
        for each in sorted(result.valid, key=lambda each: str(each.group_id))
    ]


def _state_name(state: Any) -> str:
    return str(state.name).lower().replace("_", " ")


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_group)
@json_option
@connection_options
def describe(connection: Connection, names: tuple[str, ...], is_json: bool) -> None:
    """Shows the state, the members and the lag of groups.

    Example: wirekafka group describe billing -b localhost:9092
    """
    from wirekafka.cli.client.tables import print_json

    connection.metadata()
    found = [_description(connection, name) for name in dict.fromkeys(names)]
    if is_json:
        print_json(found)
        return
    for description in found:
        _print_description(description)


def _described(connection: Connection, name: str) -> Any | None:
    """Returns confluent-kafka's description of a group; None if there is no such group, for which brokers tell the state Dead."""

    def ask() -> Any:
        return connection.ask(connection.admin.describe_consumer_groups, [name])[name]

    described = connection.coordinated(ask, f"group {name}")
    return None if described.state.name == "DEAD" else described


def _committed(connection: Connection, name: str) -> dict[Name, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    def ask() -> Any:
        return connection.ask(connection.admin.list_consumer_group_offsets, [ConsumerGroupTopicPartitions(name)])[name]

    partitions = connection.coordinated(ask, f"the offsets of group {name}").topic_partitions
    return {(each.topic, each.partition): each.offset for each in partitions if each.offset >= 0}


def _description(connection: Connection, name: str) -> dict[str, Any]:
    """Returns a group with its partitions: those that have committed offsets, and those that are assigned.

    Raises:
        ClientCommandError: there is no such group.
    """
    from wirekafka.cli.client.connection import library

    described = _described(connection, name)
    if described is None:
        raise ClientCommandError(f"group {name} does not exist; `wirekafka group list` shows the groups")
    committed = _committed(connection, name)
    owners = {(each.topic, each.partition): member for member in described.members for each in _assigned(member)}
    partitions = sorted({*committed, *owners})
    ends = connection.offsets(dict.fromkeys(partitions, library().admin.OffsetSpec.latest()))
    rows = [_partition(each, committed.get(each), ends.get(each), owners.get(each)) for each in partitions]
    coordinator = described.coordinator
    return {
        "group": name,
        "type": described.type.name.lower(),
        "state": _state_name(described.state),
        "assignor": described.partition_assignor or None,
        "coordinator": None if coordinator is None else f"{coordinator.host}:{coordinator.port}",
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [{"topic": each.topic, "partition": each.partition} for each in _assigned(member)],
            }
            for member in described.members
        ],
        "partitions": rows,
    }


def _assigned(member: Any) -> list[Any]:
    return list(member.assignment.topic_partitions) if member.assignment is not None else []


def _partition(name: Name, committed: int | None, end: int | None, member: Any) -> dict[str, Any]:
    return {
        "topic": name[0],
        "partition": name[1],
        "committed_offset": committed,
        "end_offset": end,
        "lag": None if committed is None or end is None else max(end - committed, 0),
        "member": None if member is None else member.member_id,
        "client": None if member is None else member.client_id,
        "host": None if member is None else member.host,
    }


def _print_description(found: dict[str, Any]) -> None:
    from wirekafka.cli.client.tables import print_heading, print_table

    assignor = f", assignor {found['assignor']}" if found["assignor"] else ""
    members = f"{len(found['members'])} member{'' if len(found['members']) == 1 else 's'}"
    print_heading(
        f"{found['group']}: {found['state']}, {found['type']}, {members}, lag {found['lag']}{assignor}, "
        f"coordinator {found['coordinator']}"
    )
    keys = ("topic", "partition", "committed_offset", "end_offset", "lag", "client", "host", "member")
    headings = ("topic", "partition", "committed", "end", "lag", "client", "host", "member")
    print_table(headings, [tuple(row[key] for key in keys) for row in found["partitions"]])
    idle = [member for member in found["members"] if not member["partitions"]]
    if idle:
        print_heading("Members without partitions")
        print_table(("client", "host", "member"), [(each["client"], each["host"], each["member"]) for each in idle])


@group.command("reset-offsets")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,...]",
    multiple=True,
    shell_complete=complete_topic,
    help="Can be given several times.",
)
@click.option("--all-topics", is_flag=True, help="All partitions for which the group has committed offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-current", is_flag=True, help="To the committed offset; commits the end where there is none.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To an offset.")
@click.option("--shift-by", type=int, metavar="COUNT", help="So many records later, or earlier if it is negative.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first record of this time or later: 2026-05-01T12:00:00 (UTC), or -2h."
)
@click.option("--execute", is_flag=True, help="Commit the new offsets. Without it, they are only shown.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets; the default.")
@json_option
@connection_options
def reset_offsets(
    connection: Connection,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    dry_run: bool,
    is_json: bool,
    **targets: Any,
) -> None:
    """Sets the committed offsets of a group without running members.

    Without --execute it shows what it would do. An offset outside a partition becomes its first or its end. A group that does not
    exist is created.

    Example: wirekafka group reset-offsets billing -b localhost:9092 --topic orders --to-earliest --execute
    """
    from wirekafka.cli.client.resets import chosen_partitions, new_offsets, target_of
    from wirekafka.cli.client.tables import print_json, print_table

    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other.")
    if bool(topics) == all_topics:
        raise click.UsageError("Give --topic or --all-topics.")
    target: Target = target_of(targets)
    metadata = connection.metadata()
    described = _described(connection, name)
    if described is not None and described.state.name != "EMPTY":
        raise ClientCommandError(f"group {name} is {_state_name(described.state)}: stop its members first")
    committed = _committed(connection, name) if described is not None else {}
    partitions = sorted(committed) if all_topics else chosen_partitions(metadata, topics)
    if not partitions:
        raise ClientCommandError(f"group {name} has no committed offsets: name topics by --topic")
    offsets = new_offsets(connection, target, partitions, committed)
    if execute:
        _commit(connection, name, offsets)
    rows = [
        {"topic": each[0], "partition": each[1], "committed_offset": committed.get(each), "new_offset": offsets[each]}
        for each in partitions
    ]
    if is_json:
        print_json(rows)
        return
    print_table(("topic", "partition", "committed", "new"), [tuple(row.values()) for row in rows])
    if not execute:
        click.echo("Nothing is changed: --execute commits the new offsets.", err=True)


def _commit(connection: Connection, name: str, offsets: dict[Name, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from wirekafka.cli.client.connection import sentence

    request = [ConsumerGroupTopicPartitions(name, [TopicPartition(*each, offset) for each, offset in offsets.items()])]

    def ask() -> Any:
        return connection.ask(connection.admin.alter_consumer_group_offsets, request)[name]

    for partition in connection.coordinated(ask, f"group {name}").topic_partitions:
        if partition.error is not None:
            raise ClientCommandError(f"group {name}, {partition.topic}-{partition.partition}: {sentence(partition.error)}")


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_group)
@connection_options
def delete(connection: Connection, names: tuple[str, ...]) -> None:
    """Deletes groups without members, with their committed offsets, without asking.

    Example: wirekafka group delete billing -b localhost:9092
    """
    from wirekafka.cli.client.connection import all_results

    connection.metadata()
    futures = connection.ask(connection.admin.delete_consumer_groups, list(dict.fromkeys(names)))
    done, failures = all_results(connection, futures, "group")
    for name in done:
        click.echo(f"{name} deleted")
    for failure in failures:
        print_error(failure)
    if failures:
        sys.exit(FAILED)
