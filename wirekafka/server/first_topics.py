"""The topics that a broker creates before it listens: `wirekafka serve --topics orders:3,payments:1:compact`.

Rules of this file: a topic that exists is left as it is, so that a broker can be started again with the same list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import structlog

from wirekafka.errors import KafkaError
from wirekafka.metadata.topic_names import check_topic_name

if TYPE_CHECKING:
    from wirekafka.broker import Broker

log = structlog.get_logger(__name__)

ACCEPTED = "NAME, NAME:PARTITIONS or NAME:PARTITIONS:POLICY, where POLICY is delete or compact, separated by commas"


class FirstTopic(NamedTuple):
    """A topic that a broker creates.

    Attributes:
        partition_count: None for that of `num.partitions`.
        cleanup_policy: None for that of `log.cleanup.policy`.
    """

    name: str
    partition_count: int | None = None
    cleanup_policy: str | None = None


def parse_first_topics(text: str) -> list[FirstTopic]:
    """Returns the topics of a list such as `orders:3,payments:1:compact`.

    Raises:
        ValueError: the list is malformed, or names a topic twice; the text says which part, and what is accepted.
    """
    topics = [_parse(item.strip()) for item in text.split(",") if item.strip()]
    names = [topic.name for topic in topics]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is given twice: accepted is each topic once")
    return topics


def _parse(item: str) -> FirstTopic:
    name, *more = item.split(":")
    try:
        check_topic_name(name)
    except KafkaError as error:
        raise ValueError(f"{item}: {error.message}") from None
    if len(more) > 2 or (more and not (more[0].isascii() and more[0].isdecimal() and int(more[0]) > 0)):
        raise ValueError(f"{item}: accepted is {ACCEPTED}")
    if len(more) == 2 and more[1] not in ("delete", "compact"):
        raise ValueError(f"{item}: accepted is {ACCEPTED}")
    return FirstTopic(name, int(more[0]) if more else None, more[1] if len(more) == 2 else None)


def create_first_topics(broker: Broker, topics: Sequence[FirstTopic]) -> None:
    """Creates the topics that do not exist, and logs what differs in those that do.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, if a name differs from that of a topic in `.` and `_` only; INVALID_PARTITIONS;
            POLICY_VIOLATION; KAFKA_STORAGE_ERROR.

    Durability: the topics are on the disk.
    """
    with broker.topics.together():
        for topic in topics:
            _create(broker, topic)


def _create(broker: Broker, asked: FirstTopic) -> None:
    found = broker.topics.find(asked.name)
    overrides = {} if asked.cleanup_policy is None else {"cleanup.policy": asked.cleanup_policy}
    if found is None:
        count = asked.partition_count or broker.config.integer("num.partitions")
        try:
            broker.topics.create(asked.name, count, overrides)
        except KafkaError as error:
            raise KafkaError(error.code, f"Cannot create the topic {asked.name}: {error.message or error}") from error
        return
    count = len(found.partitions)
    if asked.partition_count not in (None, count):
        log.warning("A topic exists with another number of partitions", topic=asked.name, partitions=count)
    if overrides and found.overrides.get("cleanup.policy") != asked.cleanup_policy:
        log.warning("A topic exists with another cleanup.policy", topic=asked.name, settings=found.overrides)
