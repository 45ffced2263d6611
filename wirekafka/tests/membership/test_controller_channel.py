"""Requests to the controller, over sockets of loopback, while the controller changes, hangs, refuses and returns."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode
from wirekafka.tests.membership.played_broker import HangUp, PlayedBroker, Silence, Stage, run
from wirekafka.wire.messages.allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from wirekafka.wire.messages.alter_partition import (
    ALTER_PARTITION,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopicResponse,
)
from wirekafka.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wirekafka.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Message


def ids_from(start: int) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=1_000)


def answer_with_ids(start: int, request: Message, version: int) -> Message:
    return ids_from(start)


class Asker:
    """Asks for blocks of producer ids, as a request that shows who has answered."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ended: list[int | None] = []

    def ask(self, number: int = 0) -> None:
        def on_end(response: AllocateProducerIdsResponse | None) -> None:
            self.ended.append(None if response is None else response.producer_id_start)

        self.stage.controller.send(ALLOCATE_PRODUCER_IDS, lambda version: AllocateProducerIdsRequest(broker_id=number), on_end)


def asked_of(broker: PlayedBroker) -> list[int]:
    return [request.broker_id for request, _ in broker.asked if isinstance(request, AllocateProducerIdsRequest)]


def test_requests_reach_the_controller_in_their_order_one_at_a_time() -> None:
    async def act(stage: Stage) -> None:
        numbers = iter([10, 20, 30])
        broker = await stage.play(1, lambda request, version: ids_from(next(numbers)))
        stage.tell_controller(1)
        asker = Asker(stage)
        for number in range(3):
            asker.ask(number)
        assert asker.ended == [], "no callback runs inside send"
        await stage.until(lambda: len(asker.ended) == 3)
        assert asker.ended == [10, 20, 30] and asked_of(broker) == [0, 1, 2]
        assert set(broker.client_ids) == {"broker-9-to-controller-forwarding"}

    run(act)


def test_request_waits_until_there_is_a_controller_with_an_address() -> None:
    async def act(stage: Stage) -> None:
        asker = Asker(stage)
        asker.ask()
        stage.tell_controller(1)
        stage.add_broker(1, {"CLIENTS": 1})
        await stage.pass_time(5_000)
        assert asker.ended == []
        await stage.play(1, lambda request, version: ids_from(10))
        await stage.until(lambda: asker.ended)
        assert asker.ended == [10]

    run(act)


def test_newest_id_of_the_controller_counts() -> None:
    async def act(stage: Stage) -> None:
        for broker_id in (1, 2, 3):
            await stage.play(broker_id, partial(answer_with_ids, broker_id))
        asker = Asker(stage)
        tell_image, tell_znode = stage.tell_controller, stage.controller.set_controller
        for count, (tell, broker_id) in enumerate([(tell_image, 1), (tell_znode, 2), (tell_image, 1), (tell_image, 3)]):
            tell(broker_id)
            asker.ask()
            await stage.until(lambda count=count: len(asker.ended) > count)
        assert asker.ended == [1, 2, 2, 3], "what the image has said before is no news"

    run(act)


def test_znode_without_a_controller_leaves_that_of_the_image() -> None:
    async def act(stage: Stage) -> None:
        for broker_id in (1, 2):
            await stage.play(broker_id, partial(answer_with_ids, broker_id))
        asker = Asker(stage)
        stage.tell_controller(1)
        stage.controller.set_controller(2)
        stage.controller.set_controller(None)
        asker.ask()
        await stage.until(lambda: asker.ended)
        assert asker.ended == [1]

    run(act)


REFUSED: dict[str, tuple[RequestType[Any, Any], Message, Message, Message]] = {
    "AllocateProducerIds": (
        ALLOCATE_PRODUCER_IDS,
        AllocateProducerIdsRequest(),
        AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER),
        ids_from(7),
    ),
    "CreateTopics": (
        CREATE_TOPICS,
        CreateTopicsRequest(),
        CreateTopicsResponse(topics=[CreatableTopicResult(name="a", error_code=ErrorCode.NOT_CONTROLLER)]),
        CreateTopicsResponse(topics=[CreatableTopicResult(name="a")]),
    ),
    "AlterPartition": (
        ALTER_PARTITION,
        AlterPartitionRequest(),
        AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER),
        AlterPartitionResponse(),
    ),
    "a partition of AlterPartition": (
        ALTER_PARTITION,
        AlterPartitionRequest(),
        AlterPartitionResponse(
            topics=[
                AlterPartitionTopicResponse(partitions=[AlterPartitionPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)])
            ]
        ),
        AlterPartitionResponse(),
    ),
}


@pytest.mark.parametrize(("kind", "request_", "refusal", "answer"), REFUSED.values(), ids=list(REFUSED))
def test_request_that_a_former_controller_refuses_is_sent_again(
    kind: RequestType[Any, Any], request_: Message, refusal: Message, answer: Message
) -> None:
    async def act(stage: Stage) -> None:
        former = await stage.play(1, lambda request, version: refusal)
        await stage.play(2, lambda request, version: answer)
        stage.tell_controller(1)
        ended: list[Message | None] = []
        stage.controller.send(kind, lambda version: request_, ended.append)
        await stage.until(lambda: len(former.asked) >= 2)
        assert ended == []
        stage.tell_controller(2)
        await stage.until(lambda: ended)
        assert ended == [answer]

    run(act)


def test_controller_that_hangs_does_not_hold_requests_once_another_broker_is_the_controller() -> None:
    def hang(request: Message, version: int) -> Message:
        raise Silence

    async def act(stage: Stage) -> None:
        former = await stage.play(1, hang)
        await stage.play(2, lambda request, version: ids_from(20))
        stage.controller.set_controller(1)
        asker = Asker(stage)
        asker.ask()
        await stage.until(lambda: former.asked)
        began_ms = stage.clock.monotonic_ms()
        stage.controller.set_controller(2)
        await stage.until(lambda: asker.ended)
        assert asker.ended == [20] and stage.clock.monotonic_ms() - began_ms < 5_000

    run(act)


def test_lost_connection_is_followed_by_the_same_request_and_by_new_versions() -> None:
    async def act(stage: Stage) -> None:
        versions: list[int] = []

        def hang_up_at_first(request: Message, version: int) -> Message:
            versions.append(version)
            if len(versions) == 1:
                broker.versions[CREATE_TOPICS.key] = 4
                raise HangUp
            return CreateTopicsResponse()

        broker = await stage.play(1, hang_up_at_first)
        stage.tell_controller(1)
        ended: list[CreateTopicsResponse | None] = []
        stage.controller.send(CREATE_TOPICS, lambda version: CreateTopicsRequest(timeout_ms=version), ended.append)
        await stage.until(lambda: ended)
        assert versions == [7, 4] and ended == [CreateTopicsResponse()]
        assert [request.timeout_ms for request, _ in broker.asked if isinstance(request, CreateTopicsRequest)] == [7, 4]

    run(act)


def test_request_that_the_controller_does_not_serve_ends_and_the_next_one_is_sent() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, lambda request, version: CreateTopicsResponse())
        broker.versions[ALLOCATE_PRODUCER_IDS.key] = -1
        stage.tell_controller(1)
        asker = Asker(stage)
        asker.ask()
        asker.ask()
        ended: list[CreateTopicsResponse | None] = []
        stage.controller.send(CREATE_TOPICS, lambda version: CreateTopicsRequest(), ended.append)
        await stage.until(lambda: ended)
        assert asker.ended == [None, None] and ended == [CreateTopicsResponse()]

    run(act)


@pytest.mark.parametrize(
    "versions",
    [
        ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION),
        ApiVersionsResponse(error_code=12_345, api_keys=[ApiVersion(api_key=ALLOCATE_PRODUCER_IDS.key)]),
    ],
    ids=["refused", "an error that does not exist"],
)
def test_versions_that_are_refused_are_asked_for_again_and_logged_once(versions: ApiVersionsResponse) -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, partial(answer_with_ids, 10))
        broker.api_versions = versions
        stage.tell_controller(1)
        asker = Asker(stage)
        asker.ask()
        with capture_logs() as lines:
            await stage.pass_time(2_000)
        assert asker.ended == [] and len(lines) == 1
        broker.api_versions = None
        await stage.until(lambda: asker.ended)
        assert asker.ended == [10]

    run(act)


@pytest.mark.parametrize(
    "served",
    [[], [(0, -1)], [(5, 0)], [(-9, -3)], [(100, 200)]],
    ids=["no keys", "no versions", "the newest before the oldest", "below 0", "too new"],
)
def test_request_without_a_common_version_ends(served: list[tuple[int, int]]) -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, partial(answer_with_ids, 10))
        keys = [ApiVersion(api_key=ALLOCATE_PRODUCER_IDS.key, min_version=first, max_version=last) for first, last in served]
        broker.api_versions = ApiVersionsResponse(api_keys=keys)
        stage.tell_controller(1)
        asker = Asker(stage)
        asker.ask()
        await stage.until(lambda: asker.ended)
        assert asker.ended == [None] and broker.asked == []

    run(act)


def test_broker_that_is_never_the_controller_is_logged_once() -> None:
    async def act(stage: Stage) -> None:
        refusal = AllocateProducerIdsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        broker = await stage.play(1, lambda request, version: refusal)
        stage.tell_controller(1)
        with capture_logs() as lines:
            Asker(stage).ask()
            await stage.pass_time(2_000)
        assert len(broker.asked) > 5 and len(lines) == 1

    run(act)


def test_request_that_cannot_be_written_ends_and_the_next_one_is_sent(logged_faults: list[str]) -> None:
    async def act(stage: Stage) -> None:
        await stage.play(1, lambda request, version: ids_from(10))
        stage.tell_controller(1)
        ended: list[CreateTopicsResponse | None] = []
        too_many = CreateTopicsRequest(topics=[CreatableTopic(name="a", replication_factor=1 << 15)])
        stage.controller.send(CREATE_TOPICS, lambda version: too_many, ended.append)
        asker = Asker(stage)
        asker.ask()
        await stage.until(lambda: asker.ended)
        assert ended == [None] and asker.ended == [10]

    run(act)
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_request_ends_without_an_answer_when_its_time_is_over() -> None:
    async def act(stage: Stage) -> None:
        asker = Asker(stage)
        asker.ask()
        await stage.pass_time(29_900)
        assert asker.ended == []
        await stage.pass_time(300)
        assert asker.ended == [None]

    run(act)


def test_callback_may_send_the_next_request_and_a_callback_that_fails_stops_nothing(logged_faults: list[str]) -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, lambda request, version: ids_from(10))
        stage.tell_controller(1)
        asker = Asker(stage)

        def ask_again_and_fail(response: object) -> None:
            asker.ask(2)
            raise RuntimeError("a defect")

        stage.controller.send(ALLOCATE_PRODUCER_IDS, lambda version: AllocateProducerIdsRequest(), ask_again_and_fail)
        asker.ask(1)
        await stage.until(lambda: len(asker.ended) == 2)
        assert asked_of(broker) == [0, 1, 2]

    run(act)
    assert len(logged_faults) == 1
    logged_faults.clear()


def test_closed_channel_calls_no_callback() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, lambda request, version: ids_from(10))
        stage.tell_controller(1)
        asker = Asker(stage)
        asker.ask()
        asker.ask()
        await stage.until(lambda: broker.client_ids)
        stage.controller.close()
        await stage.pass_time(40_000)
        assert asker.ended == []

    run(act)


def test_request_to_a_closed_channel_is_dropped() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, lambda request, version: ids_from(10))
        stage.tell_controller(1)
        stage.controller.close()
        asker = Asker(stage)
        asker.ask()
        await stage.pass_time(40_000)
        assert asker.ended == [] and broker.client_ids == []

    run(act)
