"""Topics that clients ask for and that do not exist, created by a controller that the test plays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode
from wirekafka.membership.topic_creation import MOST_NAMED, MOST_TOPICS
from wirekafka.tests.membership.played_broker import PlayedBroker, Stage, run
from wirekafka.wire.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from wirekafka.wire.types import Message

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class PlayedController:
    """Attributes: errors: the errors of topics; others are created."""

    def __init__(self) -> None:
        self.errors: dict[str, ErrorCode] = {}

    def answer(self, request: Message, version: int) -> Message:
        assert isinstance(request, CreateTopicsRequest)
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(name=topic.name, error_code=self.errors.get(topic.name, ErrorCode.NONE))
                for topic in request.topics
            ]
        )


async def play(stage: Stage, errors: Mapping[str, ErrorCode] | None = None) -> PlayedBroker:
    controller = PlayedController()
    controller.errors.update(errors or {})
    broker = await stage.play(1, controller.answer)
    stage.tell_controller(1)
    return broker


def requests_of(broker: PlayedBroker) -> list[CreateTopicsRequest]:
    return [request for request, _ in broker.asked if isinstance(request, CreateTopicsRequest)]


def names_of(broker: PlayedBroker) -> list[list[str]]:
    return [[topic.name for topic in request.topics] for request in requests_of(broker)]


def test_topic_is_created_with_the_defaults_of_the_broker() -> None:
    async def act(stage: Stage) -> None:
        broker = await play(stage)
        assert stage.controller.create_topics(["flights"]) == {"flights": UNKNOWN}
        await stage.until(lambda: broker.asked)
        [request] = requests_of(broker)
        [topic] = request.topics
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("flights", 4, 2)
        assert topic.configs == [] and request.timeout_ms == 0 and not request.validate_only

    run(act, {"num.partitions": "4", "default.replication.factor": "2"})


def test_internal_topics_are_created_with_their_own_settings() -> None:
    async def act(stage: Stage) -> None:
        broker = await play(stage)
        stage.controller.create_topics(["__consumer_offsets", "__transaction_state"])
        await stage.until(lambda: broker.asked)
        offsets, transactions = requests_of(broker)[0].topics
        assert (offsets.num_partitions, offsets.replication_factor) == (7, 2)
        assert {config.name: config.value for config in offsets.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "1000",
        }
        assert (transactions.num_partitions, transactions.replication_factor) == (50, 3)
        assert {config.name: config.value for config in transactions.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "2",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }

    run(
        act,
        {
            "offsets.topic.num.partitions": "7",
            "offsets.topic.replication.factor": "2",
            "offsets.topic.segment.bytes": "1000",
        },
    )


def test_topic_is_asked_for_once_until_the_controller_answers() -> None:
    async def act(stage: Stage) -> None:
        create = stage.controller.create_topics
        assert create(["a"]) == {"a": UNKNOWN}
        assert create(["a", "b"]) == {"a": UNKNOWN, "b": UNKNOWN}
        broker = await play(stage)
        await stage.until(lambda: len(broker.asked) == 2)
        assert names_of(broker) == [["a"], ["b"]]
        await stage.pass_time(100)
        create(["a"])
        await stage.until(lambda: len(broker.asked) == 3)

    run(act)


def test_name_that_is_not_allowed_is_not_sent() -> None:
    async def act(stage: Stage) -> None:
        broker = await play(stage)
        assert stage.controller.create_topics(["a b", "a"]) == {"a b": ErrorCode.INVALID_TOPIC_EXCEPTION, "a": UNKNOWN}
        await stage.until(lambda: broker.asked)
        assert names_of(broker) == [["a"]]

    run(act)


def test_topic_that_the_controller_refuses_gives_its_error_once_and_is_then_tried_again() -> None:
    async def act(stage: Stage) -> None:
        create = stage.controller.create_topics
        broker = await play(stage, {"a": ErrorCode.INVALID_REPLICATION_FACTOR})
        create(["a"])
        await stage.pass_time(100)
        assert create(["a"]) == {"a": ErrorCode.INVALID_REPLICATION_FACTOR}
        await stage.pass_time(100)
        assert len(broker.asked) == 1
        assert create(["a"]) == {"a": UNKNOWN}
        await stage.until(lambda: len(broker.asked) == 2)

    run(act)


def test_many_topics_are_asked_for_in_several_requests_and_refused_in_one_line() -> None:
    names = [f"t{number}" for number in range(3 * MOST_TOPICS)]

    async def act(stage: Stage) -> None:
        broker = await play(stage, dict.fromkeys(names, ErrorCode.INVALID_REPLICATION_FACTOR))
        assert stage.controller.create_topics(names) == dict.fromkeys(names, UNKNOWN)
        stage.controller.create_topics(["another"])
        with capture_logs() as lines:
            await stage.pass_time(100)
        assert names_of(broker) == [names[:MOST_TOPICS]]
        assert [(line["count"], len(line["first"])) for line in lines] == [(MOST_TOPICS, MOST_NAMED)]
        stage.controller.create_topics(names[MOST_TOPICS:])
        await stage.pass_time(100)
        assert names_of(broker)[1:] == [names[MOST_TOPICS : 2 * MOST_TOPICS]]

    run(act)


@pytest.mark.parametrize("error", [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT], ids=lambda error: error.name)
def test_topic_that_exists_is_no_failure(error: ErrorCode) -> None:
    async def act(stage: Stage) -> None:
        await play(stage, {"a": error})
        stage.controller.create_topics(["a"])
        await stage.pass_time(100)
        assert stage.controller.create_topics(["a"]) == {"a": UNKNOWN}

    run(act)


def test_topic_is_tried_again_after_a_time_without_a_controller() -> None:
    async def act(stage: Stage) -> None:
        stage.controller.create_topics(["a"])
        await stage.pass_time(31_000)
        broker = await play(stage)
        await stage.pass_time(1_000)
        assert broker.asked == []
        stage.controller.create_topics(["a"])
        await stage.until(lambda: broker.asked)

    run(act)
