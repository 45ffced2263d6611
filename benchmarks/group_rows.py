"""Rows about wirekafka's groups: the costs of a commit, of ten thousand groups and of one large group.

Each row starts a broker of its own, whose new groups do not wait for more members. The clients send frames on plain sockets; the
frames of many clients are made beforehand, so that one Python process can be the load. The rows measure the broker's CPU time.
"""

from __future__ import annotations

import contextlib
import selectors
import struct
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers import MeasuredWirekafka, await_metadata
from benchmarks.log_rows import LogRow
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.rows import Figure, Figures, Timing
from compat_tests.harness.broker import running
from compat_tests.harness.raw import RawConnection, framed
from wirekafka.api.heartbeat import HeartbeatRequest
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wirekafka.api.registry import APIS
from wirekafka.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from wirekafka.errors import ErrorCode
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wirekafka.wire.types import Message

COMMITS = 10_000
COMMITTERS = 20
GROUPS = 10_000
CONNECTIONS = 100
HEARTBEAT_INTERVAL_S = 3
MEMBERS = 500
TOPIC = "orders"
SUBSCRIPTION = struct.pack(">hih6siii", 1, 1, len(TOPIC), TOPIC.encode(), 4, 0, 0)
ASSIGNMENT = struct.pack(">hih6siiiiii", 1, 1, len(TOPIC), TOPIC.encode(), 4, 0, 1, 2, 3, 0)

VERSIONS = {"HeartbeatRequest": 4, "JoinGroupRequest": 9, "OffsetCommitRequest": 9, "SyncGroupRequest": 5}
"""The versions that current clients send."""

_KEYS = {api.request: key for key, api in APIS.items()}


def _frame(request: Message) -> bytes:
    api = APIS[_KEYS[type(request)]]
    version = VERSIONS[type(request).__name__]
    return framed(api, version, encode(request, version, api.is_flexible(version)))


def _response(kind: type[Message], frame: bytes) -> Any:
    """Decodes the response to a request of that class; all versions used here have flexible headers."""
    version = VERSIONS[kind.__name__]
    return decode(APIS[_KEYS[kind]].response, version, True, frame[5:])


def _fresh(directory: Path) -> MeasuredWirekafka:
    directory.mkdir()
    broker = MeasuredWirekafka(directory)
    broker.settings = {"group.initial.rebalance.delay.ms": "0"}
    return broker


@contextlib.contextmanager
def _connected(broker: MeasuredWirekafka, count: int) -> Any:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(RawConnection(broker.address, timeout_s=60)) for _ in range(count)]


def _create_topic(connection: RawConnection) -> None:
    connection.ask(CreateTopicsRequest(topics=[CreatableTopic(name=TOPIC, num_partitions=4, replication_factor=1)]), 7)


def _join_request(group: str, client: str, member: str = "") -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION) for name in ("range", "cooperative-sticky")]
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id=member,
        protocol_type="consumer",
        protocols=protocols,
        reason=client,
    )


def _sync_request(group: str, member: str, generation: int, members: Iterable[str] = ()) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=each, assignment=ASSIGNMENT) for each in members],
    )


def _commit_request(group: str, member: str, offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_leader_epoch=0)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=1,
        member_id=member,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )


def _found_group(connection: RawConnection, group: str) -> str:
    """Makes a stable group of one member; returns the member's id."""
    member = connection.ask(_join_request(group, "a"), 9).member_id
    joined = connection.ask(_join_request(group, "a", member), 9)
    assert joined.error_code == 0 and joined.generation_id == 1, joined
    assert connection.ask(_sync_request(group, member, 1, [member]), 5).error_code == 0
    return str(member)


def _exchange(connection: RawConnection, frame: bytes) -> bytes:
    connection.send(frame)
    return connection.receive_frame()


def commits(directory: Path, timing: Timing) -> Figures:
    """Measures commits of one offset each: first of twenty clients at once, then of one client."""
    with running(broker := _fresh(directory / "broker")), _connected(broker, COMMITTERS) as connections:
        _create_topic(connections[0])
        member = _found_group(connections[0], "g")
        frames = [_frame(_commit_request("g", member, offset)) for offset in range(COMMITS)]
        answer = _exchange(connections[0], frames[0])
        _commit_all(connections, frames[: COMMITS // 5], answer)
        figures = {}
        for name, some in (("cpu", connections), ("alone", connections[:1])):
            before = cpu_seconds(broker)
            _commit_all(some, frames, answer)
            figures[name] = (cpu_seconds(broker) - before) / COMMITS * 1e6
        return figures


def _commit_all(connections: Sequence[RawConnection], frames: Sequence[bytes], answer: bytes) -> None:
    """Sends a frame on each connection and receives the answers, round after round; raises unless all answers are equal."""
    for start in range(0, len(frames), len(connections)):
        some = frames[start : start + len(connections)]
        for connection, frame in zip(connections, some, strict=False):
            connection.send(frame)
        for connection, _ in zip(connections, some, strict=False):
            assert connection.receive_frame() == answer


def groups(directory: Path, timing: Timing) -> Figures:
    """Measures ten thousand groups that form, commit and send heartbeats, and the broker's next start."""
    with running(broker := _fresh(directory / "broker")), _connected(broker, CONNECTIONS) as connections:
        _create_topic(connections[0])
        _found_group(connections[0], "first")
        before_bytes, before_s = resident_bytes(broker), cpu_seconds(broker)
        members = [_found_group(connections[number % CONNECTIONS], f"group-{number}") for number in range(GROUPS)]
        for number, member in enumerate(members):
            connections[number % CONNECTIONS].ask(_commit_request(f"group-{number}", member, 5), 9)
        figures = {
            "rss": (resident_bytes(broker) - before_bytes) / 1024 / GROUPS,
            "founded": (cpu_seconds(broker) - before_s) / GROUPS * 1e3,
        }
        beats = [
            _frame(HeartbeatRequest(group_id=f"group-{number}", generation_id=1, member_id=member))
            for number, member in enumerate(members)
        ]
        _send_heartbeats(connections, beats, timing.warmup)
        before_s = cpu_seconds(broker)
        seconds = max(timing.seconds, HEARTBEAT_INTERVAL_S)
        sent = _send_heartbeats(connections, beats, seconds)
        figures["beats"] = (cpu_seconds(broker) - before_s) / sent * GROUPS / HEARTBEAT_INTERVAL_S
        broker.terminate(timeout_s=120)
        broker.start()
        return figures | {"start": await_metadata(broker)}


def _send_heartbeats(connections: Sequence[RawConnection], beats: Sequence[bytes], seconds: float) -> int:
    """Sends each group's heartbeat once in three seconds, one after the other; returns the number of heartbeats."""
    began, sent = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        due = int(elapsed / HEARTBEAT_INTERVAL_S * len(beats))
        while sent < due:
            now = range(sent, min(due, sent + len(connections)))
            for number in now:
                connections[number % len(connections)].send(beats[number % len(beats)])
            for number in now:
                frame = connections[number % len(connections)].receive_frame()
                assert frame[-3:-1] == b"\0\0", "a heartbeat was refused"
            sent = now.stop
        time.sleep(0.002)
    return sent


def large_group(directory: Path, timing: Timing) -> Figures:
    """Measures a rebalance of a stable group of 500 members: the leader rejoins, the others learn of it by a heartbeat."""
    broker = _fresh(directory / "broker")
    broker.settings = {}  # The members that join in the first three seconds form one generation.
    with running(broker), _connected(broker, MEMBERS) as connections:
        _create_topic(connections[0])
        members = [str(connection.ask(_join_request("g", "a"), 9).member_id) for connection in connections]
        leader = _rebalance(connections, members)
        before = cpu_seconds(broker)
        began = time.monotonic()
        connections[leader].send(_frame(_join_request("g", "a", members[leader])))
        followers = [number for number in range(MEMBERS) if number != leader]
        beat = [_frame(HeartbeatRequest(group_id="g", generation_id=1, member_id=members[number])) for number in followers]
        for frame in _ask_all([connections[number] for number in followers], beat):
            assert _response(HeartbeatRequest, frame).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        _rebalance(connections, members, has_joined=leader)
        return {"seconds": time.monotonic() - began, "cpu": cpu_seconds(broker) - before}


def _rebalance(connections: Sequence[RawConnection], members: Sequence[str], has_joined: int | None = None) -> int:
    """Joins all members, except one that has sent its JoinGroup, and syncs all; returns the index of the leader."""
    joins = [b"" if number == has_joined else _frame(_join_request("g", "a", member)) for number, member in enumerate(members)]
    answers = [_response(JoinGroupRequest, frame) for frame in _ask_all(connections, joins)]
    outcomes = {(answer.error_code, answer.generation_id) for answer in answers}
    assert outcomes == {(0, 1 if has_joined is None else 2)}, outcomes
    syncs = [
        _frame(_sync_request("g", answer.member_id, answer.generation_id, (each.member_id for each in answer.members)))
        for answer in answers
    ]
    for frame in _ask_all(connections, syncs):
        assert _response(SyncGroupRequest, frame).error_code == ErrorCode.NONE
    return max(range(len(answers)), key=lambda number: len(answers[number].members))


def _ask_all(connections: Sequence[RawConnection], frames: Sequence[bytes]) -> list[bytes]:
    """Sends a frame on each connection, and receives the answers in any order."""
    answers: dict[int, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for number, (connection, frame) in enumerate(zip(connections, frames, strict=True)):
            connection.send(frame)
            selector.register(connection.socket, selectors.EVENT_READ, number)
        while len(answers) < len(connections):
            for key, _ in selector.select(60):
                answers[key.data] = connections[key.data].receive_frame()
                selector.unregister(key.fileobj)
    return [answers[number] for number in range(len(connections))]


GROUP_ROWS = (
    LogRow(
        "group-commit",
        "A commit of one partition's offset",
        {
            "cpu": Figure(f"broker CPU us, {COMMITTERS} connections", asked=60),
            "alone": Figure("broker CPU us, one connection", asked=60),
        },
        commits,
    ),
    LogRow(
        "groups",
        f"{GROUPS:,} groups of one member each",
        {
            "rss": Figure("KiB each", asked=8),
            "founded": Figure("broker CPU ms to found each"),
            "beats": Figure("cores for heartbeats every 3 s", asked=0.25),
            "start": Figure("ms to start with them"),
        },
        groups,
    ),
    LogRow(
        "group-large",
        f"A group of {MEMBERS} members rebalances",
        {"seconds": Figure("s", asked=2), "cpu": Figure("broker CPU s")},
        large_group,
    ),
)
