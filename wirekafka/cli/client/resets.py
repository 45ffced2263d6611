"""Computes the offsets to which `wirekafka group reset-offsets` resets a group.

Source: org.apache.kafka.tools.consumer.group.ConsumerGroupCommand (prepareOffsetsToReset, checkOffsetsRange).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from wirekafka.cli.client.connection import library, partition_names
from wirekafka.cli.client.errors import ClientCommandError
from wirekafka.cli.client.times import parse_time_ms

if TYPE_CHECKING:
    from wirekafka.cli.client.connection import Connection

Name = tuple[str, int]


class Target(NamedTuple):
    """Where the offsets go.

    Attributes:
        kind: the option without its dashes, such as to_earliest.
        number: the offset, the count or the time in milliseconds; 0 for the others.
    """

    kind: str
    number: int = 0


def target_of(options: Mapping[str, Any]) -> Target:
    """Returns the target that exactly one of the options names.

    Raises:
        click.UsageError: none or several do, or the time is malformed.
    """
    given = [name for name, value in options.items() if value is not None and value is not False]
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise click.UsageError(f"Give exactly one of {names}.")
    [kind] = given
    if kind == "to_datetime":
        return Target(kind, parse_time_ms(options[kind], round(time.time() * 1000)))
    return Target(kind, int(options[kind]))


def chosen_partitions(metadata: Any, topics: Sequence[str]) -> list[Name]:
    """Returns the partitions that `--topic` names.

    Raises:
        ClientCommandError: one does not exist.
        click.UsageError: a partition is no number.
    """
    chosen: dict[Name, None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if topic not in metadata.topics:
            raise ClientCommandError(f"topic {topic} does not exist; `wirekafka topic list` shows the topics")
        if not colon:
            chosen |= dict.fromkeys(partition_names(metadata, [topic]))
        for number in numbers.split(",") if colon else ():
            if not number.isdecimal():
                raise click.UsageError(f"--topic {text}: accepted is TOPIC:PARTITION,..., such as orders:0,1")
            if int(number) not in metadata.topics[topic].partitions:
                raise ClientCommandError(f"topic {topic} has no partition {number}; `wirekafka topic describe` shows them")
            chosen[topic, int(number)] = None
    return sorted(chosen)


def new_offsets(
    connection: Connection, target: Target, partitions: Sequence[Name], committed: Mapping[Name, int]
) -> dict[Name, int]:
    """Returns the new offset of each partition, within its first and its end offset.

    Raises:
        ClientCommandError: a partition has no leader, or no committed offset to shift.
    """
    spec = library().admin.OffsetSpec
    starts = connection.offsets(dict.fromkeys(partitions, spec.earliest()))
    ends = connection.offsets(dict.fromkeys(partitions, spec.latest()))
    at_time: Mapping[Name, int | None] = {}
    if target.kind == "to_datetime":
        at_time = connection.offsets(dict.fromkeys(partitions, spec.for_timestamp(target.number)))
    offsets = {}
    for name in partitions:
        start, end = starts[name], ends[name]
        if start is None or end is None:
            raise ClientCommandError(f"{name[0]}-{name[1]} has no leader that tells its offsets: look at the brokers")
        found = at_time.get(name)
        offsets[name] = min(max(_new_offset(target, name, start, end, committed.get(name), found), start), end)
    return offsets


def _new_offset(target: Target, name: Name, start: int, end: int, committed: int | None, at_time: int | None) -> int:
    match target.kind:
        case "to_earliest":
            return start
        case "to_offset":
            return target.number
        case "to_current":
            return end if committed is None else committed
        case "to_datetime":
            return end if at_time is None else at_time
        case "shift_by":
            if committed is None:
                raise ClientCommandError(f"{name[0]}-{name[1]} has no committed offset to shift: use --to-offset")
            return committed + target.number
    return end
