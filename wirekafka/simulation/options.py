"""What a seed decides about a whole run."""

from __future__ import annotations

from dataclasses import dataclass, fields

from wirekafka.simulation.dice import Dice


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. Times are virtual; rates are probabilities of one message, operation or step.

    Attributes:
        broker_count, partition_count, producer_count, consumer_count: how much there is of each.
        min_insync_replicas: of the topic, whose replicas are on all brokers.
        duration_ms: how long there are clients and faults, before everything is healed.
        send_interval_ms: how long a producer pauses between its batches, on average.
        segment_bytes, index_interval_bytes: of the logs: small ones, so that they roll.
        flush_messages: 1 if every append is synced before it counts; None if only the operating system decides.
        sync_us: how long each sync stops a broker.
        fetch_wait_ms, fetch_max_bytes: of the fetches of followers and consumers.
        loss_rate, slow_rate: of messages.
        zookeeper_fault_rate: of operations of ZooKeeper whose connection breaks.
        fault_interval_ms: how long it takes on average until the next fault.
        stall_weight: how often connections stall, beside each kind of other faults.
        slice_rate: of appends of followers that are done in several slices.
        late_read_rate: of fetched regions that are read only after other things have happened.
        transactional_producer_count: how many producers have transactions.
        operation_weight: how often operators act, beside each kind of other faults.
    """

    broker_count: int
    partition_count: int
    min_insync_replicas: int
    producer_count: int
    consumer_count: int
    duration_ms: int
    send_interval_ms: int
    segment_bytes: int
    index_interval_bytes: int
    flush_messages: int | None
    flush_delay_ms: int
    checkpoint_interval_ms: int
    sync_us: int
    least_delay_us: int
    most_delay_us: int
    loss_rate: float
    slow_rate: float
    fetch_wait_ms: int
    fetch_max_bytes: int
    request_timeout_ms: int
    back_off_ms: int
    replica_lag_time_max_ms: int
    session_timeout_ms: int
    zookeeper_fault_rate: float
    fault_interval_ms: int
    stall_weight: int
    slice_rate: float
    late_read_rate: float
    transactional_producer_count: int
    operation_weight: int

    @classmethod
    def draw(cls, dice: Dice) -> Options:
        """Lets the dice decide."""
        return cls(
            broker_count=3,
            partition_count=dice.between(1, 2),
            min_insync_replicas=dice.choose((1, 2, 2)),
            producer_count=dice.between(1, 3),
            consumer_count=dice.between(1, 2),
            duration_ms=dice.between(3_000, 12_000),
            send_interval_ms=dice.choose((10, 30, 100)),
            segment_bytes=dice.choose((300, 1_000, 1 << 20)),
            index_interval_bytes=dice.choose((1, 200, 4096)),
            flush_messages=dice.choose((None, None, 1)),
            flush_delay_ms=dice.between(1, 200),
            checkpoint_interval_ms=dice.choose((50, 500, 5_000)),
            sync_us=dice.choose((0, 0, 500, 20_000)),
            least_delay_us=dice.choose((50, 500)),
            most_delay_us=dice.choose((1_000, 10_000, 50_000)),
            loss_rate=dice.choose((0, 0, 0.001, 0.01)),
            slow_rate=dice.choose((0, 0.001, 0.02)),
            fetch_wait_ms=dice.choose((20, 100, 300)),
            fetch_max_bytes=dice.choose((150, 1_000, 1 << 20)),
            request_timeout_ms=dice.choose((300, 1_000, 3_000)),
            back_off_ms=dice.choose((20, 100)),
            replica_lag_time_max_ms=dice.choose((200, 1_000, 3_000)),
            session_timeout_ms=dice.choose((600, 1_500, 3_000)),
            zookeeper_fault_rate=dice.choose((0, 0, 0.01, 0.05)),
            fault_interval_ms=dice.choose((100, 400, 1_500)),
            stall_weight=dice.choose((0, 1, 1, 12)),
            slice_rate=dice.choose((0, 0.3)),
            late_read_rate=dice.choose((0, 0.2)),
            transactional_producer_count=dice.between(0, 1),
            operation_weight=dice.choose((0, 1, 1, 3)),
        )

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
