"""Share partitions: the state that the first fetch loads, the state that they keep, and their removal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.api import describe_share_group_offsets as describing
from wirekafka.coordinator.groups.share.group import ShareGroup
from wirekafka.coordinator.share_state.batches import RecordState, StateBatch, StateChange
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import SHARE_STATE_TOPIC
from wirekafka.pending import finish
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import NOW_MS, Caller, wait_for
from wirekafka.tests.api.sharing import ACCEPT, RELEASE, Member, acquired, append, errors, partitions_of, run, topic_id


def key_of(caller: Caller, partition: int = 0) -> ShareKey:
    return ShareKey("g", topic_id(caller), partition)


def partition_of(caller: Caller, index: int = 0, topic: str = "flights") -> Any:
    found = caller.broker.topics.find(topic)
    assert found is not None
    return found.partitions[index]


@pytest.mark.parametrize(
    "batches",
    [[], [StateBatch(1, 2, RecordState.ARCHIVED, 1), StateBatch(3, 3, RecordState.ACKNOWLEDGED, 1)]],
    ids=["start offset", "single records"],
)
def test_records_that_the_log_has_lost_are_given_when_others_take_their_offsets(
    tmp_path: Path, batches: list[StateBatch]
) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c")
        member = Member(caller)
        start_offset = 1 if batches else 9
        caller.broker.share_groups.states.write(key_of(caller), StateChange(start_offset, 0, batches), 0)
        assert acquired(await member.fetch(0)) == {}
        append(caller, b"d", b"e")
        assert acquired(await member.fetch()) == {0: [(3, 4, 1)]}

    run(body, tmp_path)


def test_partition_that_is_offline_is_told_as_such(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        first, second = Member(caller, "m"), Member(caller, "n")
        await first.fetch(0)
        first.acknowledge((0, 0, 0, [ACCEPT]))
        partition_of(caller, 0).log.take_offline("lost")
        partition_of(caller, 1).log.take_offline("lost")
        found = partitions_of(await second.fetch(0, 1))
        assert {index: data.error_code for index, data in found.items()} == dict.fromkeys((0, 1), ErrorCode.KAFKA_STORAGE_ERROR)
        asked = describing.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
        (group,) = caller.ask(describing.DescribeShareGroupOffsetsRequest(groups=[asked]), 1).groups
        described = [(each.partition_index, each.error_code, each.lag) for each in group.topics[0].partitions]
        assert described == [(0, ErrorCode.LEADER_NOT_AVAILABLE, -1), (1, 0, -1)], "nothing was ever known of the second"

    run(body, tmp_path)


def test_state_that_is_offline_has_no_coordinator(tmp_path: Path) -> None:
    async def before(caller: Caller) -> None:
        Member(caller)

    async def after(caller: Caller) -> None:
        response = await Member(caller, joins=False).fetch(0)
        assert partitions_of(response)[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR, "it is not known"
        for index in range(2):
            partition_of(caller, index, SHARE_STATE_TOPIC).log.take_offline("lost")
        response = await Member(caller, joins=False).fetch(0)
        assert partitions_of(response)[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def forgotten(caller: Caller) -> None:
        finish(caller.broker.share_groups.states.delete([key_of(caller, 0), key_of(caller, 1)]))
        await after(caller)

    run(before, tmp_path)
    run(forgotten, tmp_path)


def test_topic_that_is_deleted_is_let_go_of(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        key = key_of(caller)
        member = Member(caller)
        await member.fetch(0)
        loaded = caller.broker.share_groups.partitions.find(key)
        assert loaded is not None
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        caller.broker.topics.delete(topic)
        assert caller.broker.share_groups.partitions.find(key) is None
        assert loaded.timer is not None
        assert not loaded.timer.is_due_later, "nobody looks at its locks any more"
        member.disconnect()

    run(body, tmp_path)


def test_topic_of_the_state_that_is_deleted_makes_groups_begin_anew(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}
        topic = caller.broker.topics.find(SHARE_STATE_TOPIC)
        assert topic is not None
        caller.broker.topics.delete(topic)
        assert errors(member.acknowledge((0, 1, 1, [ACCEPT]))) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        member.heartbeat()
        assert acquired(await member.fetch()) == {0: [(0, 1, 1)]}
        member.disconnect()

    run(body, tmp_path)


def initialized(caller: Caller) -> dict[str, list[int]]:
    """Returns the partitions for which the group has initialised state."""
    group = caller.broker.groups.coordinator.groups["g"]
    assert isinstance(group, ShareGroup)
    return {name: sorted(partitions) for name, partitions in group.initialized.values()}


def test_state_that_is_lost_while_the_broker_is_away_is_made_anew(tmp_path: Path) -> None:
    async def before(caller: Caller) -> None:
        Member(caller)
        finish(caller.broker.share_groups.states.delete([key_of(caller, 1)]))
        assert initialized(caller) == {"flights": [0, 1]}

    async def after(caller: Caller) -> None:
        assert initialized(caller) == {"flights": [0]}
        member = Member(caller)
        assert initialized(caller) == {"flights": [0, 1]}
        append(caller, b"a", partition=1)
        assert acquired(await member.fetch(1)) == {1: [(0, 0, 1)]}

    run(before, tmp_path)
    run(after, tmp_path)


def test_state_that_is_offline_is_not_taken_for_lost(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        other = caller.broker.topics.create("other", 1)
        Member(caller).heartbeat(subscribed_topic_names=["flights", "other"])
        assert initialized(caller) == {"flights": [0, 1], "other": [0]}
        for index in range(2):
            partition_of(caller, index, SHARE_STATE_TOPIC).log.take_offline("lost")
        states: Any = caller.broker.share_groups.states
        states._states.by_key.clear()  # as if the partition had been offline at the start
        caller.broker.topics.delete(other)
        assert initialized(caller) == {"flights": [0, 1]}

    run(body, tmp_path)


def test_state_that_is_being_loaded_is_not_taken_for_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.coordinator.state_topic.RECORDS_IN_SLICE", 1)

    async def body(caller: Caller) -> None:
        other = caller.broker.topics.create("other", 1)
        Member(caller).heartbeat(subscribed_topic_names=["flights", "other"])
        states = caller.broker.share_groups.states.state
        for partition in caller.broker.topics.get(SHARE_STATE_TOPIC).partitions[:2]:
            states.resign(partition.index)
            states.elect(partition, 7)
        caller.broker.topics.delete(other)
        assert initialized(caller) == {"flights": [0, 1]}
        await trio.sleep(1)
        assert initialized(caller) == {"flights": [0, 1]}

    run(body, tmp_path)


def test_fetch_that_waits_goes_on_with_the_offset_that_is_set_meanwhile(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        first, second = Member(caller, "m"), Member(caller, "n", joins=False)
        await first.fetch(0)
        first.acknowledge((0, 0, 1, [ACCEPT]))
        pending = second.ask(second.fetch_request(0, max_wait_ms=10_000), 2)
        first.member_epoch = -1
        first.heartbeat()
        finish(caller.broker.share_groups.alter_offsets("g", {"flights": {0: 2}}))
        loaded = caller.broker.share_groups.partitions.find(key_of(caller))
        assert loaded is not None
        assert len(loaded.waiting) == 1, "it waits for the one that there is now"
        finish(caller.broker.share_groups.alter_offsets("g", {"flights": {0: 1}}))
        assert acquired(await wait_for(pending)) == {0: [(1, 1, 1)]}

    run(body, tmp_path)


def test_session_that_is_over_takes_nothing_for_its_fetch(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        old, new = Member(caller, "m"), Member(caller, "m", joins=False)
        pending = old.ask(old.fetch_request(0, max_wait_ms=10_000), 2)
        await new.fetch(0)
        append(caller, b"a")
        assert (await wait_for(pending)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert acquired(await new.fetch()) == {0: [(0, 0, 1)]}

    run(body, tmp_path)


def test_partitions_share_what_a_fetch_may_have(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        for partition in (0, 1):
            for _ in range(4):
                append(caller, b"v" * 1000, partition=partition)
        member = Member(caller)
        response = await member.fetch(0, 1, max_bytes=5000)
        assert acquired(response) == {0: [(0, 1, 1)], 1: [(0, 1, 1)]}, "half of the bytes for each"
        response = await member.fetch(max_records=1, share_acquire_mode=1)
        assert sum(map(len, acquired(response).values())) == 1, "the limit is for all of them"
        response = await member.fetch(max_bytes=10)
        assert sum(map(len, acquired(response).values())) == 1, "only the first gives a batch that is too large"

    run(body, tmp_path)


def test_broker_limits_what_a_fetch_may_have(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        for _ in range(4):
            append(caller, b"v" * 600)
        assert acquired(await Member(caller).fetch(0)) == {0: [(0, 0, 1)]}

    run(body, tmp_path, fetch_max_bytes="1024")


@pytest.mark.parametrize("fields", [{"max_records": 0}, {"max_bytes": 0}])
def test_fetch_that_wants_nothing_does_not_wait(tmp_path: Path, fields: dict[str, int]) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        response = await Member(caller).fetch(0, max_wait_ms=10_000, **fields)
        assert (response.error_code, acquired(response)) == (0, {})
        assert trio.current_time() == 0

    run(body, tmp_path)


def test_fetch_that_may_have_less_than_it_wants_at_least_gets_that(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"v" * 1000)
        response = await Member(caller).fetch(0, max_wait_ms=10_000, min_bytes=5000, max_bytes=500)
        assert acquired(response) == {0: [(0, 0, 1)]}
        assert trio.current_time() == 0

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), ErrorCode.KAFKA_STORAGE_ERROR),
        (RuntimeError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=["failing disk", "bug"],
)
def test_read_that_fails_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged_faults: list[str], failure: Exception, code: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")

        def fail(*_: object, **__: object) -> None:
            raise failure

        monkeypatch.setattr(Partition, "read", fail)
        found = partitions_of(await Member(caller).fetch(0, 1, max_wait_ms=10_000))
        assert found[0].error_code == code
        assert trio.current_time() == 0
        if code is ErrorCode.UNKNOWN_SERVER_ERROR:
            assert "share" in logged_faults.pop()

    run(body, tmp_path)


def test_fetch_of_partitions_that_all_fail_does_not_wait(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        found = partitions_of(await Member(caller, joins=False).fetch(0, max_wait_ms=10_000))
        assert found[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert trio.current_time() == 0

    run(body, tmp_path)


class Writer:
    """A transactional producer that appends to the log directly."""

    def __init__(self, caller: Caller, producer_id: int) -> None:
        self.caller = caller
        self.producer_id = producer_id
        self.sequence = 0

    def send(self, *values: bytes) -> None:
        settings = {"producer_id": self.producer_id, "producer_epoch": 0, "base_sequence": self.sequence}
        append(self.caller, *values, **settings, is_transactional=True)
        self.sequence += len(values)

    def end(self, *, is_commit: bool) -> None:
        partition_of(self.caller).write_marker(
            self.producer_id, 0, coordinator_epoch=0, is_commit=is_commit, now_ms=NOW_MS, transaction_version=1
        )


def test_reader_of_committed_records_passes_over_those_of_aborted_transactions_and_waits_for_open_ones(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.group_configs.alter(
            "g", {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
        )
        aborting, committing = Writer(caller, 7), Writer(caller, 8)
        aborting.send(b"0")
        committing.send(b"1")
        aborting.send(b"2")
        aborting.end(is_commit=False)  # at 3
        aborting.send(b"4")
        aborting.end(is_commit=True)  # at 5
        member = Member(caller)
        assert acquired(await member.fetch(0, max_wait_ms=100)) == {}, "the last stable offset is 1"
        committing.end(is_commit=True)  # at 6
        found = [first for first, last, _ in acquired(await member.fetch())[0] for first in range(first, last + 1)]
        assert set(found) >= {1, 4}
        assert set(found).isdisjoint({0, 2})
        assert errors(member.acknowledge(*[(0, offset, offset, [ACCEPT]) for offset in found])) == {0: 0}
        (offset,) = finish(caller.broker.share_groups.describe_offsets("g", {"flights": [0]}))["flights"]
        assert (offset.start_offset, offset.lag) == (7, 0)

    run(body, tmp_path)


def test_reader_of_committed_records_goes_on_behind_many_that_were_aborted(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.group_configs.alter(
            "g", {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
        )
        writer = Writer(caller, 1)
        for _ in range(5):
            writer.send(b"v" * 1000)
        writer.end(is_commit=False)  # at 5
        append(caller, b"v")
        member = Member(caller)
        found = acquired(await member.fetch(0, max_bytes=1500))
        while not found:
            found = acquired(await member.fetch(max_bytes=1500))
        assert {offset for first, last, _ in found[0] for offset in range(first, last + 1)} <= {5, 6}
        assert errors(member.acknowledge((0, found[0][0][0], found[0][0][1], [RELEASE]))) == {0: 0}

    run(body, tmp_path)
