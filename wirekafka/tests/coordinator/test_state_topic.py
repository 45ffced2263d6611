"""The executor of coordinator state, with a list of words as the coordinator's state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.coordinator.state_topic import COMMIT_TIMEOUT_MS, RECORDS_IN_SLICE, WAITS_AT_ONCE, StateTopic, chunk_sizes
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.names import GROUP_METADATA_TOPIC
from wirekafka.replication.partition import Partition
from wirekafka.replication.purgatory import Purgatory
from wirekafka.replication.replica_manager import HostedTopics
from wirekafka.testing.memory_topics import MemoryTopics
from wirekafka.tests.coordinator.manual_clock import ManualClock


class Words:
    """A state machine: the words of each partition, in the order of the log."""

    def __init__(self) -> None:
        self.by_partition: dict[int, list[str]] = {}
        self.events: list[str] = []

    def encode(self, record: str) -> tuple[bytes, bytes | None]:
        return record.encode(), record.encode()

    def decode(self, key: bytes | None, value: bytes | None) -> str | None:
        word = (key or b"").decode()
        if word == "damaged":
            raise ProtocolError("damaged")
        return None if word == "unknown" else word

    def replay(self, index: int, record: str, offset: int, producer_id: int | None) -> None:
        if record == "surprise":
            raise ZeroDivisionError
        self.by_partition.setdefault(index, []).append(record)

    def on_loaded(self, index: int) -> Iterator[None]:
        self.events.append(f"loaded {index}")
        return iter(())

    def unload(self, index: int) -> Iterator[None]:
        self.by_partition.pop(index, None)
        self.events.append(f"unloaded {index}")
        return iter(())


class Stage:
    def __init__(self, topics: MemoryTopics | None = None) -> None:
        self.topics = topics or MemoryTopics(2)
        self.clock = ManualClock(0)
        self.words = Words()
        self.purgatory = Purgatory(cast(Clock, self.clock))
        self.gate = ReplyGate(self.purgatory)
        self.state = StateTopic(
            GROUP_METADATA_TOPIC,
            "words",
            self.words,
            cast(Clock, self.clock),
            cast(HostedTopics, self.topics),
            self.gate,
            partition_count=2,
        )

    def partition(self, index: int = 0) -> Any:
        topic = self.topics.topic
        assert topic is not None
        return topic.partitions[index]

    def elect(self, index: int, epoch: int) -> None:
        self.state.elect(self.partition(index), epoch)

    def elect_and_load(self, index: int, epoch: int) -> None:
        self.elect(index, epoch)
        self.clock.pass_time(10)

    def append(self, *words: str, index: int = 0, **settings: Any) -> ErrorCode | None:
        try:
            self.state.append(index, words, **settings)
        except KafkaError as error:
            return error.code
        return None

    def refusal(self, index: int = 0) -> ErrorCode | None:
        try:
            self.state.enter(index)
        except KafkaError as error:
            return error.code
        return None


@pytest.mark.parametrize("limit_bytes", [100, 200, 1000, 1 << 20])
def test_chunks_hold_as_many_records_as_fit_and_at_least_one(limit_bytes: int) -> None:
    pairs = [(b"k" * (number % 40), b"v" * (number * 7 % 300)) for number in range(3000)]
    sizes = chunk_sizes(pairs, limit_bytes)
    assert sum(sizes) == len(pairs)
    assert all(1 <= size <= 1000 for size in sizes)
    rest = iter(pairs)
    for size in sizes:
        size_bytes = 61 + sum(21 + len(key) + len(value) for key, value in islice(rest, size))
        assert size_bytes <= limit_bytes or size == 1


def test_records_that_need_not_stay_together_are_appended_in_batches_that_the_topic_takes() -> None:
    stage = Stage()
    stage.topics.disk.max_message_bytes = 1000
    words = [f"{number:0200}" for number in range(50)]
    assert stage.append(*words, is_atomic=False) is None
    assert stage.words.by_partition[0] == words
    assert len(stage.partition().log.appended) > 10


def test_segment_size_bounds_a_batch_too() -> None:
    stage = Stage()
    stage.topics.disk.segment_bytes = 1000
    assert stage.append(*[f"{number:0200}" for number in range(50)], is_atomic=False) is None
    assert max(map(len, stage.partition().log.appended)) <= 1000


def test_record_that_is_too_large_costs_only_itself() -> None:
    stage = Stage()
    stage.topics.disk.max_message_bytes = 1000
    assert stage.append("a", "x" * 2000, "b", is_atomic=False) is ErrorCode.MESSAGE_TOO_LARGE
    assert stage.words.by_partition[0] == ["a", "b"]


def test_step_that_must_stay_together_and_is_too_large_changes_nothing() -> None:
    stage = Stage()
    stage.topics.disk.max_message_bytes = 1000
    assert stage.append("a", "x" * 2000, "b") is ErrorCode.MESSAGE_TOO_LARGE
    assert stage.words.by_partition == {}


def test_failing_disk_ends_the_chunks() -> None:
    stage = Stage()
    stage.append("first")
    stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
    with capture_logs() as lines:
        assert stage.append(*map(str, range(5000)), is_atomic=False) is ErrorCode.KAFKA_STORAGE_ERROR
        assert stage.append("again") is ErrorCode.KAFKA_STORAGE_ERROR
        stage.topics.error = None
        assert stage.append("again") is None
    assert stage.words.by_partition[0] == ["first", "again"]
    assert [line["event"] for line in lines] == ["State cannot be stored", "State can be stored again"]


def test_partition_is_loaded_in_slices_and_says_so_meanwhile() -> None:
    first = Stage()
    words = [str(number) for number in range(3 * RECORDS_IN_SLICE)]
    for word in words:
        first.append(word)
    stage = Stage(first.topics)
    stage.elect(0, 5)
    stage.words.events.clear()
    loaded_counts = []
    while stage.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        assert stage.words.events == []
        loaded_counts.append(len(stage.words.by_partition.get(0, ())))
        stage.clock.pass_time(1)
    assert stage.refusal() is None
    assert stage.words.by_partition == {0: words}
    assert stage.words.events == ["loaded 0"]
    assert max(after - before for before, after in pairwise([*loaded_counts, len(words)])) == RECORDS_IN_SLICE


def test_resigned_partition_forgets_and_another_one_stays() -> None:
    stage = Stage()
    stage.append("a")
    stage.append("b", index=1)
    stage.state.load_all()
    stage.state.resign(0, 7)
    assert (stage.refusal(0), stage.refusal(1)) == (ErrorCode.NOT_COORDINATOR, None)
    assert 0 not in stage.words.by_partition
    assert "b" in stage.words.by_partition[1]
    assert not stage.state.is_available(0)


def test_load_and_unload_of_an_older_epoch_are_ignored() -> None:
    stage = Stage()
    stage.append("a")
    stage.elect(0, 5)
    stage.clock.pass_time(10)
    stage.words.events.clear()
    stage.state.resign(0, 4)
    stage.elect(0, 5)
    assert stage.words.events == []
    stage.state.resign(0, 6)
    stage.elect(0, 6)
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    stage.elect(0, 7)
    stage.clock.pass_time(10)
    assert stage.refusal() is None
    assert stage.words.events == ["unloaded 0", "unloaded 0", "loaded 0"]


def test_loading_that_is_overtaken_by_a_resignation_stops() -> None:
    first = Stage()
    for number in range(3 * RECORDS_IN_SLICE):
        first.append(str(number))
    stage = Stage(first.topics)
    stage.elect(0, 1)
    stage.state.resign(0, 2)
    stage.clock.pass_time(100)
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    assert stage.words.events == ["unloaded 0"] * 2


def test_partition_that_was_offline_at_the_start_is_not_available() -> None:
    first = Stage()
    first.append("a")
    first.partition().log.offline_reason = "a test"
    stage = Stage(first.topics)
    stage.state.load_all()
    assert (stage.refusal(0), stage.refusal(1)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)


@pytest.mark.parametrize("word", ["damaged", "unknown", "surprise"])
def test_record_that_cannot_be_replayed_costs_only_itself(word: str) -> None:
    first = Stage()
    for each in ("a", word, "b"):
        first.append(each, is_replayed=False)
    stage = Stage(first.topics)
    with capture_logs() as lines:
        stage.state.load_all()
    assert stage.words.by_partition == {0: ["a", "b"]}
    assert len(lines) == 1


def test_reply_is_held_until_the_end_of_the_log_of_its_moment_is_committed() -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    told: list[object] = []
    stage.append("a")
    stage.state.on_commit(0, told.append)
    stage.append("b")
    partition = stage.partition()
    assert told == []
    partition.advance_high_watermark(1)
    assert told == [None]


def test_reply_that_waits_too_long_for_a_commit_is_refused_and_the_coordinator_stays() -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    told: list[object] = []
    stage.append("a")
    stage.state.await_commit(0, told.append)
    stage.clock.pass_time(COMMIT_TIMEOUT_MS - 1)
    stage.append("b")
    stage.state.await_commit(0, told.append)
    assert told == []
    stage.clock.pass_time(1)
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    stage.clock.pass_time(COMMIT_TIMEOUT_MS)
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    stage.partition().advance_high_watermark(2)
    assert len(told) == 2
    assert stage.refusal() is None


def test_reply_whose_state_is_committed_in_time_is_not_refused_later() -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    told: list[object] = []
    stage.append("a")
    stage.state.await_commit(0, told.append)
    stage.partition().advance_high_watermark(1)
    stage.clock.pass_time(2 * COMMIT_TIMEOUT_MS)
    assert told == [None]


def test_many_overdue_replies_are_refused_in_several_turns() -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    told: list[object] = []
    stage.append("a")
    for _ in range(2 * WAITS_AT_ONCE):
        stage.state.await_commit(0, told.append)
    stage.clock.pass_time(COMMIT_TIMEOUT_MS)
    assert len(told) == WAITS_AT_ONCE
    stage.clock.pass_time(10)
    assert len(told) == 2 * WAITS_AT_ONCE


@pytest.mark.parametrize("is_held_again", [False, True])
def test_gate_refuses_a_request_whose_state_is_not_committed_in_time(is_held_again: bool) -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    done: list[str] = []

    def handle(broker: object, call: object) -> str:
        try:
            stage.state.enter(0)
        except KafkaError as error:
            return error.code.name
        done.append("once")
        return "done"

    stage.append("before")
    pending = stage.gate.handle(handle, None, None)
    told: list[object] = []
    pending.then(told.append)
    stage.clock.pass_time(COMMIT_TIMEOUT_MS)
    assert (told, done) == (["COORDINATOR_LOAD_IN_PROGRESS"], ["once"])
    if is_held_again:
        assert not stage.gate.handle(handle, None, None).is_done
    else:
        stage.partition().advance_high_watermark(1)
        assert stage.gate.handle(handle, None, None).is_done


class WaitingFetch:
    """A fetch of a client or of a follower that waits for records of state; it notes which words are replayed when it ends."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.seen: list[str] = []

    def on_committed(self, partition: Partition, size_bytes: int, stable_bytes: int) -> None:
        self.stage.purgatory.answer(self)

    def on_append(self, partition: Partition, size_bytes: int) -> None:
        self.stage.purgatory.answer(self)

    def on_gone(self, partition: Partition) -> None:
        pass

    def finish(self) -> None:
        self.seen = [*self.stage.words.by_partition.get(0, [])]


@pytest.mark.parametrize("is_replicated", [False, True])
@pytest.mark.parametrize("is_atomic", [False, True])
def test_fetch_that_waits_for_records_of_state_is_answered_after_their_replay(is_replicated: bool, is_atomic: bool) -> None:
    stage = Stage()
    stage.topics.is_replicated = is_replicated
    stage.topics.disk.max_message_bytes = 1000 if is_atomic else 130
    stage.append("a")
    fetch = WaitingFetch(stage)
    partition = stage.partition()
    (partition.replica_watchers if is_replicated else partition.watchers)[fetch] = None
    assert stage.append("b" * 20, "c" * 20, is_atomic=is_atomic) is None
    assert fetch.seen == ["a", "b" * 20, "c" * 20]


def test_failed_append_of_state_holds_no_later_fetch() -> None:
    stage = Stage()
    stage.append("a")
    fetch = WaitingFetch(stage)
    stage.partition().watchers[fetch] = None
    stage.topics.error = ErrorCode.KAFKA_STORAGE_ERROR
    assert stage.append("b") is ErrorCode.KAFKA_STORAGE_ERROR
    stage.purgatory.answer(fetch)
    assert fetch.seen == ["a"]


def test_partition_that_is_lost_before_the_commit_resigns() -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    told: list[object] = []
    stage.append("a")
    stage.state.on_commit(0, told.append)
    stage.partition().close()
    assert told == [ErrorCode.NOT_COORDINATOR]
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    assert stage.words.by_partition == {}


def test_gate_calls_the_handler_again_once_the_partition_is_lost() -> None:
    stage = Stage()
    stage.topics.is_replicated = True

    def handle(broker: object, call: object) -> str:
        try:
            stage.state.enter(0)
        except KafkaError as error:
            return error.code.name
        stage.append("a")
        return "done"

    stage.append("before")
    pending = stage.gate.handle(handle, None, None)
    assert not pending.is_done
    stage.partition().close()
    told: list[object] = []
    pending.then(told.append)
    assert told == ["NOT_COORDINATOR"]


def test_partition_whose_state_cannot_be_taken_up_is_not_available_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Stage()
    first.append("a")
    stage = Stage(first.topics)

    def fail(index: int) -> Iterator[None]:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(stage.words, "on_loaded", fail)
        stage.elect(0, 1)
        stage.clock.pass_time(10)
    assert [line["log_level"] for line in lines] == ["error"]
    assert stage.refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not stage.state.is_available(0)
    assert stage.words.by_partition == {}
    stage.elect(0, 2)
    stage.clock.pass_time(10)
    assert stage.refusal() is None
    assert stage.words.by_partition == {0: ["a"]}


@pytest.mark.parametrize("slices_before", [0, 1, 4])
@pytest.mark.parametrize("failure", [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), OSError(24, "too many open files"), ValueError()])
def test_partition_whose_log_cannot_be_read_is_not_available_and_forgotten(
    failure: Exception, slices_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Stage()
    for number in range(slices_before * RECORDS_IN_SLICE + 1):
        first.append(str(number))
    stage = Stage(first.topics)
    batches = stage.partition().log.batches

    def fail(offset: int) -> Iterator[memoryview]:
        yield from batches(offset)
        raise failure

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(stage.partition().log, "batches", fail)
        stage.elect(0, 1)
        stage.clock.pass_time(100)
    assert [line["log_level"] for line in lines] == ["error"]
    assert stage.refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.append("b") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stage.words.by_partition == {}


def test_start_of_a_broker_goes_on_though_one_partition_of_state_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Stage()
    first.append("a")
    first.append("b", index=1)
    stage = Stage(first.topics)

    def fail(offset: int) -> Iterator[memoryview]:
        raise ValueError
        yield

    with capture_logs() as lines:
        monkeypatch.setattr(stage.partition(0).log, "batches", fail)
        stage.state.load_all()
    assert [line["log_level"] for line in lines] == ["error"]
    assert (stage.refusal(0), stage.refusal(1)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    assert stage.words.by_partition == {1: ["b"]}


def test_partition_that_is_elected_again_while_it_is_loaded_is_loaded_once() -> None:
    first = Stage()
    words = [str(number) for number in range(3 * RECORDS_IN_SLICE)]
    for word in words:
        first.append(word)
    stage = Stage(first.topics)
    stage.elect(0, 1)
    stage.clock.pass_time(4)
    assert stage.words.by_partition
    stage.elect(0, 2)
    assert stage.words.by_partition == {}
    stage.clock.pass_time(100)
    assert stage.words.by_partition == {0: words}
    assert stage.words.events == ["unloaded 0", "unloaded 0", "loaded 0"]


def test_forgotten_topic_is_unloaded_under_the_number_of_partitions_that_it_had() -> None:
    stage = Stage(MemoryTopics(5))
    stage.append("a", index=4)
    stage.state.load_all()
    counts: list[int] = []
    unload = stage.words.unload

    def note(index: int) -> Iterator[None]:
        counts.append(stage.state.partition_count)
        return unload(index)

    stage.words.unload = note  # type: ignore[method-assign]
    stage.state.forget_topic()
    assert counts == [5] * 5
    assert stage.state.partition_count == 2


def test_request_that_comes_while_a_topic_is_forgotten_is_told_to_look_elsewhere() -> None:
    stage = Stage()
    stage.append("a", index=1)
    stage.state.load_all()
    refusals: list[ErrorCode | None] = []
    unload = stage.words.unload

    def ask(index: int) -> Iterator[None]:
        refusals.append(stage.refusal(1))
        return unload(index)

    stage.words.unload = ask  # type: ignore[method-assign]
    stage.topics.topics.clear()
    stage.state.forget_topic()
    assert refusals == [ErrorCode.NOT_COORDINATOR] * 2
    assert stage.refusal(1) is None


def test_state_of_a_topic_that_is_newer_than_the_broker_is_forgotten_before_it_is_loaded() -> None:
    stage = Stage()
    stage.append("a")
    assert stage.words.by_partition == {0: ["a"]}
    stage.elect(0, 1)
    stage.clock.pass_time(10)
    assert stage.words.by_partition == {0: ["a"]}


def clustered(first: Stage) -> Stage:
    """Returns another broker of a cluster with the same logs, which leads no partition yet."""
    stage = Stage(first.topics)
    stage.state.join_cluster(lambda: 2)
    return stage


def test_broker_of_a_cluster_serves_only_the_partitions_that_it_leads() -> None:
    first = Stage()
    first.append("a")
    first.append("b", index=1)
    stage = clustered(first)
    assert (stage.refusal(0), stage.refusal(1)) == (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
    assert stage.append("c", index=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    stage.state.enter_all()
    stage.elect_and_load(1, 3)
    assert (stage.refusal(0), stage.refusal(1)) == (ErrorCode.NOT_COORDINATOR, None)
    assert stage.append("c", index=1) is None
    assert stage.words.by_partition == {1: ["b", "c"]}


def test_broker_of_a_cluster_creates_no_topic_for_state() -> None:
    stage = Stage()
    stage.state.join_cluster(lambda: None)
    with pytest.raises(KafkaError) as raised:
        stage.state.partition(0)
    assert raised.value.code is ErrorCode.NOT_COORDINATOR
    assert stage.topics.topic is None


def test_partition_count_is_that_of_the_topic_in_the_cluster() -> None:
    counts: list[int | None] = [7]
    stage = Stage()
    stage.state.join_cluster(lambda: counts[-1])
    assert stage.state.partition_count == 7
    counts.append(9)
    stage.state.refresh_partition_count()
    assert stage.state.partition_count == 9
    counts.append(None)
    stage.state.refresh_partition_count()
    assert stage.state.partition_count == 2


def test_leader_that_stays_the_leader_keeps_the_state_and_takes_the_epoch() -> None:
    first = Stage()
    first.append("a")
    stage = clustered(first)
    stage.elect_and_load(0, 1)
    stage.words.events.clear()
    stage.elect(0, 5)
    assert stage.words.events == []
    stage.state.resign(0, 4)
    assert stage.refusal() is None
    stage.state.resign(0, 6)
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR


def test_leader_whose_partition_is_replaced_is_no_coordinator_until_it_is_loaded() -> None:
    first = Stage()
    first.append("a")
    stage = clustered(first)
    stage.elect_and_load(0, 1)
    stage.partition().close()
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    assert stage.append("b") is ErrorCode.NOT_COORDINATOR


class SlowWords(Words):
    """Words of which one is removed in each slice."""

    def unload(self, index: int) -> Iterator[None]:
        words = self.by_partition.get(index, [])
        while words:
            words.pop()
            yield


def test_state_is_removed_in_slices_and_loaded_again_after_the_last_one() -> None:
    first = Stage()
    first.append("a", "b", "c")
    stage = Stage(first.topics)
    stage.state._machine = words = SlowWords()
    stage.state.join_cluster(lambda: 2)
    stage.elect(0, 1)
    stage.clock.pass_time(10)
    assert words.by_partition == {0: ["a", "b", "c"]}
    stage.state.resign(0, 2)
    assert words.by_partition == {0: ["a", "b"]}
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    stage.elect(0, 3)
    assert stage.refusal() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.clock.pass_time(1)
    assert words.by_partition == {0: []}
    stage.clock.pass_time(10)
    assert words.by_partition == {0: ["a", "b", "c"]}
    assert stage.refusal() is None


def test_state_is_not_written_while_too_few_replicas_are_in_sync() -> None:
    stage = Stage()
    stage.topics.is_replicated = True
    stage.append("a")
    partition = stage.partition()
    partition.replica_watchers[WaitingFetch(stage)] = None
    partition.replicas, partition.in_sync_replicas = (1, 98, 99), (1, 99)
    assert stage.append("b") is None
    stage.topics.disk.min_insync_replicas = 3
    assert stage.append("c") is ErrorCode.NOT_ENOUGH_REPLICAS
    assert stage.words.by_partition == {0: ["a", "b"]}


def test_partitions_that_are_loaded_together_take_turns() -> None:
    first = Stage()
    words = [str(number) for number in range(3 * RECORDS_IN_SLICE)]
    for index in (0, 1):
        for word in words:
            first.append(word, index=index)
    stage = clustered(first)
    for index in (0, 1):
        stage.elect(index, 1)
    counts = [0]
    while any(stage.refusal(index) for index in (0, 1)):
        stage.clock.pass_time(1)
        counts.append(sum(map(len, stage.words.by_partition.values())))
    assert stage.words.by_partition == {0: words, 1: words}
    assert max(after - before for before, after in pairwise(counts)) == RECORDS_IN_SLICE


def test_slice_that_fails_does_not_end_those_of_other_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Stage()
    for number in range(2 * RECORDS_IN_SLICE):
        first.append(str(number), index=number % 2)
    stage = clustered(first)
    batches = stage.partition(0).log.batches

    def fail(offset: int) -> Iterator[memoryview]:
        yield from batches(offset)
        raise ValueError

    with capture_logs():
        monkeypatch.setattr(stage.partition(0).log, "batches", fail)
        stage.elect(0, 1)
        stage.elect(1, 1)
        stage.clock.pass_time(100)
    assert (stage.refusal(0), stage.refusal(1)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
