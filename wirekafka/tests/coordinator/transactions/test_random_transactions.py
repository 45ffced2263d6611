"""Random producers, crashes at every step, delays and failing disks against the coordinator, and the invariants in any case.

Each producer is an honest client of transactions v1 or v2: it follows the protocol, but takes each step at a random time, or
never; it repeats a request whose answer a crash has lost. Its records are committed if it was told so, not committed if it was
told so, and otherwise all of them or none. A request of transactions v2 may arrive again at any later time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wirekafka.coordinator.transactions.records import TransactionRecord
from wirekafka.coordinator.transactions.requests import InitRequest, Marker, ProducerIdentity
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.coordinator.transactions.transaction import (
    EXHAUSTED_EPOCH,
    PREPARED,
    TRANSITIONS,
    Transaction,
    TransactionState,
)
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.tests.coordinator.transactions.world import World

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
TIMEOUT_MS = 1000
RETRIABLE = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE}


class Crash(BaseException):
    """The broker crashes at this point; nothing may catch it as an error of background work."""


class FencedByLog(BaseException):
    """The partition has seen a higher epoch of this producer; no marker may meet it."""


@dataclass
class PartitionLog:
    """The transactional state of a partition's log."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        if epoch < self.epochs.get(producer_id, -1):
            raise FencedByLog
        self.epochs[producer_id] = epoch

    def end(self, marker: Marker) -> None:
        self.check_epoch(marker.producer_id, marker.producer_epoch)
        values = self.open.pop(marker.producer_id, [])
        (self.committed if marker.is_commit else self.aborted).extend(values)


class FragileWorld(World):
    """Crashes after this many effects, if given; the disk is full for some appends, partitions refuse some markers."""

    def __init__(self) -> None:
        super().__init__(TransactionSettings(transactional_id_expiration_ms=10**12))
        self.crash_after: int | None = None
        self.failing_appends = 0
        self.failing_markers = 0
        self.partitions = {partition: PartitionLog() for partition in PARTITIONS}

    def before_append(self, record: TransactionRecord) -> None:
        known = self.coordinator.transactions.get(record.transactional_id)
        if known is not None and record.value is not None:
            assert record.value.state in TRANSITIONS[known.state]
        self.is_disk_full = self.failing_appends > 0
        self.failing_appends = max(0, self.failing_appends - 1)
        super().before_append(record)

    def after_append(self, record: TransactionRecord) -> None:
        self._step()

    def take_marker(self, marker: Marker) -> bool:
        if self.failing_markers > 0:
            self.failing_markers -= 1
            return False
        assert super().take_marker(marker)
        self.partitions[marker.topic_partition].end(marker)
        self._step()
        return True

    def _step(self) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                raise Crash


@dataclass
class Writing:
    """One transaction of a producer: its records, and its outcome as the producer knows it."""

    values: list[int] = field(default_factory=list)
    is_committed: bool | None = None
    is_decided: bool = False


@dataclass(eq=False)
class Producer:
    transactional_id: str
    version: int
    identity: ProducerIdentity
    writing: Writing
    added: set[TopicPartition] = field(default_factory=set)
    is_ending: bool | None = None
    is_dead: bool = False


ids = st.sampled_from(["x", "y"])
partitions_of_t = st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = FragileWorld()
        self.producers: dict[str, Producer] = {}
        self.zombies: list[Producer] = []
        self.writings: list[Writing] = []
        self.sent: list[Callable[[], object]] = []
        self.next_value = 0

    def attempt(self, request: Callable[[], object]) -> ErrorCode | None:
        """Sends a request; None if it succeeds, UNKNOWN_SERVER_ERROR if the broker crashes before it can answer."""
        try:
            request()
        except KafkaError as error:
            return error.code
        except FencedByLog:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        except Crash:
            self.world.reload()
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return None

    def alive(self, transactional_id: str) -> Producer | None:
        """Returns the producer that has the id; starts one and returns None if there is none."""
        producer = self.producers.get(transactional_id)
        if producer is None or producer.is_dead:
            self.start(transactional_id, 2 if len(self.writings) % 3 else 0)
            return None
        return producer

    @rule(transactional_id=ids, version=st.sampled_from([0, 2]))
    def start(self, transactional_id: str, version: int) -> None:
        world, found = self.world, []
        request = InitRequest(transactional_id, TIMEOUT_MS)
        if self.attempt(lambda: found.append(world.run(world.coordinator.init_producer_id(request, world.now_ms)))) is None:
            if transactional_id in self.producers:
                self.zombies.append(self.producers[transactional_id])
            self.producers[transactional_id] = Producer(transactional_id, version, found[0], self.new_writing())

    @rule(transactional_id=ids)
    def go_on_after_an_error(self, transactional_id: str) -> None:
        producer = self.alive(transactional_id)
        if producer is None or producer.is_ending is not None:
            return
        world, found = self.world, []
        request = InitRequest(producer.transactional_id, TIMEOUT_MS, producer.identity)
        error = self.attempt(lambda: found.append(world.run(world.coordinator.init_producer_id(request, world.now_ms))))
        if error is None:
            producer.identity = found[0]
            self.give_up(producer)
        elif error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            producer.is_dead = True
        elif error in RETRIABLE or error is ErrorCode.UNKNOWN_SERVER_ERROR:
            # Its transaction may have been aborted; the producer does not write to it any more.
            self.give_up(producer)

    @rule(transactional_id=ids, partitions=partitions_of_t)
    def write(self, transactional_id: str, partitions: list[TopicPartition]) -> None:
        producer = self.alive(transactional_id)
        if producer is None:
            return
        for partition in partitions:
            if not producer.is_dead and producer.is_ending is None:
                self.write_one(producer, partition)

    def write_one(self, producer: Producer, partition: TopicPartition) -> None:
        value = self.next_value = self.next_value + 1
        identity = producer.identity
        error = self.attempt(lambda: self.produce(producer, identity, partition, value))
        if producer.version:
            self.sent.append(lambda: self.produce(producer, identity, partition, value))
        if error is None:
            producer.writing.values.append(value)
        elif error not in RETRIABLE and error is not ErrorCode.UNKNOWN_SERVER_ERROR:
            producer.is_dead = True

    def produce(self, producer: Producer, identity: ProducerIdentity, partition: TopicPartition, value: int) -> None:
        """Sends AddPartitionsToTxn if the client uses transactions v1, and Produce without records."""
        world, log, transactional_id = self.world, self.world.partitions[partition], producer.transactional_id
        if not producer.version and partition not in producer.added:
            self.add(transactional_id, identity, partition, 0)
            producer.added.add(partition)
        epoch = log.epochs.get(identity.producer_id, -1)
        if identity.producer_epoch < epoch:
            raise FencedByLog
        if identity.producer_id not in log.open or identity.producer_epoch != epoch:
            if producer.version:
                self.add(transactional_id, identity, partition, producer.version)
            else:
                errors = world.coordinator.verify_partitions(transactional_id, identity, frozenset({partition}))
                assert not errors
        log.check_epoch(identity.producer_id, identity.producer_epoch)
        values = log.open.setdefault(identity.producer_id, [])
        # The log recognises a repeated batch by its sequence number.
        if value not in values:
            values.append(value)

    def add(self, transactional_id: str, identity: ProducerIdentity, partition: TopicPartition, version: int) -> None:
        world = self.world
        world.run(
            world.coordinator.add_partitions(
                transactional_id, identity, frozenset({partition}), client_version=version, now_ms=world.now_ms
            )
        )

    @rule(transactional_id=ids, is_commit=st.booleans())
    def end(self, transactional_id: str, is_commit: bool) -> None:
        producer = self.alive(transactional_id)
        if producer is None:
            return
        if producer.is_ending is None:
            producer.is_ending = is_commit
        is_commit = producer.is_ending
        identity, found = producer.identity, []
        error = self.attempt(lambda: found.append(self.ask_to_end(producer, identity, is_commit)))
        if producer.version:
            self.sent.append(lambda: self.ask_to_end(producer, identity, is_commit))
        if error is None:
            producer.identity = found[0]
            producer.writing.is_decided, producer.writing.is_committed = True, is_commit
            producer.is_ending = None
            self.give_up(producer)
        elif error is ErrorCode.INVALID_TXN_STATE:
            # No transaction was open, or the coordinator has aborted it.
            producer.is_ending = None
            self.give_up(producer)
            if producer.version:
                producer.is_dead = True
        elif error not in RETRIABLE and error is not ErrorCode.UNKNOWN_SERVER_ERROR:
            producer.is_dead = True

    @rule(transactional_id=ids, partitions=partitions_of_t, is_commit=st.booleans())
    def transact(self, transactional_id: str, partitions: list[TopicPartition], is_commit: bool) -> None:
        self.write(transactional_id, partitions)
        self.end(transactional_id, is_commit)

    def ask_to_end(self, producer: Producer, identity: ProducerIdentity, is_commit: bool) -> ProducerIdentity:
        world = self.world
        return world.run(
            world.coordinator.end(
                producer.transactional_id, identity, is_commit=is_commit, client_version=producer.version, now_ms=world.now_ms
            )
        )

    @rule(number=st.integers(0, 100))
    def arrive_again(self, number: int) -> None:
        if self.sent:
            self.attempt(self.sent[number % len(self.sent)])

    @rule(after=st.integers(0, 5))
    def crash_soon(self, after: int) -> None:
        self.world.crash_after = after

    @rule(appends=st.integers(0, 2), markers=st.integers(0, 3))
    def fail(self, appends: int, markers: int) -> None:
        self.world.failing_appends, self.world.failing_markers = appends, markers

    @rule(ms=st.sampled_from([10, TIMEOUT_MS + 1]))
    def pass_time(self, ms: int) -> None:
        self.world.now_ms += ms
        self.attempt(self.world.retry)
        self.attempt(self.world.abort_timed_out)

    @rule(transactional_id=ids)
    def use_up_epochs(self, transactional_id: str) -> None:
        producer = self.alive(transactional_id)
        known = self.world.coordinator.transactions.get(transactional_id)
        if producer is None or known is None or known.state in PREPARED or self.world.failing_appends:
            return
        if producer.is_ending is None and producer.identity == (known.producer_id, known.producer_epoch):
            self.attempt(lambda: self.world.set_epoch(transactional_id, EXHAUSTED_EPOCH))
            known = self.world.coordinator.transactions[transactional_id]
            producer.identity = ProducerIdentity(known.producer_id, known.producer_epoch)

    @rule(number=st.integers(0, 20), is_commit=st.booleans(), partition=st.sampled_from(PARTITIONS))
    def a_fenced_producer_stays_fenced(self, number: int, is_commit: bool, partition: TopicPartition) -> None:
        if not self.zombies:
            return
        zombie = self.zombies[number % len(self.zombies)]
        assert self.attempt(lambda: self.ask_to_end(zombie, zombie.identity, is_commit)) is not None
        assert self.attempt(lambda: self.add(zombie.transactional_id, zombie.identity, partition, zombie.version)) is not None
        request = InitRequest(zombie.transactional_id, TIMEOUT_MS, zombie.identity)
        world = self.world
        known = world.coordinator.transactions[zombie.transactional_id]
        if known.state is not TransactionState.ONGOING:
            # An open transaction is identified by its transactional id only, and aborted, as in Apache Kafka.
            assert self.attempt(lambda: world.run(world.coordinator.init_producer_id(request, world.now_ms))) is not None

    def new_writing(self) -> Writing:
        writing = Writing()
        self.writings.append(writing)
        return writing

    def give_up(self, producer: Producer) -> None:
        """Later writes of the producer belong to its next transaction."""
        producer.writing = self.new_writing()
        producer.added.clear()

    @invariant()
    def replay_of_the_log_gives_the_same_state(self) -> None:
        live = self.world.coordinator
        copy = self.world.reloaded_copy(broken=set(PARTITIONS))
        assert self.as_written(copy.coordinator.transactions) == self.as_written(live.transactions)
        assert set(copy.coordinator.prepared) == set(live.prepared)

    def as_written(self, transactions: dict[str, Transaction]) -> dict[str, Transaction]:
        return {name: replace(known, last_producer_epoch=None) for name, known in transactions.items()}

    @invariant()
    def nothing_is_both_committed_and_aborted_or_twice(self) -> None:
        for log in self.world.partitions.values():
            values = [*log.committed, *log.aborted, *(value for open_ in log.open.values() for value in open_)]
            assert len(values) == len(set(values))

    def teardown(self) -> None:
        world = self.world
        world.crash_after, world.failing_appends, world.failing_markers = None, 0, 0
        world.retry()
        world.now_ms += TIMEOUT_MS + 1
        world.abort_timed_out()
        assert not world.coordinator.prepared
        assert not any(log.open for log in world.partitions.values()), "a transaction hangs"
        committed = {value for log in world.partitions.values() for value in log.committed}
        for writing in self.writings:
            found = committed & set(writing.values)
            if writing.is_decided:
                assert found == (set(writing.values) if writing.is_committed else set())
            else:
                assert found in (set(), set(writing.values))


Transactions.TestCase.settings = settings(max_examples=200, stateful_step_count=60, derandomize=True)
TestRandomTransactions = Transactions.TestCase


class ChangingLevels(Transactions):
    """The same test while transaction.version changes; clients learn of a change late or never."""

    @rule(level=st.sampled_from([0, 1, 2]))
    def set_level(self, level: int) -> None:
        self.world.level = level

    def as_written(self, transactions: dict[str, Transaction]) -> dict[str, Transaction]:
        """Removes the fields that records of version 0 do not have."""
        return {
            name: replace(known, last_producer_epoch=None, previous_producer_id=None, next_producer_id=None, client_version=0)
            for name, known in transactions.items()
        }


ChangingLevels.TestCase.settings = Transactions.TestCase.settings
TestChangingLevels = ChangingLevels.TestCase
