"""Requests to the controller that assign replicas to many partitions do not hold the loop, measured in CPU time of its thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api.create_partitions import CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic
from wirekafka.api.registry import Api, all_apis
from wirekafka.server.dispatch import Dispatcher
from wirekafka.server.loop_lag import Collections
from wirekafka.slices import Slices
from wirekafka.tests.api.largest_requests import measure
from wirekafka.tests.api.longest_step import LIMIT_MS, TRIES, open_caller
from wirekafka.tests.api.members import NODE_ID
from wirekafka.tests.api.ruling import RulingBroker, rule
from wirekafka.tests.server.frames import request
from wirekafka.wire.codec import MOST_ELEMENTS_OF_ASSIGNMENTS, encode
from wirekafka.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from wirekafka.wire.types import Message

pytestmark = pytest.mark.time_limits

COUNT = 10_000
"""As many partitions as one request may create."""
MOST = MOST_ELEMENTS_OF_ASSIGNMENTS - 2
REPLICAS = [1, 2, 3]
MOST_SECONDS = 200


def creation(partitions: int, replicas: list[int]) -> CreateTopicsRequest:
    """Returns a request for one topic; with a timeout of 0, its response does not wait for leaders."""
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=replicas) for index in range(partitions)]
    topic = CreatableTopic(name="flights", num_partitions=-1, replication_factor=-1, assignments=assignments)
    return CreateTopicsRequest(topics=[topic], timeout_ms=0)


def growth(partitions: int, replicas: list[int]) -> CreatePartitionsRequest:
    """Returns a request for more partitions of a topic."""
    assignments = [CreatePartitionsAssignment(broker_ids=replicas) for _ in range(partitions)]
    topic = CreatePartitionsTopic(name="cities", count=1 + partitions, assignments=assignments)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=0)


def _framed(message: Message) -> bytes:
    api: Api = next(api for api in all_apis() if api.request is type(message))
    version = api.versions[-1]
    is_flexible = api.is_flexible(version)
    return request(api.key, version, 1, b"\0" * is_flexible + encode(message, version, is_flexible))


def _longest_ms(path: Path, message: Message, check: Callable[[RulingBroker], object]) -> float:
    """Returns the longest step of the loop while a new controller handles a request, and what follows from it."""

    async def main() -> float:
        async with open_caller(path, zookeeper_connect="127.0.0.1:1", broker_id=str(NODE_ID)) as caller:
            broker = rule(caller)
            broker.own.peers.encodes = False
            broker.is_told = False
            broker.cluster.create_topic("cities", {0: (1, 2, 3)})
            caller.broker.slices = Slices(caller.broker.clock)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_turns, broker)
                longest_ms, outcome = await measure(Dispatcher(caller.broker), _framed(message), MOST_SECONDS)
                nursery.cancel_scope.cancel()
            assert outcome == "answered later"
            broker.cluster.turn()
            check(broker)
            return longest_ms

    collections = Collections()
    collections.freezes = True  # as in a process of a broker
    with collections.measured():
        return trio.run(main)


async def _turns(broker: RulingBroker) -> None:
    """Gives each step of the controller and of ZooKeeper a step of the loop."""
    while True:
        if broker.stage.steps:
            broker.stage.steps.popleft()()
        await trio.lowlevel.checkpoint()


def has_partitions(broker: RulingBroker, *, name: str, count: int) -> None:
    """Raises unless the topic has so many partitions with leaders, or does not exist if they are 0."""
    context = broker.own.controller.context
    assert context is not None
    assert sum(each.topic == name for each in context.states) == count


@pytest.mark.parametrize(
    ("message", "check"),
    [
        (creation(COUNT, REPLICAS), partial(has_partitions, name="flights", count=COUNT)),
        (growth(COUNT, REPLICAS), partial(has_partitions, name="cities", count=1 + COUNT)),
        (creation(MOST, []), partial(has_partitions, name="flights", count=0)),
        (creation(1, [*range(MOST - 1)]), partial(has_partitions, name="flights", count=1)),
        (growth(MOST, []), partial(has_partitions, name="cities", count=1)),
        (growth(1, [*range(MOST - 1)]), partial(has_partitions, name="cities", count=1)),
        (
            CreateTopicsRequest(topics=[CreatableTopic(name=f"t{number}") for number in range(MOST)]),
            partial(has_partitions, name="t0", count=0),
        ),
        (
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=f"t{number}") for number in range(MOST)]),
            partial(has_partitions, name="t0", count=0),
        ),
    ],
    ids=[
        "new topic",
        "more partitions",
        "new topic without replicas",
        "new topic with many replicas",
        "more partitions without replicas",
        "partition with many replicas",
        "many topics",
        "growth of many topics",
    ],
)
def test_assignment_of_many_replicas_does_not_hold_the_loop(
    tmp_path: Path, message: Message, check: Callable[[RulingBroker], Any]
) -> None:
    found_ms = []
    for number in range(TRIES):
        found_ms.append(round(_longest_ms(tmp_path / str(number), message, check)))
        if found_ms[-1] <= LIMIT_MS:
            break
    assert found_ms[-1] <= LIMIT_MS
