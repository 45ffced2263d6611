"""Producer ids from blocks of a controller that the test plays."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.producer_id_blocks import ZooKeeperBlocks
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.metadata.producer_ids import MAX_PRODUCER_ID
from wirekafka.tests.membership import zookeeper
from wirekafka.tests.membership.played_broker import NODE_ID, PlayedBroker, Stage, run
from wirekafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wirekafka.wire.types import Message
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import ProducerIdBlock
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import GetData


def block(start: int, size: int = 10) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=size)


def failed(error: ErrorCode) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(error_code=error)


async def play(stage: Stage, *answers: AllocateProducerIdsResponse) -> PlayedBroker:
    left = list(answers)

    def answer(request: Message, version: int) -> Message:
        assert request == AllocateProducerIdsRequest(broker_id=NODE_ID, broker_epoch=stage.broker_epoch)
        return left.pop(0)

    broker = await stage.play(1, answer)
    stage.tell_controller(1)
    return broker


def take(stage: Stage) -> int | ErrorCode:
    try:
        return stage.controller.producer_ids.take()
    except KafkaError as error:
        return error.code


async def take_many(stage: Stage, count: int) -> list[int | ErrorCode]:
    """Takes ids with enough time for a request between two of them."""
    taken = []
    for _ in range(count):
        taken.append(take(stage))
        await stage.breathe()
    return taken


def test_first_producer_is_told_to_retry_until_there_is_a_block() -> None:
    async def act(stage: Stage) -> None:
        assert take(stage) == take(stage) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        broker = await play(stage, block(5_000))
        await stage.until(lambda: broker.asked)
        await stage.breathe()
        assert [take(stage) for _ in range(3)] == [5_000, 5_001, 5_002]
        assert len(broker.asked) == 1

    run(act)


def test_next_block_is_asked_for_before_the_current_one_ends() -> None:
    async def act(stage: Stage) -> None:
        broker = await play(stage, block(5_000), block(7_000, 100))
        stage.controller.producer_ids.prepare()
        await stage.until(lambda: broker.asked)
        await stage.breathe()
        assert await take_many(stage, 9) == list(range(5_000, 5_009)) and len(broker.asked) == 1
        assert await take_many(stage, 3) == [5_009, 7_000, 7_001] and len(broker.asked) == 2

    run(act)


def test_producer_retries_when_the_next_block_does_not_come_in_time() -> None:
    async def act(stage: Stage) -> None:
        broker = await play(stage, block(5_000, 2), block(7_000))
        stage.controller.producer_ids.prepare()
        await stage.until(lambda: broker.asked)
        await stage.breathe()
        assert [take(stage) for _ in range(3)] == [5_000, 5_001, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        await stage.until(lambda: len(broker.asked) == 2)
        await stage.breathe()
        assert take(stage) == 7_000

    run(act)


REFUSED = {
    "stale epoch": failed(ErrorCode.STALE_BROKER_EPOCH),
    "not registered": failed(ErrorCode.BROKER_ID_NOT_REGISTERED),
    "an error that no one knows": AllocateProducerIdsResponse(error_code=999),
    "ids that were given": block(4_999),
    "ids below 0": block(-1),
    "no ids": block(6_000, 0),
    "a size below 0": block(6_000, -1),
    "ids after the greatest": block(MAX_PRODUCER_ID - 5),
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=list(REFUSED))
def test_answer_that_is_no_block_is_followed_by_another_request_after_a_pause(answer: AllocateProducerIdsResponse) -> None:
    async def act(stage: Stage) -> None:
        broker = await play(stage, block(4_990, 10), answer, block(7_000))
        stage.controller.producer_ids.prepare()
        await stage.until(lambda: broker.asked)
        await stage.breathe()
        assert await take_many(stage, 10) == list(range(4_990, 5_000))
        assert await take_many(stage, 2) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2 and len(broker.asked) == 2
        await stage.pass_time(100)
        assert await take_many(stage, 2) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 7_000]

    run(act)


def test_reason_why_there_is_no_block_is_logged_once() -> None:
    async def act(stage: Stage) -> None:
        stale, fenced = failed(ErrorCode.STALE_BROKER_EPOCH), failed(ErrorCode.BROKER_ID_NOT_REGISTERED)
        broker = await play(stage, stale, stale, stale, fenced, block(5_000))
        with capture_logs() as lines:
            for _ in range(5):
                take(stage)
                await stage.pass_time(100)
        assert len(broker.asked) == 5 and take(stage) == 5_000
        assert [line["reason"] for line in lines] == ["STALE_BROKER_EPOCH", "BROKER_ID_NOT_REGISTERED"]

    run(act)


def test_request_that_is_sent_again_has_the_present_broker_epoch() -> None:
    async def act(stage: Stage) -> None:
        assert take(stage) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        stage.broker_epoch = 78
        broker = await play(stage, failed(ErrorCode.NOT_CONTROLLER), block(5_000))
        await stage.until(lambda: len(broker.asked) == 2)
        await stage.breathe()
        assert take(stage) == 5_000

    run(act)


def test_producers_cause_another_request_after_a_time_without_a_controller() -> None:
    async def act(stage: Stage) -> None:
        assert take(stage) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await stage.pass_time(31_000)
        broker = await play(stage, block(5_000))
        await stage.pass_time(1_000)
        assert broker.asked == []
        assert take(stage) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await stage.until(lambda: broker.asked)
        await stage.breathe()
        assert take(stage) == 5_000

    run(act)


def test_blocks_of_zookeeper_continue_after_the_last_one_and_are_given_to_one_broker() -> None:
    async def act(stage: zookeeper.Stage) -> None:
        await stage.zookeeper.create_persistent(paths.PRODUCER_ID_BLOCK)
        blocks = [ZooKeeperBlocks(RetryingClient(stage.connect()), node_id=node_id) for node_id in range(5)]
        taken: list[range | str] = []
        async with trio.open_nursery() as nursery:
            for each in blocks:
                nursery.start_soon(each.run)
                for _ in range(3):
                    each.request(taken.append)
            await zookeeper.until(lambda: len(taken) == 15)
            nursery.cancel_scope.cancel()
        assert sorted(block.start for block in taken if isinstance(block, range)) == list(range(0, 15_000, 1_000))
        found = await stage.zookeeper.ask(GetData(paths.PRODUCER_ID_BLOCK))
        last = ProducerIdBlock.read(found.data)
        assert last is not None and (last.first, last.last) == (14_000, 14_999)

    zookeeper.play(act)


def test_block_of_zookeeper_whose_answer_is_lost_is_never_used() -> None:
    async def act(stage: zookeeper.Stage) -> None:
        await stage.zookeeper.create_persistent(paths.PRODUCER_ID_BLOCK)
        faults = [None, Fault.REPLY_LOST]
        stage.client.choose_fault = lambda operation: faults.pop(0) if faults else None
        blocks = ZooKeeperBlocks(stage.zookeeper, node_id=NODE_ID)
        taken: list[range | str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(blocks.run)
            blocks.request(taken.append)
            await zookeeper.until(lambda: taken)
            nursery.cancel_scope.cancel()
        assert taken == [range(1_000, 2_000)]

    zookeeper.play(act)


def test_znode_that_is_not_kafkas_gives_no_block() -> None:
    async def act(stage: zookeeper.Stage) -> None:
        await stage.zookeeper.create_persistent(paths.PRODUCER_ID_BLOCK, b"none")
        blocks = ZooKeeperBlocks(stage.zookeeper, node_id=NODE_ID)
        taken: list[range | str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(blocks.run)
            blocks.request(taken.append)
            await zookeeper.until(lambda: taken)
            nursery.cancel_scope.cancel()
        assert isinstance(taken[0], str)

    zookeeper.play(act)
