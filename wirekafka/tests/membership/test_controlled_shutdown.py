"""The controlled shutdown, with controllers that the test plays."""

from __future__ import annotations

from collections.abc import Callable

import structlog.testing
import trio

from wirekafka.errors import ErrorCode
from wirekafka.tests.membership.played_broker import NODE_ID, HangUp, Silence, Stage, run
from wirekafka.wire.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from wirekafka.wire.types import Message

REMAINING = ControlledShutdownResponse(remaining_partitions=[RemainingPartition(topic_name="flights", partition_index=1)])
DONE = ControlledShutdownResponse()
SETTINGS = {"controlled.shutdown.max.retries": "3", "controlled.shutdown.retry.backoff.ms": "5000"}
Answer = ControlledShutdownResponse | type[Exception]


def play(*answers: Answer) -> Callable[[Message, int], Message]:
    """Returns the answers in turn; an exception stands for no answer."""
    left = list(answers)

    def answer(request: Message, version: int) -> Message:
        assert request == ControlledShutdownRequest(broker_id=NODE_ID, broker_epoch=77) and version == 3
        result = left.pop(0)
        if isinstance(result, type):
            raise result
        return result

    return answer


async def shut_down(stage: Stage) -> bool:
    """Shuts down; meanwhile the time of the timers passes fast."""
    results: list[bool] = []

    async def ask() -> None:
        results.append(await stage.controller.controlled_shutdown(NODE_ID, stage.broker_epoch))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        while not results:
            await stage.pass_time(500)
            await stage.breathe()
    return results[0]


def test_leaderships_are_moved_at_once() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, play(DONE))
        stage.tell_controller(1)
        assert await shut_down(stage)
        assert broker.client_ids == ["broker-9-controlled-shutdown"]

    run(act, SETTINGS)


def test_partitions_that_remain_are_tried_again_after_the_back_off() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, play(REMAINING, REMAINING, DONE))
        stage.tell_controller(1)
        began_ms = stage.clock.monotonic_ms()
        assert await shut_down(stage)
        assert len(broker.asked) == 3 and stage.clock.monotonic_ms() - began_ms >= 10_000

    run(act, SETTINGS)


def test_shutdown_ends_after_the_last_attempt() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, play(*[REMAINING] * 3))
        stage.tell_controller(1)
        assert not await shut_down(stage)
        assert len(broker.asked) == 3

    run(act, SETTINGS)


def test_each_attempt_goes_to_the_controller_of_that_moment() -> None:
    async def act(stage: Stage) -> None:
        refuse = ControlledShutdownResponse(error_code=ErrorCode.NOT_CONTROLLER)

        def leave(request: Message, version: int) -> Message:
            stage.tell_controller(2)
            return refuse

        await stage.play(1, leave)
        broker = await stage.play(2, play(DONE))
        stage.tell_controller(1)
        began_ms = stage.clock.monotonic_ms()
        assert await shut_down(stage)
        assert len(broker.asked) == 1
        assert stage.clock.monotonic_ms() - began_ms <= 2_000, "the pause ends when there is another controller"

    run(act, SETTINGS)


def test_lost_and_missing_answers_count_as_attempts() -> None:
    async def act(stage: Stage) -> None:
        broker = await stage.play(1, play(HangUp, Silence, DONE))
        stage.tell_controller(1)
        began_ms = stage.clock.monotonic_ms()
        assert await shut_down(stage)
        assert len(broker.asked) == 3
        assert stage.clock.monotonic_ms() - began_ms >= 40_000, "30 s for the answer, and two pauses"

    run(act, SETTINGS)


def test_shutdown_without_a_controller_gives_up_soon_and_says_what_follows() -> None:
    async def act(stage: Stage) -> None:
        await stage.play(1, play())
        stage.tell_controller(1)
        stage.controller.set_controller(None)
        began_ms = stage.clock.monotonic_ms()
        with structlog.testing.capture_logs() as logs:
            assert not await shut_down(stage)
        assert stage.clock.monotonic_ms() - began_ms <= 3_000
        assert "no leader until there is one" in logs[-1]["event"]

    run(act, SETTINGS)


def test_only_broker_of_a_cluster_does_not_try() -> None:
    async def act(stage: Stage) -> None:
        stage.add_broker(NODE_ID, {})
        stage.tell_controller(NODE_ID)
        began_ms = stage.clock.monotonic_ms()
        assert not await shut_down(stage)
        assert stage.clock.monotonic_ms() - began_ms <= 1_000

    run(act, SETTINGS)
