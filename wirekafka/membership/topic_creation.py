"""Asks the controller to create topics that clients ask for, without waiting for its answer.

How it works: the client gets UNKNOWN_TOPIC_OR_PARTITION and asks again until the topic is in the image. Each topic is in one
request at a time. If the controller refuses a topic, the next client that asks for the topic gets the error, and the request
after that causes another attempt. At most `MOST_TOPICS` topics are in requests. Further ones are in the request of a client that
asks for them later.

Differs from Apache Kafka: a broker of Apache Kafka 3.9 with ZooKeeper writes the znodes of the topic itself, and so can answer
LEADER_NOT_AVAILABLE or the reason of the failure at once.

Source: kafka.server.AutoTopicCreationManager (sendCreateTopicRequest).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Protocol

import structlog

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode
from wirekafka.metadata.internal_topics import INTERNAL
from wirekafka.metadata.topic_names import is_valid_topic_name
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wirekafka.wire.requests import RequestType

log = structlog.get_logger(__name__)

MOST_TOPICS = 1_000
"""A client may ask for many more topics at once, and so often that they take more memory than there is."""

MOST_NAMED = 10
"""The most topics that a line of the log names."""

MOST_FAILURES = 1_000
"""The most errors that are kept for clients that ask again."""

REPLICATION_FACTORS = {
    GROUP_METADATA_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
    SHARE_STATE_TOPIC: "share.coordinator.state.topic.replication.factor",
}
"""The settings of the internal topics that a cluster with ZooKeeper has."""

CREATED = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT})
"""The answers after which the topic exists: REQUEST_TIMED_OUT too, because the request does not wait for leaders."""


class Send(Protocol):
    """Sends a request to the controller, as `Controller.send` does."""

    def __call__(
        self,
        kind: RequestType[CreateTopicsRequest, CreateTopicsResponse],
        build: Callable[[int], CreateTopicsRequest],
        on_end: Callable[[CreateTopicsResponse | None], object],
    ) -> None:
        """Calls back once, later, with the answer, or with None if there is none."""


class TopicCreation:
    """Creates topics by requests to the controller."""

    def __init__(self, config: BrokerConfig, send: Send) -> None:
        self._config = config
        self._send = send
        self._in_flight: set[str] = set()
        self._failures: dict[str, ErrorCode] = {}

    def create(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        """Asks for topics that do not exist; returns the error that the client gets for each.

        The client gets UNKNOWN_TOPIC_OR_PARTITION while the topic is created, INVALID_TOPIC_EXCEPTION if the name is not
        allowed, and otherwise the error of the last attempt, such as INVALID_REPLICATION_FACTOR.
        """
        errors = {name: self._error_of(name) for name in names}
        missing = (
            name
            for name, error in errors.items()
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in self._in_flight
        )
        new = dict.fromkeys(islice(missing, MOST_TOPICS - len(self._in_flight)))
        if new:
            log.info("Asking the controller to create topics", count=len(new), first=[*islice(new, MOST_NAMED)])
            self._in_flight.update(new)
            topics = [self._topic(name) for name in new]
            self._send(
                CREATE_TOPICS, lambda version: CreateTopicsRequest(topics=topics, timeout_ms=0), partial(self._take_answer, new)
            )
        return errors

    def _error_of(self, name: str) -> ErrorCode:
        if not is_valid_topic_name(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return self._failures.pop(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _topic(self, name: str) -> CreatableTopic:
        config, factor = self._config, REPLICATION_FACTORS.get(name)
        if factor is None:
            return CreatableTopic(
                name=name,
                num_partitions=config.integer("num.partitions"),
                replication_factor=config.integer("default.replication.factor"),
            )
        internal = INTERNAL[name]
        # Apache Kafka 3.9 has one setting for segments of any size.
        settings = {setting.removeprefix("internal."): value for setting, value in internal.topic_settings(config).items()}
        return CreatableTopic(
            name=name,
            num_partitions=config.integer(internal.partition_count),
            replication_factor=config.integer(factor),
            configs=[CreatableTopicConfig(name=setting, value=value) for setting, value in settings.items()],
        )

    def _take_answer(self, names: dict[str, None], response: CreateTopicsResponse | None) -> None:
        self._in_flight.difference_update(names)
        if response is None:
            log.warning(
                "The controller did not answer a CreateTopics; the next request of a client causes another one",
                count=len(names),
                first=[*islice(names, MOST_NAMED)],
            )
            return
        refused: dict[ErrorCode, list[CreatableTopicResult]] = {}
        for topic in response.topics:
            if topic.name in names:
                error = ErrorCode.of(topic.error_code)
                if error not in CREATED:
                    refused.setdefault(error, []).append(topic)
                    self._failures[topic.name] = error
        for error, topics in refused.items():
            reason = topics[0].error_message
            first = [each.name for each in topics[:MOST_NAMED]]
            log.warning("The controller refused topics", count=len(topics), first=first, error=error.name, reason=reason)
        while len(self._failures) > MOST_FAILURES:
            del self._failures[next(iter(self._failures))]
