"""Reads records for `wirekafka consume`: up to an end, or on and on.

How it works: without a group, the consumer is assigned the partitions with offsets, and a partition is done when the offset
before its end was read. The last offset may be one that no consumer gets, such as a transaction's marker; then the event that the
consumer has reached the end of the partition tells it. With a group, that event alone tells it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wirekafka.cli.client.connection import sentence
from wirekafka.cli.client.errors import ClientCommandError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from wirekafka.cli.client.connection import Connection
    from wirekafka.cli.client.positions import Range

Name = tuple[str, int]

MOST_AT_ONCE = 1000
WAIT_SECONDS = 0.1
END_OF_PARTITION = "_PARTITION_EOF"
PASSING = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT")
"""Errors after which librdkafka connects again by itself."""
OF_GROUPS = ("GROUP_AUTHORIZATION_FAILED", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
"""Errors that do not matter to a consumer without a group, for which librdkafka looks for a coordinator too."""


def read_ranges(
    connection: Connection, consumer: Consumer, ranges: Mapping[Name, Range], *, follows: bool, is_stopped: Callable[[], bool]
) -> Iterator[list[Message]]:
    """Yields the records of partitions, some at a time.

    Args:
        follows: whether to go on at the ends.

    Raises:
        ClientCommandError: a broker refuses, or does not answer in time.
    """
    from confluent_kafka import TopicPartition

    left = {name: wanted.until for name, wanted in ranges.items() if follows or wanted.first < wanted.until}
    if not left:
        return
    consumer.assign([TopicPartition(*name, ranges[name].first) for name in left])
    heard = time.monotonic()
    while left and not is_stopped():
        events = consumer.consume(MOST_AT_ONCE, WAIT_SECONDS)
        if events:
            heard = time.monotonic()
        elif not follows and time.monotonic() - heard > connection.timeout_s:
            raise ClientCommandError(f"no record came in {connection.timeout_s:g} s: look at the brokers, or raise --timeout")
        records = []
        for event in events:
            name = event.topic(), event.partition()
            is_end = _is_end(event, ignored=OF_GROUPS)
            if not is_end and event.error() is None and (follows or event.offset() < left.get(name, 0)):
                records.append(event)
            if not follows and name in left and (is_end or event.error() is None) and _next(event) >= left[name]:
                del left[name]
                consumer.pause([TopicPartition(*name)])
        if records:
            yield records


def _next(event: Message) -> int:
    """Returns the offset after a record, or that of the end of a partition."""
    return int(event.offset()) + (event.error() is None)


def _is_end(event: Message, ignored: Sequence[str] = ()) -> bool:
    """Returns whether the event is the end of a partition.

    Raises:
        ClientCommandError: it is an error.
    """
    error = event.error()
    if error is None:
        return False
    if error.name() == END_OF_PARTITION:
        return True
    if error.name() in PASSING or error.name() in ignored:
        return False
    raise ClientCommandError(f"topic {event.topic()}: {sentence(error)}" if event.topic() else sentence(error))


def read_as_member(
    consumer: Consumer, topics: Sequence[str], *, follows: bool, is_stopped: Callable[[], bool]
) -> Iterator[list[Message]]:
    """Yields the records that a member of a group gets, some at a time; ends when it has read all its partitions.

    Raises:
        ClientCommandError: a broker refuses.
    """
    ended: set[Name] = set()
    is_assigned = False

    def note_assigned(_consumer: Any, partitions: Sequence[Any]) -> None:
        nonlocal is_assigned
        is_assigned = True
        ended.difference_update((each.topic, each.partition) for each in partitions)

    def note_revoked(_consumer: Any, _partitions: Sequence[Any]) -> None:
        nonlocal is_assigned
        is_assigned = False

    consumer.subscribe(list(topics), on_assign=note_assigned, on_revoke=note_revoked)
    while not is_stopped():
        records = []
        for event in consumer.consume(MOST_AT_ONCE, WAIT_SECONDS):
            if _is_end(event):
                ended.add((event.topic(), event.partition()))
            elif event.error() is None:
                ended.discard((event.topic(), event.partition()))
                records.append(event)
        if records:
            yield records
        own = {(each.topic, each.partition) for each in consumer.assignment()}
        if not follows and is_assigned and own <= ended:
            return
