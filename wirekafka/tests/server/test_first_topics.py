"""The topics that a broker creates before it listens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import structlog.testing
import trio

from wirekafka.broker import Broker
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.server.first_topics import FirstTopic, create_first_topics, parse_first_topics
from wirekafka.server.running import open_broker
from wirekafka.testing.data_plane import open_caller


def on_broker(path: Path, look: Callable[[Broker], None], **settings: str) -> None:
    async def main() -> None:
        async with open_caller(path, **settings) as caller:
            look(caller.broker)

    trio.run(main)


def shapes(broker: Broker) -> dict[str, tuple[int, dict[str, str]]]:
    return {topic.name: (len(topic.partitions), topic.overrides) for topic in broker.topics}


def test_list_has_names_partitions_and_policies() -> None:
    topics = parse_first_topics("orders:3, payments:1:compact,logs:2:delete,more")
    assert topics == [
        FirstTopic("orders", 3),
        FirstTopic("payments", 1, "compact"),
        FirstTopic("logs", 2, "delete"),
        FirstTopic("more"),
    ]
    assert parse_first_topics(" ,") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders:0", "orders:0: accepted is NAME"),
        ("orders:", "orders:: accepted is NAME"),
        ("orders:-1", "orders:-1: accepted is NAME"),
        ("orders:1:", "orders:1:: accepted is NAME"),
        ("orders:1:1:compact", "orders:1:1:compact: accepted is NAME"),
        ("orders:1:compacted", "orders:1:compacted: accepted is NAME"),
        ("or ders", "or ders: Topic name is invalid"),
        (":3", ":3: Topic name is invalid"),
        ("orders,orders:2", "orders is given twice"),
    ],
)
def test_list_that_is_malformed_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_first_topics(text)
    assert str(caught.value).startswith(message)


def test_topics_are_created_once_and_stay_when_the_broker_starts_again(tmp_path: Path) -> None:
    topics = parse_first_topics("orders:3,payments:1:compact,more")
    expected = {"orders": (3, {}), "payments": (1, {"cleanup.policy": "compact"}), "more": (2, {})}
    ids: list[bytes] = []

    def create(broker: Broker) -> None:
        create_first_topics(broker, topics)
        assert shapes(broker) == expected
        ids.extend(topic.topic_id for topic in broker.topics)

    on_broker(tmp_path, create, num_partitions="2")
    on_broker(tmp_path, create, num_partitions="2")
    assert ids[:3] == ids[3:]


def test_topic_that_differs_is_left_as_it_is_and_that_is_logged(tmp_path: Path) -> None:
    def create(broker: Broker) -> None:
        broker.topics.create("orders", 2)
        with structlog.testing.capture_logs() as logs:
            create_first_topics(broker, [FirstTopic("orders", 3, "compact")])
        assert shapes(broker) == {"orders": (2, {})}
        assert [(entry["log_level"], entry["topic"]) for entry in logs] == [("warning", "orders"), ("warning", "orders")]

    on_broker(tmp_path, create)


def test_topic_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    def create(broker: Broker) -> None:
        broker.topics.create("a.b", 1)
        with pytest.raises(KafkaError, match=r"Cannot create the topic a_b: .* collides") as caught:
            create_first_topics(broker, [FirstTopic("a_b")])
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION

    on_broker(tmp_path, create)


def test_topics_are_there_when_the_broker_listens(tmp_path: Path) -> None:
    async def main() -> None:
        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        async with open_broker(config, first_topics=[FirstTopic("orders", 3)]) as running:
            assert shapes(running.broker) == {"orders": (3, {})}

    trio.run(main)
