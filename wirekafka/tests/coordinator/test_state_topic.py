"""The executor of coordinator state, with a list of words as the coordinator's state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.coordinator.reply_gate import ReplyGate
from wirekafka.coordinator.state_topic import RECORDS_IN_SLICE, StateTopic, chunk_sizes
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

    def on_loaded(self, index: int) -> None:
        self.events.append(f"loaded {index}")

    def unload(self, index: int) -> None:
        self.by_partition.pop(index, None)
        self.events.append(f"unloaded {index}")


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
    stage.state.elect(0, 5)
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
    stage.state.elect(0, 5)
    stage.clock.pass_time(10)
    stage.words.events.clear()
    stage.state.resign(0, 4)
    stage.state.elect(0, 5)
    assert stage.words.events == []
    stage.state.resign(0, 6)
    stage.state.elect(0, 6)
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    stage.state.elect(0, 7)
    stage.clock.pass_time(10)
    assert stage.refusal() is None
    assert stage.words.events == ["unloaded 0", "unloaded 0", "loaded 0"]


def test_loading_that_is_overtaken_by_a_resignation_stops() -> None:
    first = Stage()
    for number in range(3 * RECORDS_IN_SLICE):
        first.append(str(number))
    stage = Stage(first.topics)
    stage.state.elect(0, 1)
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

    def fail(index: int) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(stage.words, "on_loaded", fail)
        stage.state.elect(0, 1)
        stage.clock.pass_time(10)
    assert [line["log_level"] for line in lines] == ["error"]
    assert stage.refusal() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not stage.state.is_available(0)
    assert stage.words.by_partition == {}
    stage.state.elect(0, 2)
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
        stage.state.elect(0, 1)
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
    stage.state.elect(0, 1)
    stage.clock.pass_time(4)
    assert stage.words.by_partition
    stage.state.elect(0, 2)
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

    def note(index: int) -> None:
        counts.append(stage.state.partition_count)
        unload(index)

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

    def ask(index: int) -> None:
        refusals.append(stage.refusal(1))
        unload(index)

    stage.words.unload = ask  # type: ignore[method-assign]
    stage.topics.topics.clear()
    stage.state.forget_topic()
    assert refusals == [ErrorCode.NOT_COORDINATOR] * 2
    assert stage.refusal(1) is None


def test_state_of_a_topic_that_is_newer_than_the_broker_is_forgotten_before_it_is_loaded() -> None:
    stage = Stage()
    stage.append("a")
    assert stage.words.by_partition == {0: ["a"]}
    stage.state.elect(0, 1)
    stage.clock.pass_time(10)
    assert stage.words.by_partition == {0: ["a"]}
