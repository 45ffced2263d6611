"""Proposes changes of in-sync replicas to the controller, by AlterPartition.

How it works: the changes of all partitions wait in one table. One request is in flight; it takes the changes that wait at the
moment when it is sent, or sent again. The answers go to the leaders of the partitions. A change without an answer, because the
controller did not name the partition or refused the whole request, stays in the table, and is sent again after a pause.

Rules of this file:
    A partition has one change in the table, the newest. Before a request is built, changes whose leaders no longer wait for them
    are dropped.
    A request is sent until a controller answers it, because the leader must not take back a change whose outcome is unknown.
    After an error the next request waits for `RETRY_BACK_OFF_MS`, because the leader may propose the same change again. The wait
    doubles with each response in a row that makes no change, up to `MOST_BACK_OFF_MS`. The first of these responses is logged,
    and each one whose error is another than that of the one before.
    A request has at most `MOST_PARTITIONS` partitions, so that neither it nor its answer holds the loop. With more than
    `MOST_IN_SYNC_REPLICAS` replicas it has fewer partitions: the controller refuses requests of more than 250,000 elements.

Differs from Apache Kafka:
    A newer change of a partition replaces one that has not been answered. Apache Kafka refuses it with OPERATION_NOT_ATTEMPTED,
    and the leader proposes it again at the next fetch or check.
    Apache Kafka sends a refused request again each 50 ms, and logs each refusal.

Source: kafka.server.AlterPartitionManager (DefaultAlterPartitionManager), kafka.cluster.Partition.submitAlterPartition; KIP-497.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import structlog

from wirekafka.errors import ErrorCode
from wirekafka.faults import isolate
from wirekafka.membership.controller_channel import ControllerChannel
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.replication.leadership import IsrChange, IsrChanged, IsrChangeFailed
from wirekafka.replication.replica_fetcher import Timers
from wirekafka.wire.messages.alter_partition import (
    ALTER_PARTITION,
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)

if TYPE_CHECKING:
    from wirekafka.replication.leader_replica import LeaderReplica

log = structlog.get_logger(__name__)

RETRY_BACK_OFF_MS = 50
MOST_BACK_OFF_MS = 1_000
NO_RESPONSE = "the controller does not serve it"
NO_ANSWER = "the response lacks a partition"
MOST_PARTITIONS = 1_000
MOST_IN_SYNC_REPLICAS = 100_000
FIRST_VERSION_WITH_TOPIC_IDS = 2
FIRST_VERSION_WITH_BROKER_EPOCHS = 3
NEWEST_VERSION_WITH_NAMES = FIRST_VERSION_WITH_TOPIC_IDS - 1
LEADER_RECOVERY_STATES = frozenset({0, 1})
"""RECOVERED and RECOVERING. Source: org.apache.kafka.metadata.LeaderRecoveryState."""
UNKNOWN_BROKER_EPOCH = -1


class _Proposed(NamedTuple):
    """A change that the controller has not answered, and its leader."""

    leader: LeaderReplica
    change: IsrChange

    @property
    def is_current(self) -> bool:
        """Whether the leader still waits for the answer. A leader whose directory has failed does not lead any more."""
        partition = self.leader.partition
        return self.leader.leadership.pending is self.change and not (partition.is_gone or partition.is_offline)

    @property
    def has_topic_id(self) -> bool:
        """Whether the controller knows the topic by an id."""
        return self.leader.partition.topic_id != ZERO_TOPIC_ID


_Key = tuple[str, int]
"""A topic and the index of a partition."""

_Answers = dict[_Key, AlterPartitionPartitionResponse]


class AlterPartitionSender:
    """Sends the changes of all partitions that this broker leads.

    Args:
        channel: a channel for these requests only, without a retry timeout.
        broker_epoch: returns the epoch of this broker's registration; -1 while it is not registered.
    """

    def __init__(self, channel: ControllerChannel, timers: Timers, *, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._timers = timers
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._proposed: dict[_Key, _Proposed] = {}
        self._in_flight: dict[_Key, _Proposed] = {}
        """The changes in the last request that was built."""
        self._is_sending = False
        self._back_off_ms = RETRY_BACK_OFF_MS
        self._failures: frozenset[str] = frozenset()
        """Why the last response did not make all changes."""

    def propose(self, leader: LeaderReplica, change: IsrChange) -> None:
        """Sends a change, and passes the answer to `leader.take_answer` later; it is a `leader_replica.Propose`."""
        self._proposed[leader.partition.topic, leader.partition.index] = _Proposed(leader, change)
        self._send()

    def _send(self) -> None:
        if self._is_sending:
            return
        self._drop_obsolete()
        if not self._proposed:
            return
        self._is_sending = True
        has_ids = all(proposed.has_topic_id for proposed in self._proposed.values())
        most_version = None if has_ids else NEWEST_VERSION_WITH_NAMES
        self._channel.send(ALTER_PARTITION, self._build, self._take_response, most_version=most_version)

    def _drop_obsolete(self) -> None:
        for key in [key for key, proposed in self._proposed.items() if not proposed.is_current]:
            del self._proposed[key]

    def _build(self, version: int) -> AlterPartitionRequest:
        """Returns a request for the changes that wait now."""
        self._drop_obsolete()
        # A topic without an id may have been added after the request of a version with ids was sent the first time.
        sendable = (
            (key, proposed)
            for key, proposed in self._proposed.items()
            if version < FIRST_VERSION_WITH_TOPIC_IDS or proposed.has_topic_id
        )
        self._in_flight = dict(_few(sendable))
        topics: dict[str, AlterPartitionTopic] = {}
        for (name, index), proposed in self._in_flight.items():
            topic = topics.get(name)
            if topic is None:
                topic_id = proposed.leader.partition.topic_id
                topic = topics[name] = AlterPartitionTopic(topic_name=name, topic_id=topic_id, partitions=[])
            topic.partitions.append(_partition_of(index, proposed.change, version))
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=list(topics.values()),
        )

    def _take_response(self, response: AlterPartitionResponse | None) -> None:
        if response is None or response.error_code != ErrorCode.NONE:
            self._back_off({NO_RESPONSE if response is None else ErrorCode.of(response.error_code).name})
            return
        in_flight, self._in_flight = self._in_flight, {}
        failures = self._pass_answers(in_flight, _answers_in(response, in_flight))
        if len(failures) < len(in_flight) or not in_flight:
            self._back_off_ms = RETRY_BACK_OFF_MS
        if failures:
            self._back_off({*failures.values()})
        else:
            self._failures = frozenset()
            self._send_again()

    def _back_off(self, failures: set[str]) -> None:
        """Sends the changes again later."""
        if failures != self._failures:
            self._failures = frozenset(failures)
            log.warning("The controller refused changes of in-sync replicas; they are sent again", errors=sorted(failures))
        self._timers.call_later(self._back_off_ms, self._send_again)
        self._back_off_ms = min(2 * self._back_off_ms, MOST_BACK_OFF_MS)

    def _send_again(self) -> None:
        self._is_sending = False
        self._send()

    def _pass_answers(self, in_flight: dict[_Key, _Proposed], answers: _Answers) -> dict[_Key, str]:
        """Passes the answers to the leaders, which may propose more; returns the errors of the changes that were not made."""
        failures: dict[_Key, str] = {}
        for key, proposed in in_flight.items():
            answer = answers.get(key)
            if answer is None:
                failures[key] = NO_ANSWER
                continue
            event = _event_of(proposed.change, answer)
            if isinstance(event, IsrChangeFailed):
                failures[key] = event.error.name
            if self._proposed.get(key) is proposed:
                del self._proposed[key]
            if proposed.is_current:
                with isolate("The answer to a change of in-sync replicas could not be handled", partition=f"{key[0]}-{key[1]}"):
                    proposed.leader.take_answer(event)
        return failures


def _few(changes: Iterable[tuple[_Key, _Proposed]]) -> Iterator[tuple[_Key, _Proposed]]:
    """Yields as many of the first changes as one request may have, at least one."""
    replica_count = 0
    for number, (key, proposed) in enumerate(islice(changes, MOST_PARTITIONS)):
        replica_count += len(proposed.change.in_sync_replicas)
        if number and replica_count > MOST_IN_SYNC_REPLICAS:
            return
        yield key, proposed


def _partition_of(index: int, change: IsrChange, version: int) -> AlterPartitionPartition:
    partition = AlterPartitionPartition(
        partition_index=index, leader_epoch=change.leader_epoch, partition_epoch=change.partition_epoch
    )
    if version < FIRST_VERSION_WITH_BROKER_EPOCHS:
        partition.new_isr = [broker_id for broker_id, _ in change.in_sync_replicas]
    else:
        partition.new_isr_with_epochs = [
            BrokerState(broker_id=broker_id, broker_epoch=UNKNOWN_BROKER_EPOCH if epoch is None else epoch)
            for broker_id, epoch in change.in_sync_replicas
        ]
    return partition


def _answers_in(
    response: AlterPartitionResponse, in_flight: dict[_Key, _Proposed]
) -> dict[_Key, AlterPartitionPartitionResponse]:
    """Returns the answers by partition. A response has names before version 2, and topic ids since then."""
    names = {proposed.leader.partition.topic_id: key[0] for key, proposed in in_flight.items()}
    return {
        (topic.topic_name or names.get(topic.topic_id, ""), partition.partition_index): partition
        for topic in response.topics
        for partition in topic.partitions
    }


def _event_of(change: IsrChange, answer: AlterPartitionPartitionResponse) -> IsrChanged | IsrChangeFailed:
    """Returns what an answer means for the leader."""
    if answer.error_code != ErrorCode.NONE:
        return IsrChangeFailed(change, ErrorCode.of(answer.error_code))
    if answer.leader_recovery_state not in LEADER_RECOVERY_STATES:
        return IsrChangeFailed(change, ErrorCode.UNKNOWN_SERVER_ERROR)
    return IsrChanged(change, answer.leader_epoch, answer.partition_epoch, tuple(answer.isr))
