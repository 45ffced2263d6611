"""The share coordinator of a cluster: what other brokers may do with the state of the share partitions that this broker has.

The broker that leads a partition of __share_group_state has the state of its share partitions. The group coordinator initializes
and deletes state, and the leader of the partition with the records reads and writes it (KIP-932).

Rules of this file:
    A leader of the records that has read the state fences the leaders before it, by their leader epoch.
    A new start offset fences the writes that were decided before it, by their state epoch.

Differs from Apache Kafka: a repeated initialization without a start offset, in the same state epoch, changes nothing. Apache
Kafka resets the state, which the group may have used since.

Source: org.apache.kafka.coordinator.share.ShareCoordinatorShard of Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

from wirekafka.coordinator.share_state.batches import StateBatch, StateChange
from wirekafka.coordinator.share_state.records import NO_COUNT, NO_OFFSET, ShareKey
from wirekafka.coordinator.share_state.state import ShareState
from wirekafka.coordinator.share_state.state_log import ShareStateLog
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import finish


class ReadState(NamedTuple):
    """The state of a share partition for the leader of its records; `start_offset` is None until the first fetch decides it."""

    state_epoch: int
    start_offset: int | None
    batches: list[StateBatch]


class Summary(NamedTuple):
    """The progress of a share partition; `start_offset` is None if there is none yet."""

    state_epoch: int
    leader_epoch: int
    start_offset: int | None
    delivery_complete_count: int | None


class ShareCoordinator:
    """The operations on the state of one share partition. Their results may be told once what they depend on is committed.

    Args:
        states: the stored states.
    """

    def __init__(self, states: ShareStateLog) -> None:
        self._states = states

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int | None) -> None:
        """Gives a share partition a state, or a new start offset.

        Raises:
            KafkaError: FENCED_STATE_EPOCH; the errors of `ShareStateLog.enter`; the error of the append.
        """
        self._states.enter(key)
        known = self._states.get(key)
        if known is not None:
            _check_state_epoch(known, state_epoch)
            if start_offset is None and known.state_epoch == state_epoch:
                return
        finish(self._states.initialize({key: start_offset}, state_epoch))

    def read(self, key: ShareKey, leader_epoch: int) -> ReadState:
        """Returns the state of a share partition to the leader of its records, and fences the leaders before it.

        Raises:
            KafkaError: INVALID_REQUEST, there is no state; FENCED_LEADER_EPOCH; the errors of `ShareStateLog.enter`; the error
                of the append.
        """
        state = self._find(key, "Read")
        _check_leader_epoch(state, leader_epoch)
        if leader_epoch > state.leader_epoch:
            start_offset = NO_OFFSET if state.start_offset is None else state.start_offset
            count = NO_COUNT if state.delivery_complete_count is None else state.delivery_complete_count
            self._states.write(key, StateChange(start_offset, count, []), leader_epoch)
            state = self._find(key, "Read")
        return ReadState(state.state_epoch, state.start_offset, state.batches)

    def write(self, key: ShareKey, state_epoch: int, leader_epoch: int, change: StateChange) -> None:
        """Stores a change that the leader of the records has decided.

        Raises:
            KafkaError: INVALID_REQUEST, there is no state; FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH; the errors of
                `ShareStateLog.enter`; the error of the append.
        """
        state = self._find(key, "Write")
        _check_leader_epoch(state, leader_epoch)
        _check_state_epoch(state, state_epoch)
        self._states.write(key, change, leader_epoch)

    def delete(self, key: ShareKey) -> None:
        """Deletes the state of a share partition, if it has one.

        Raises:
            KafkaError: the errors of `ShareStateLog.enter`; the error of the append.
        """
        self._states.enter(key)
        finish(self._states.delete([key]))

    def summarize(self, key: ShareKey) -> Summary:
        """Returns the progress of a share partition, also of one without state.

        Raises:
            KafkaError: the errors of `ShareStateLog.enter`.
        """
        self._states.enter(key)
        state = self._states.get(key)
        if state is None:
            return Summary(0, 0, None, None)
        return Summary(state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count)

    def _find(self, key: ShareKey, operation: str) -> ShareState:
        self._states.enter(key)
        state = self._states.get(key)
        if state is None:
            message = f"{operation} operation on uninitialized share partition not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return state


def _check_leader_epoch(state: ShareState, leader_epoch: int) -> None:
    if leader_epoch < state.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "The leader epoch in the request is older than the epoch on the broker.")


def _check_state_epoch(state: ShareState, state_epoch: int) -> None:
    if state_epoch < state.state_epoch:
        message = "The share coordinator rejected the request because the share-group state epoch did not match."
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, message)
