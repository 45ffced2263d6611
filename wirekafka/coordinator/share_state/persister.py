"""Sends operations on the state of share partitions to the brokers that have the state.

How it works: the leader of the partition of __share_group_state that holds a share partition is its share coordinator. If that
is this broker, the operation is done at once, and ends when what it has written is committed. Otherwise it joins the next request
to that broker with the other operations of its kind and group.

Rules of this file:
    An operation is tried again while there is no coordinator, or the coordinator does not answer, until its deadline. So it may
    be applied twice; all operations may be repeated.
    An operation ends once.

Differs from Apache Kafka: an operation is tried again every half a second until its deadline. Apache Kafka tries five times, with
growing pauses.

Source: org.apache.kafka.server.share.persister.PersisterStateManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from wirekafka.coordinator.cluster import CoordinatorCluster, PeerQueue, PeerQueues
from wirekafka.coordinator.hashing import partition_for
from wirekafka.coordinator.share_state.coordinator import ShareCoordinator
from wirekafka.coordinator.share_state.operations import KINDS, Kind, Operation
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.names import SHARE_STATE_TOPIC, TopicPartition
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.clock import Clock
    from wirekafka.coordinator.reply_gate import ReplyGate
    from wirekafka.coordinator.share_state.batches import StateChange
    from wirekafka.replication.replica_fetcher import Channel

K = TypeVar("K")

RETRY_MS = 500
"""The pause before an operation is tried again."""

OPERATIONS_IN_REQUEST = 200
"""The most operations in one request: the coordinator appends a record for each."""

RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


@dataclass(slots=True)
class _Batch:
    """Operations of one kind on share partitions of one group, for one broker."""

    kind: Kind
    broker_id: int
    group_id: str
    operations: list[Operation] = field(default_factory=list)

    @property
    def place(self) -> tuple[str, int, str]:
        return self.kind.purpose, self.broker_id, self.group_id


class SharePersister:
    """Runs operations on the state of share partitions, wherever the state is.

    Args:
        coordinator: does the operations on the state that this broker has.
        gate: holds the results of these until they are committed.
    """

    def __init__(self, coordinator: ShareCoordinator, cluster: CoordinatorCluster, gate: ReplyGate, clock: Clock) -> None:
        self._coordinator = coordinator
        self._cluster = cluster
        self._gate = gate
        self._clock = clock
        self._queues: dict[str, PeerQueues[_Batch, Any, Any]] = {
            kind.purpose: cluster.open_queues(kind.purpose, partial(self._make_queue, kind)) for kind in KINDS
        }
        self._waiting: dict[tuple[str, int, str], _Batch] = {}
        """The batches that may still get operations."""

    def submit(
        self,
        kind: Kind,
        key: ShareKey,
        *,
        timeout_ms: int,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        start_offset: int | None = None,
        change: StateChange | None = None,
    ) -> Pending[Any]:
        """Begins an operation; see `Operation` for the arguments.

        Returns:
            A Pending of the result or of the KafkaError.
        """
        pending: Pending[Any] = Pending()
        deadline_ms = int(self._clock.monotonic_ms()) + timeout_ms
        self._route(Operation(kind, key, pending, deadline_ms, state_epoch, leader_epoch, start_offset, change))
        return pending

    def _route(self, operation: Operation) -> None:
        """Gives an operation to the coordinator of its share partition."""
        count = self._cluster.partition_count(SHARE_STATE_TOPIC)
        if count is None:
            self._cluster.create_topic(SHARE_STATE_TOPIC)
            self._end(operation, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{SHARE_STATE_TOPIC} is being created"))
            return
        try:
            broker_id = self._cluster.leader_of(TopicPartition(SHARE_STATE_TOPIC, partition_for(str(operation.key), count)))
        except KafkaError as error:
            self._end(operation, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message))
            return
        if broker_id == self._cluster.node_id:
            self._act(operation)
        else:
            self._send(broker_id, operation)

    def _act(self, operation: Operation) -> None:
        def act(*_: object) -> object:
            try:
                return operation.kind.act(self._coordinator, operation)
            except KafkaError as error:
                return error

        outcome = self._gate.handle(act, None, None)
        if isinstance(outcome, Pending):
            outcome.then(partial(self._end, operation))
        else:
            self._clock.call_later(0, lambda: self._end(operation, outcome))

    def _send(self, broker_id: int, operation: Operation) -> None:
        place = operation.kind.purpose, broker_id, operation.key.group_id
        batch = self._waiting.get(place)
        if batch is not None and len(batch.operations) < OPERATIONS_IN_REQUEST:
            batch.operations.append(operation)
            return
        batch = self._waiting[place] = _Batch(operation.kind, broker_id, operation.key.group_id, [operation])
        self._queues[operation.kind.purpose].put(broker_id, batch)

    def _make_queue(self, kind: Kind, channel: Channel) -> PeerQueue[_Batch, Any, Any]:
        return PeerQueue(
            channel,
            self._clock,
            kind.request_type,
            kind.version,
            most_items=1,
            build=self._build,
            take=self._take,
        )

    def _build(self, batches: list[_Batch]) -> Any:
        [batch] = batches
        self._close(batch)
        return batch.kind.request(batch.group_id, batch.operations)

    def _take(self, batches: list[_Batch], response: Any) -> None:
        for batch in batches:
            self._close(batch)
            results = {} if response is None else batch.kind.results(batch.group_id, response)
            missing = KafkaError(ErrorCode.NETWORK_EXCEPTION, "The share coordinator has not answered.")
            for operation in batch.operations:
                self._end(operation, results.get(operation.key, missing))

    def _close(self, batch: _Batch) -> None:
        if self._waiting.get(batch.place) is batch:
            del self._waiting[batch.place]

    def _end(self, operation: Operation, outcome: object) -> None:
        """Ends an operation with its outcome, or tries it again later."""
        may_succeed = isinstance(outcome, KafkaError) and outcome.code in RETRIED
        if may_succeed and self._clock.monotonic_ms() + RETRY_MS < operation.deadline_ms:
            self._clock.call_later(RETRY_MS, lambda: self._route(operation))
            return
        with isolate("The result of an operation on the state of a share group could not be handled", key=str(operation.key)):
            operation.pending.complete(outcome)


def gather(pending: Mapping[K, Pending[Any]]) -> Pending[dict[K, Any]]:
    """Returns a Pending of all results, by key."""
    results: dict[K, Any] = {}
    done: Pending[dict[K, Any]] = Pending()

    def note(key: K, result: Any) -> None:
        results[key] = result
        if len(results) == len(pending):
            done.complete(results)

    if not pending:
        done.complete(results)
    for key, each in pending.items():
        each.then(partial(note, key))
    return done
