"""Carries out a proposal: reassigns partitions, waits until the new replicas are in sync, and elects the preferred leaders.

How it works: AlterPartitionReassignments begins all moves. ListPartitionReassignments says which are not complete, and
DescribeLogDirs how many bytes their new replicas have. A reassignment that only reorders replicas is complete at once.

Rules of this file: an interruption cancels the moves that are not complete, so nothing goes on unseen. An outage of brokers is
waited for, up to `PATIENCE_SECONDS`.

Source: KIP-455; org.apache.kafka.tools.reassign.ReassignPartitionsCommand.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from wirekafka.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wirekafka.api.elect_leaders import ElectionType, ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from wirekafka.cli.cluster.balancing import Proposal
from wirekafka.cli.cluster.client import ClusterClient, request_type
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.snapshot import Broker, Snapshot, by_topic, error_text, in_batches, read_log_dirs, read_reassignments
from wirekafka.cli.cluster.throttling import throttle_settings, throttled
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition

ALTER_REASSIGNMENTS = request_type(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse)
ELECT_LEADERS = request_type(ElectLeadersRequest, ElectLeadersResponse)

PARTITIONS_AT_ONCE = 1_000
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
"""How long the cluster may not answer before the command gives up."""

ELECTED = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)

OnProgress = Callable[[int], object]
"""Takes the bytes that have been copied so far."""


@dataclass(slots=True)
class Reassigner:
    """Carries out one proposal.

    Attributes:
        snapshot: the cluster before.
        throttle_bytes_per_s: the rate limit of each broker; None for no limit.
        on_progress: is called about each second.
        sleep, monotonic: the clock.
    """

    client: ClusterClient
    snapshot: Snapshot
    proposal: Proposal
    throttle_bytes_per_s: int | None = None
    on_progress: OnProgress = lambda copied: None
    sleep: Callable[[float], object] = time.sleep
    monotonic: Callable[[], float] = time.monotonic

    def run(self) -> None:
        """Reassigns, and returns when all partitions have their new replicas in sync.

        Raises:
            ClusterCommandError: the controller refuses a move, the cluster does not answer, or the user has interrupted; then
                the moves that were not complete are cancelled.
        """
        before = {name: self.snapshot.partitions[name].replicas for name in self.proposal}
        rate = self.throttle_bytes_per_s
        live = [each.broker_id for each in self.snapshot.brokers.values() if each.is_registered]
        throttling = (
            nullcontext() if rate is None else throttled(self.client, throttle_settings(self.proposal, before, rate, live))
        )
        with _Interruption() as interruption, throttling:
            try:
                self._begin(dict(self.proposal))
                self._wait(interruption)
            except _StoppedError as error:
                cancelled = self._cancel()
                raise ClusterCommandError(
                    f"{error}: {cancelled:,} of {len(self.proposal):,} moves were cancelled, the others are complete"
                ) from None

    def elect(self) -> int:
        """Elects the preferred leaders of the partitions of the proposal; returns how many have them now.

        Raises:
            ClusterCommandError: no controller answers.
        """
        elected = 0
        for names in in_batches(self.proposal, PARTITIONS_AT_ONCE):
            request = ElectLeadersRequest(
                election_type=ElectionType.PREFERRED,
                topic_partitions=[TopicPartitions(topic=each, partitions=part) for each, part in by_topic(names).items()],
            )
            response = self.client.ask_controller(ELECT_LEADERS, request, _election_error)
            for topic in response.replica_election_results:
                elected += sum(each.error_code in ELECTED for each in topic.partition_result)
        return elected

    def _begin(self, targets: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
        """Asks for the replicas of partitions; None cancels.

        Raises:
            ClusterCommandError: no controller answers, or it refuses the request.
            _StoppedError: the controller refuses partitions; the others go on.
        """
        refusals = []
        for names in in_batches(targets, PARTITIONS_AT_ONCE):
            topics = [
                ReassignableTopic(
                    name=topic,
                    partitions=[_wish(index, targets[TopicPartition(topic, index)]) for index in indexes],
                )
                for topic, indexes in by_topic(names).items()
            ]
            request = AlterPartitionReassignmentsRequest(topics=topics)
            response = self.client.ask_controller(ALTER_REASSIGNMENTS, request, lambda response: response.error_code)
            if response.error_code:
                raise ClusterCommandError(
                    f"the controller refuses reassignments: {response.error_message or error_text(response.error_code)}"
                )
            for topic in response.responses:
                for part in topic.partitions:
                    if part.error_code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
                        reason = part.error_message or error_text(part.error_code)
                        refusals.append(f"{topic.name}-{part.partition_index}: {reason}")
        if refusals:
            raise _StoppedError(f"the controller refuses moves ({'; '.join(refusals[:3])})")

    def _wait(self, interruption: _Interruption) -> None:
        """Waits until no partition of the proposal is being reassigned.

        Raises:
            _StoppedError: the user has interrupted.
            ClusterCommandError: the cluster has not answered for `PATIENCE_SECONDS`.
        """
        answered_s = self.monotonic()
        while True:
            if interruption.has_come:
                raise _StoppedError("interrupted")
            try:
                waiting = read_reassignments(self.client).keys() & self.proposal.keys()
                self.on_progress(self._copied_bytes(waiting))
                answered_s = self.monotonic()
                if not waiting:
                    return
            except ClusterCommandError as error:
                if self.monotonic() - answered_s > PATIENCE_SECONDS:
                    raise ClusterCommandError(f"{error}; the reassignments go on: see wirekafka cluster describe") from None
            self.sleep(POLL_SECONDS)

    def _copied_bytes(self, waiting: Collection[TopicPartition]) -> int:
        """Returns the bytes of the new replicas; those of complete moves are whole."""
        copied, asked = 0, defaultdict(list)
        for name, after in self.proposal.items():
            for broker_id in set(after) - set(self.snapshot.partitions[name].replicas):
                if name in waiting:
                    asked[broker_id].append(name)
                else:
                    copied += self.snapshot.bytes_of(name) or 0
        for broker_id, names in asked.items():
            known = self.snapshot.brokers[broker_id]
            told = Broker(broker_id, known.host, known.port)
            read_log_dirs(self.client, told, names)
            copied += sum(min(told.replica_bytes.get(name, 0), self.snapshot.bytes_of(name) or 0) for name in names)
        return copied

    def _cancel(self) -> int:
        """Cancels the moves that are not complete; returns how many there were.

        Raises:
            ClusterCommandError: no controller answers, or it refuses to cancel.
        """
        waiting = [name for name in read_reassignments(self.client) if name in self.proposal]
        try:
            self._begin(dict.fromkeys(waiting))
        except _StoppedError as error:
            raise ClusterCommandError(f"moves could not be cancelled, {error}: see wirekafka cluster describe") from None
        return len(waiting)


def _election_error(response: ElectLeadersResponse) -> int:
    """Returns the error of the whole response; NOT_CONTROLLER also if a partition has it."""
    codes = {each.error_code for topic in response.replica_election_results for each in topic.partition_result}
    return ErrorCode.NOT_CONTROLLER if ErrorCode.NOT_CONTROLLER in codes else response.error_code


def _wish(index: int, replicas: tuple[int, ...] | None) -> ReassignablePartition:
    return ReassignablePartition(partition_index=index, replicas=None if replicas is None else [*replicas])


class _StoppedError(Exception):
    """The moves that are not complete are to be cancelled. The text says why."""


class _Interruption:
    """Notes ^C and SIGTERM for as long as the block lasts. No exception comes in the middle of a change of settings.

    Attributes:
        has_come: one of the signals has come.
    """

    def __init__(self) -> None:
        self.has_come = False

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.has_come = True
