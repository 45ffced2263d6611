"""Changes of in-sync replicas, from the leaders of partitions to a controller that the test plays, over sockets of loopback."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from wirekafka.errors import ErrorCode
from wirekafka.membership import alter_partition_sender
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.replication.leadership import (
    AdvanceHighWatermark,
    BecameLeader,
    Event,
    Fetched,
    IsrChanged,
    IsrChangeFailed,
    LagChecked,
    Leadership,
    PartitionState,
    ProposeIsr,
)
from wirekafka.tests.membership.played_broker import NODE_ID, HangUp, PlayedBroker, Stage, run
from wirekafka.wire.messages.alter_partition import (
    ALTER_PARTITION,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopicResponse,
)
from wirekafka.wire.types import Message

LAG_MS = 10_000
BROKER_EPOCHS: dict[int, int | None] = {NODE_ID: 77, 2: 22, 3: 33}
NOT_RETRIED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
]
Change = tuple[str, int, tuple[tuple[int, int], ...], int, int]
"""The topic, the partition, the proposed replicas with their epochs, the leader epoch and the partition epoch."""


class Leader:
    """The leader of a partition with the replicas NODE_ID, 2 and 3, of which NODE_ID and 2 are in sync; with no log."""

    def __init__(self, stage: Stage, topic: str = "flights", index: int = 0, topic_id: bytes | None = None) -> None:
        self.stage = stage
        topic_id = topic.encode().ljust(16, b"-") if topic_id is None else topic_id
        self.partition = SimpleNamespace(topic=topic, topic_id=topic_id, index=index, is_gone=False, is_offline=False)
        self.answers: list[IsrChanged | IsrChangeFailed] = []
        self.leadership = Leadership(
            NODE_ID, high_watermark=0, min_insync_replicas=1, replica_lag_time_max_ms=LAG_MS, broker_epochs=BROKER_EPOCHS
        )
        self.lead(partition_epoch=5)

    def lead(self, partition_epoch: int, in_sync_replicas: tuple[int, ...] = (NODE_ID, 2)) -> None:
        self.handle(BecameLeader(PartitionState(4, partition_epoch, (NODE_ID, 2, 3), in_sync_replicas), 0))

    def handle(self, event: Event, now_ms: int = 0) -> None:
        for effect in self.leadership.step(event, now_ms):
            match effect:
                case ProposeIsr(change):
                    leader: Any = self
                    self.stage.controller.alter_partition.propose(leader, change)
                case AdvanceHighWatermark():
                    raise AssertionError("there is no record")

    def expand(self) -> None:
        self.handle(Fetched(3, 0, 0, 33))

    def shrink(self) -> None:
        self.handle(Fetched(2, 0, 0, 22))
        self.leadership.log_end_offset = 1
        self.handle(LagChecked(), 2 * LAG_MS)

    def take_answer(self, answer: IsrChanged | IsrChangeFailed) -> None:
        self.answers.append(answer)
        self.handle(answer)


class PlayedController:
    """Accepts all changes, but for the errors that the test gives.

    Attributes:
        changes: the changes of each request.
        errors: answered to the next requests, one for each; None for an answer without partitions.
        partition_errors: answered to the next requests for their partitions, one for each.
    """

    def __init__(self) -> None:
        self.changes: list[list[Change]] = []
        self.errors: list[ErrorCode | None] = []
        self.partition_errors: list[ErrorCode] = []
        self.before_answer: Callable[[], object] = lambda: None

    def answer(self, request: Message, version: int) -> AlterPartitionResponse:
        assert isinstance(request, AlterPartitionRequest)
        self.changes.append(list(changes_of(request)))
        self.before_answer()
        if self.errors:
            error = self.errors.pop(0)
            return AlterPartitionResponse(error_code=error or ErrorCode.NONE)
        error = self.partition_errors.pop(0) if self.partition_errors else ErrorCode.NONE
        return AlterPartitionResponse(
            topics=[
                AlterPartitionTopicResponse(
                    topic_name=topic.topic_name,
                    topic_id=topic.topic_id,
                    partitions=[
                        AlterPartitionPartitionResponse(
                            partition_index=partition.partition_index,
                            error_code=error,
                            leader_id=NODE_ID,
                            leader_epoch=partition.leader_epoch,
                            isr=[state.broker_id for state in partition.new_isr_with_epochs] or partition.new_isr,
                            partition_epoch=partition.partition_epoch + 1,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def changes_of(request: AlterPartitionRequest) -> list[Change]:
    return [
        (
            topic.topic_name or topic.topic_id.decode().rstrip("-"),
            partition.partition_index,
            tuple((state.broker_id, state.broker_epoch) for state in partition.new_isr_with_epochs)
            or tuple((broker_id, -1) for broker_id in partition.new_isr),
            partition.leader_epoch,
            partition.partition_epoch,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


async def play(stage: Stage) -> tuple[PlayedController, PlayedBroker]:
    controller = PlayedController()
    broker = await stage.play(1, controller.answer)
    stage.tell_controller(1)
    return controller, broker


@pytest.mark.parametrize("version", ALTER_PARTITION.versions)
def test_replica_that_has_caught_up_joins_in_every_version(version: int) -> None:
    async def act(stage: Stage) -> None:
        controller, broker = await play(stage)
        broker.versions[ALTER_PARTITION.key] = version
        leader = Leader(stage)
        leader.expand()
        assert leader.leadership.committed_isr == {NODE_ID, 2}
        await stage.until(lambda: leader.answers)
        epochs = {2: -1, 3: 33, NODE_ID: 77} if version == 3 else dict.fromkeys((2, 3, NODE_ID), -1)
        assert controller.changes == [[("flights", 0, tuple(epochs.items()), 4, 5)]]
        request, sent_version = broker.asked[0]
        assert isinstance(request, AlterPartitionRequest) and sent_version == version
        assert (request.broker_id, request.broker_epoch) == (NODE_ID, 77)
        assert leader.leadership.committed_isr == {NODE_ID, 2, 3}
        assert leader.leadership.partition_epoch == 6 and leader.leadership.pending is None

    run(act)


def test_changes_during_a_request_are_one_request_later() -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        leaders = [Leader(stage, topic, index) for topic in ("flights", "ports") for index in (0, 1)]
        controller.before_answer = lambda: [leader.expand() for leader in leaders[1:]]
        leaders[0].expand()
        await stage.until(lambda: leaders[0].answers)
        controller.before_answer = lambda: None
        await stage.until(lambda: all(leader.answers for leader in leaders))
        names = [[(topic, index) for topic, index, *_ in changes] for changes in controller.changes]
        assert names == [[("flights", 0)], [("flights", 1), ("ports", 0), ("ports", 1)]]
        assert all(leader.leadership.committed_isr == {NODE_ID, 2, 3} for leader in leaders)

    run(act)


def test_many_changes_are_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_partition_sender, "MOST_PARTITIONS", 4)

    async def act(stage: Stage) -> None:
        leaders = [Leader(stage, index=index) for index in range(10)]
        for leader in leaders:
            leader.expand()
        controller, _ = await play(stage)
        await stage.until(lambda: all(leader.answers for leader in leaders))
        assert [len(changes) for changes in controller.changes] == [4, 4, 2]

    run(act)


@pytest.mark.parametrize(("most", "counts"), [(7, [2, 2, 1]), (1, [1] * 5)])
def test_changes_with_many_replicas_are_several_requests(monkeypatch: pytest.MonkeyPatch, most: int, counts: list[int]) -> None:
    monkeypatch.setattr(alter_partition_sender, "MOST_IN_SYNC_REPLICAS", most)

    async def act(stage: Stage) -> None:
        leaders = [Leader(stage, index=index) for index in range(5)]
        for leader in leaders:
            leader.expand()
        controller, _ = await play(stage)
        await stage.until(lambda: all(leader.answers for leader in leaders))
        assert [len(changes) for changes in controller.changes] == counts

    run(act)


def test_topic_without_an_id_is_named() -> None:
    async def act(stage: Stage) -> None:
        _, broker = await play(stage)
        leaders = [Leader(stage, "flights"), Leader(stage, "old", topic_id=ZERO_TOPIC_ID)]
        leaders[1].expand()
        leaders[0].expand()
        await stage.until(lambda: all(leader.answers for leader in leaders))
        assert [version for _, version in broker.asked] == [1]

    run(act)


def test_topic_without_an_id_that_comes_later_waits_for_its_own_request() -> None:
    async def act(stage: Stage) -> None:
        leaders = [Leader(stage, "flights"), Leader(stage, "old", topic_id=ZERO_TOPIC_ID)]
        for leader in leaders:
            leader.expand()
        _, broker = await play(stage)
        await stage.until(lambda: all(leader.answers for leader in leaders))
        assert [version for _, version in broker.asked] == [3, 1]

    run(act)


@pytest.mark.parametrize("error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None])
def test_request_that_is_refused_or_not_answered_is_sent_again_with_the_present_epoch(error: ErrorCode | None) -> None:
    async def act(stage: Stage) -> None:
        controller, broker = await play(stage)
        controller.errors = [error, error]
        controller.before_answer = lambda: setattr(stage, "broker_epoch", 78)
        leader = Leader(stage)
        leader.expand()
        await stage.until(lambda: leader.answers)
        requests = [request for request, _ in broker.asked if isinstance(request, AlterPartitionRequest)]
        assert [request.broker_epoch for request in requests] == [77, 78, 78]
        assert leader.leadership.committed_isr == {NODE_ID, 2, 3}

    run(act)


@pytest.mark.parametrize("error", NOT_RETRIED, ids=lambda error: error.name)
def test_change_of_unknown_outcome_stays_pending_until_newer_metadata(error: ErrorCode) -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        controller.partition_errors = [error]
        leader = Leader(stage)
        leader.expand()
        await stage.until(lambda: leader.answers)
        await stage.pass_time(1_000)
        assert len(controller.changes) == 1 and leader.leadership.pending is not None
        leader.lead(partition_epoch=6)
        assert leader.leadership.pending is None

    run(act)


@pytest.mark.parametrize("error", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA], ids=lambda error: error.name)
def test_change_that_was_not_applied_is_dropped(error: ErrorCode) -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        controller.partition_errors = [error]
        leader = Leader(stage)
        leader.shrink()
        await stage.until(lambda: leader.answers)
        assert leader.leadership.pending is None and leader.leadership.committed_isr == {NODE_ID, 2}

    run(act)


def test_other_errors_of_a_partition_are_tried_again_after_a_pause() -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        controller.partition_errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
        leader = Leader(stage)
        leader.shrink()
        await stage.until(lambda: leader.answers)
        assert len(controller.changes) == 1
        await stage.until(lambda: len(leader.answers) == 2)
        assert leader.leadership.committed_isr == {NODE_ID}

    run(act)


def test_refused_request_is_sent_again_ever_later_and_each_error_is_logged_once() -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        controller.errors = [*[ErrorCode.STALE_BROKER_EPOCH] * 7, None]
        times: list[int] = []
        controller.before_answer = lambda: times.append(stage.clock.monotonic_ms())
        leader = Leader(stage)
        with capture_logs() as lines:
            leader.expand()
            await stage.pass_time(10_000)
        assert leader.leadership.committed_isr == {NODE_ID, 2, 3}
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert pauses == pytest.approx([50, 100, 200, 400, 800, 1_000, 1_000, 1_000], abs=51)
        assert [line["errors"] for line in lines if "errors" in line] == [
            ["STALE_BROKER_EPOCH"],
            ["the response lacks a partition"],
        ]

    run(act)


def test_answer_that_makes_a_change_ends_the_long_pauses() -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        controller.errors = [ErrorCode.STALE_BROKER_EPOCH] * 5
        leader = Leader(stage)
        leader.expand()
        await stage.pass_time(5_000)
        assert leader.leadership.committed_isr == {NODE_ID, 2, 3}
        controller.errors = [ErrorCode.STALE_BROKER_EPOCH]
        times: list[int] = []
        controller.before_answer = lambda: times.append(stage.clock.monotonic_ms())
        other = Leader(stage, "trains")
        other.expand()
        await stage.pass_time(1_000)
        assert times[1] - times[0] <= 100

    run(act)


def test_controller_without_the_request_is_asked_seldom() -> None:
    async def act(stage: Stage) -> None:
        controller, broker = await play(stage)
        broker.versions[ALTER_PARTITION.key] = -1
        leader = Leader(stage)
        with capture_logs() as lines:
            leader.expand()
            await stage.pass_time(5_000)
        assert controller.changes == [] and leader.leadership.pending is not None
        assert [line["log_level"] for line in lines] == ["warning", "warning"]

    run(act)


NONSENSE = {
    "no partition": AlterPartitionResponse(topics=[AlterPartitionTopicResponse(topic_name="flights")]),
    "another topic": AlterPartitionResponse(
        topics=[AlterPartitionTopicResponse(topic_name="x", partitions=[AlterPartitionPartitionResponse()])]
    ),
    "another leader epoch": {"leader_epoch": 99},
    "an older partition epoch": {"partition_epoch": -1},
    "an unknown state": {"leader_recovery_state": 7},
    "an error that does not exist": {"error_code": 12_345},
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=list(NONSENSE))
def test_nonsense_changes_no_replicas(nonsense: Any, logged_faults: list[str]) -> None:
    async def act(stage: Stage) -> None:
        controller, broker = await play(stage)
        answer = broker.answer

        def answer_nonsense(request: Message, version: int) -> Message:
            if isinstance(nonsense, AlterPartitionResponse):
                return nonsense
            response: Any = answer(request, version)
            for name, value in nonsense.items():
                setattr(response.topics[0].partitions[0], name, value)
            return response

        broker.answer = answer_nonsense
        leader, other = Leader(stage), Leader(stage, "trains")
        leader.expand()
        await stage.pass_time(2_000)
        assert leader.leadership.committed_isr == {NODE_ID, 2} and leader.leadership.pending is not None
        broker.answer = answer
        other.expand()
        await stage.until(lambda: other.leadership.committed_isr == {NODE_ID, 2, 3})

    run(act)
    assert logged_faults == []


def test_lost_answer_is_asked_for_again() -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)

        def hang_up_once() -> None:
            controller.before_answer = lambda: None
            raise HangUp

        controller.before_answer = hang_up_once
        leader = Leader(stage)
        leader.expand()
        await stage.until(lambda: leader.answers)
        assert len(controller.changes) == 2 and controller.changes[0] == controller.changes[1]

    run(act)


def test_change_that_the_leader_gave_up_is_not_sent() -> None:
    async def act(stage: Stage) -> None:
        former, closed, other, offline = (Leader(stage, index=index) for index in range(4))
        for leader in (former, closed, other, offline):
            leader.expand()
        former.lead(partition_epoch=6)
        closed.partition.is_gone = True
        offline.partition.is_offline = True
        controller, _ = await play(stage)
        await stage.until(lambda: other.answers)
        assert [[index for _, index, *_ in changes] for changes in controller.changes] == [[2]]
        assert former.answers == closed.answers == offline.answers == []

    run(act)


def test_answer_to_an_older_change_does_not_end_a_newer_one() -> None:
    async def act(stage: Stage) -> None:
        controller, _ = await play(stage)
        leader = Leader(stage)

        def propose_another() -> None:
            controller.before_answer = lambda: None
            leader.lead(partition_epoch=8)
            leader.expand()

        controller.before_answer = propose_another
        leader.expand()
        await stage.until(lambda: leader.answers)
        assert [changes[0][4] for changes in controller.changes] == [5, 8]
        assert leader.leadership.partition_epoch == 9 and len(leader.answers) == 1

    run(act)
