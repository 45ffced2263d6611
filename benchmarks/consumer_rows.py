"""Rows about wirekafka's consumer groups: what an assignment of a large group costs, and how long it delays other clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers import MeasuredWirekafka
from benchmarks.log_rows import LogRow
from benchmarks.processes import cpu_seconds
from benchmarks.rows import Figure, Figures, Timing
from compat_tests.harness.broker import running
from compat_tests.harness.raw import RawConnection, framed
from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.api.find_coordinator import FindCoordinatorRequest
from wirekafka.api.registry import APIS
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

MEMBERS = 1000
TOPICS = [f"topic-{number:03}" for number in range(100)]
PARTITIONS = 100
CONNECTIONS = 20
INTERVAL_MS = 10_000
"""The interval between two assignments; all members have joined before the second one."""

BEATS = 20_000
VERSION = 1
API = next(api for api in APIS.values() if api.request is ConsumerGroupHeartbeatRequest)


def _frame(request: ConsumerGroupHeartbeatRequest) -> bytes:
    return framed(API, VERSION, encode(request, VERSION, True))


def _beat(member: int, epoch: int) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id="g", member_id=f"member-{member:029}", member_epoch=epoch)


def _join(member: int) -> ConsumerGroupHeartbeatRequest:
    request = _beat(member, 0)
    request.rebalance_timeout_ms = 300_000
    request.subscribed_topic_names = TOPICS
    request.topic_partitions = []
    return request


def _answer(connection: RawConnection) -> Any:
    answer = decode(API.response, VERSION, True, connection.receive_frame()[5:])
    assert answer.error_code == 0, answer
    return answer


def _epochs(connections: Sequence[RawConnection], requests: Sequence[ConsumerGroupHeartbeatRequest]) -> list[int]:
    """Sends heartbeats, one on each connection at a time, and returns the epochs that the members have come to."""
    epochs = []
    for start in range(0, len(requests), len(connections)):
        some = requests[start : start + len(connections)]
        for connection, request in zip(connections, some, strict=False):
            connection.send(_frame(request))
        epochs += [_answer(connection).member_epoch for connection, _ in zip(connections, some, strict=False)]
    return epochs


def _until_assigned(connection: RawConnection) -> int:
    """Sends heartbeats of the first member until an answer has an assignment, which a thread computes; returns its epoch."""
    while True:
        answer = _answer(connection)
        if answer.assignment is not None:
            return int(answer.member_epoch)
        time.sleep(0.005)
        connection.send(_frame(_beat(0, answer.member_epoch)))


def assignment(directory: Path, timing: Timing) -> Figures:
    """Measures the heartbeat that assigns one member's 10,000 partitions to 1,000 members, and the delay of another client."""
    broker = MeasuredWirekafka(directory)
    broker.settings = {"group.consumer.assignment.interval.ms": str(INTERVAL_MS)}
    with running(broker), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(broker.address, timeout_s=120)) for _ in range(CONNECTIONS + 1)]
        other = connections.pop()
        for name in TOPICS:
            topic = CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
            assert other.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code == 0
        before = cpu_seconds(broker)
        epochs = _epochs(connections, [_join(member) for member in range(MEMBERS)])
        figures = {"join": (cpu_seconds(broker) - before) / MEMBERS * 1e3}
        connections[0].send(_frame(_beat(0, epochs[0])))
        epochs[0] = _until_assigned(connections[0])
        time.sleep(INTERVAL_MS / 1000)
        before, began = cpu_seconds(broker), time.monotonic()
        connections[0].send(_frame(_beat(0, epochs[0])))
        other.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        figures["wait"] = (time.monotonic() - began) * 1e3
        assert _until_assigned(connections[0]) == epochs[0], "it has to give partitions up first"
        figures |= {"took": (time.monotonic() - began) * 1e3, "cpu": (cpu_seconds(broker) - before) * 1e3}
        for _ in range(3):
            requests = [_beat(member, epoch) for member, epoch in enumerate(epochs)]
            requests[0].topic_partitions = []
            epochs = _epochs(connections, requests)
        before = cpu_seconds(broker)
        for _ in range(BEATS // MEMBERS):
            _epochs(connections, [_beat(member, epoch) for member, epoch in enumerate(epochs)])
        return figures | {"beat": (cpu_seconds(broker) - before) / BEATS * 1e6}


CONSUMER_ROWS = (
    LogRow(
        "consumer-assignment",
        f"{MEMBERS:,} members of the consumer protocol are assigned {len(TOPICS) * PARTITIONS:,} partitions",
        {
            "took": Figure("ms", asked=300),
            "cpu": Figure("broker CPU ms"),
            "wait": Figure("ms another client waits meanwhile"),
            "join": Figure("broker CPU ms a join"),
            "beat": Figure("broker CPU us a heartbeat"),
        },
        assignment,
    ),
)
