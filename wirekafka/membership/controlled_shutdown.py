"""The controlled shutdown: the controller moves the leaderships of a broker to others before the broker stops.

Differs from Apache Kafka: a broker that is the only one in its cluster does not try, and stops at once. Apache Kafka tries
`controlled.shutdown.max.retries` times. The pause before the next attempt ends when another broker becomes the controller.

Source: kafka.server.KafkaServer.controlledShutdown.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from wirekafka.errors import ErrorCode
from wirekafka.replication.replica_fetcher import Channel
from wirekafka.wire.messages.controlled_shutdown import (
    CONTROLLED_SHUTDOWN,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)

log = structlog.get_logger(__name__)

NO_CONTROLLER_WAIT_MS = 1_000
"""How long the next controller may take after one has stopped. Brokers elect it within milliseconds of its predecessor's end."""

LOOK_S = 0.05
"""How often a pause looks whether it is still needed."""

VERSION = CONTROLLED_SHUTDOWN.versions[-1]
"""The newest version, which all brokers of a cluster with wirekafka have (since Kafka 2.4)."""


async def hand_over(
    connect: Callable[[int], Channel],
    controller_id: Callable[[], int | None],
    has_others: Callable[[], bool],
    request: ControlledShutdownRequest,
    *,
    attempt_count: int,
    back_off_ms: int,
) -> bool:
    """Asks the controller to move all leaderships of this broker away; returns whether it has moved all of them.

    Args:
        connect: returns a connection to a broker, whose requests end after `controller.socket.timeout.ms` at the latest.
        controller_id: returns the broker that is the controller, at each attempt; None if there is none. Then the shutdown waits
            `NO_CONTROLLER_WAIT_MS` for the next one, and gives up.
        has_others: returns whether other brokers are registered, at each attempt; without them the shutdown gives up.
        attempt_count: `controlled.shutdown.max.retries`.
        back_off_ms: the pause between two attempts; `controlled.shutdown.retry.backoff.ms`.

    Cancellation: the connection is closed. The controller may still move leaderships.
    """
    for left_count in reversed(range(attempt_count)):
        if not has_others():
            log.info("This is the only broker of the cluster: its partitions have no leader until a broker starts")
            return False
        broker_id = controller_id()
        if broker_id is None:
            await trio.sleep(min(NO_CONTROLLER_WAIT_MS, back_off_ms) / 1000)
            broker_id = controller_id()
        if broker_id is None:
            log.warning(
                "The controlled shutdown finds no controller: partitions of this broker have no leader until there is one",
                remedy="start another broker of the cluster, which becomes the controller and elects leaders",
            )
            return False
        if await _ask(connect(broker_id), request):
            return True
        if left_count:
            log.info("The controlled shutdown is tried again", attempts_left=left_count)
            with trio.move_on_after(back_off_ms / 1000):
                while has_others() and controller_id() in (broker_id, None):  # noqa: ASYNC110 - neither gives an event
                    await trio.sleep(LOOK_S)
    log.warning("The controlled shutdown failed; the controller elects other leaders when the session of this broker ends")
    return False


async def _ask(channel: Channel, request: ControlledShutdownRequest) -> bool:
    answers: list[ControlledShutdownResponse | None] = []
    has_ended = trio.Event()

    def end(response: ControlledShutdownResponse | None) -> None:
        answers.append(response)
        has_ended.set()

    try:
        channel.send(CONTROLLED_SHUTDOWN, request, VERSION, end)
        await has_ended.wait()
    finally:
        channel.close()
    response = answers[0]
    if response is None:
        log.warning("The controller did not answer the controlled shutdown")
        return False
    if response.error_code != ErrorCode.NONE:
        log.info("The controller refused the controlled shutdown", error=ErrorCode.of(response.error_code).name)
        return False
    remaining = response.remaining_partitions
    log.info("The controller has answered the controlled shutdown", remaining_partition_count=len(remaining))
    return not remaining
