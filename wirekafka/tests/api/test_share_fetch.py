from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.coordinator.share_delivery.fetching import FetchResult, FetchWish, ShareFetches
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.timestamps import LIGHT_RECORDS
from wirekafka.pending import Pending, Work, finish
from wirekafka.tests.api.data_plane import NOW_MS, Caller, values_of, wait_for
from wirekafka.tests.api.members import join, topic
from wirekafka.tests.api.sharing import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    acquired,
    append,
    errors,
    partitions_of,
    run,
    topic_id,
)
from wirekafka.wire.compression import Compression

NOTHING = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
"""The limits of a fetch that renews locks."""


@pytest.mark.parametrize("version", [1, 2])
def test_share_fetch_gives_records_and_says_which_of_them_the_member_has(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        append(caller, b"c")
        member = Member(caller)
        response = await member.fetch(0, 1, version=version)
        data = partitions_of(response)
        assert (response.error_code, response.acquisition_lock_timeout_ms) == (0, 30_000)
        assert acquired(response) == {0: [(0, 2, 1)]}
        assert values_of(data[0].records) == [b"a", b"b", b"c"]
        assert (data[1].error_code, bytes(data[1].records)) == (0, b"")

    run(body, tmp_path)


def test_share_fetch_gives_no_record_to_two_members(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        append(caller, b"c")
        first, second = Member(caller, "m"), Member(caller, "n")
        assert acquired(await first.fetch(0, max_records=1)) == {0: [(0, 1, 1)]}
        response = await second.fetch(0)
        assert acquired(response) == {0: [(2, 2, 1)]}
        assert values_of(partitions_of(response)[0].records) == [b"c"]
        assert acquired(await second.fetch()) == {}

    run(body, tmp_path)


def test_share_fetch_that_was_answered_leaves_no_timer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        waiting = member.ask(member.fetch_request(0, max_wait_ms=90_000), 2)
        assert isinstance(waiting, Pending)
        due = trio.current_time() + 90
        timers = [timer for _, _, timer in caller.broker.clock._timers if timer.due == due]
        assert [timer.is_due_later for timer in timers] == [True]
        append(caller, b"a")
        await wait_for(waiting)
        assert [timer.is_due_later for timer in timers] == [False]

    run(body, tmp_path)


def test_share_fetch_by_record_limit_gives_no_more_than_asked(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c")
        first, second = Member(caller, "m"), Member(caller, "n")
        assert acquired(await first.fetch(0, max_records=1, share_acquire_mode=1)) == {0: [(0, 0, 1)]}
        assert acquired(await second.fetch(0, max_records=1, share_acquire_mode=1)) == {0: [(1, 1, 1)]}

    run(body, tmp_path)


def test_waiting_share_fetch_is_answered_by_what_is_appended(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        pending = member.ask(member.fetch_request(0, 1, max_wait_ms=10_000), 2)
        assert isinstance(pending, Pending)
        await trio.sleep(5)
        append(caller, b"a", partition=1)
        assert acquired(await wait_for(pending)) == {1: [(0, 0, 1)]}
        assert trio.current_time() < 6

    run(body, tmp_path)


def test_waiting_share_fetch_ends_with_nothing_when_its_time_is_over(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        assert acquired(await Member(caller, "m").fetch(0)) == {0: [(0, 0, 1)]}
        response = await Member(caller, "n").fetch(0, max_wait_ms=500)
        assert (response.error_code, acquired(response)) == (0, {})
        assert trio.current_time() == pytest.approx(0.5, abs=0.01)

    run(body, tmp_path)


def test_waiting_share_fetch_waits_for_as_many_bytes_as_it_wants(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        pending = member.ask(member.fetch_request(0, max_wait_ms=10_000, min_bytes=150), 2)
        append(caller, b"a")
        assert not pending.is_done
        append(caller, b"b" * 80)
        assert acquired(await wait_for(pending)) == {0: [(0, 1, 1)]}

    run(body, tmp_path)


def test_waiting_share_fetch_gets_what_another_member_releases_or_has_for_too_long(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        first, second = Member(caller, "m"), Member(caller, "n")
        await first.fetch(0)
        pending = second.ask(second.fetch_request(0, max_wait_ms=60_000), 2)
        second.session_epoch += 1
        await trio.sleep(10)
        assert errors(first.acknowledge((0, 1, 1, [RELEASE]))) == {0: 0}
        assert acquired(await wait_for(pending)) == {0: [(1, 1, 2)]}
        assert acquired(await second.fetch(max_wait_ms=60_000)) == {0: [(0, 0, 2)]}
        assert trio.current_time() == pytest.approx(30, abs=0.01)

    run(body, tmp_path)


def test_lock_that_runs_out_gives_the_record_to_who_waits_and_takes_it_from_who_had_it(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        first, second = Member(caller, "m"), Member(caller, "n")
        await first.fetch(0)
        assert acquired(await second.fetch(0, max_wait_ms=60_000)) == {0: [(0, 0, 2)]}
        assert trio.current_time() == pytest.approx(30, abs=0.01)
        assert errors(first.acknowledge((0, 0, 0, [ACCEPT]))) == {0: ErrorCode.INVALID_RECORD_STATE}
        assert errors(second.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}

    run(body, tmp_path)


def test_renewed_lock_lasts_longer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        first, second = Member(caller, "m"), Member(caller, "n")
        await first.fetch(0)
        await trio.sleep(20)
        response = first.acknowledge((0, 0, 0, [RENEW]), is_renew_ack=True)
        assert (errors(response), response.acquisition_lock_timeout_ms) == ({0: 0}, 30_000)
        await trio.sleep(9)
        response = await first.fetch(said=((0, 0, 0, [RENEW]),), is_renew_ack=True, **NOTHING)
        assert partitions_of(response)[0].acknowledge_error_code == 0
        assert acquired(await second.fetch(0, max_wait_ms=60_000)) == {0: [(0, 0, 2)]}
        assert trio.current_time() == pytest.approx(59, abs=0.1)

    run(body, tmp_path)


@pytest.mark.parametrize("is_renewed", [False, True], ids=["new lock", "renewed lock"])
def test_lock_that_is_shorter_than_those_before_runs_out_in_its_own_time(tmp_path: Path, is_renewed: bool) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"-")
        first, second, third = Member(caller, "m"), Member(caller, "n"), Member(caller, "o")
        await first.fetch(0)
        caller.broker.topics.group_configs.alter("g", {"share.record.lock.duration.ms": "15000"})
        await trio.sleep(1)
        if is_renewed:
            first.acknowledge((0, 0, 1, [RENEW, ACCEPT]), is_renew_ack=True)
            expected = (0, 0, 2)
        else:
            append(caller, b"b")
            assert acquired(await second.fetch(0)) == {0: [(2, 2, 1)]}
            expected = (2, 2, 2)
        assert acquired(await third.fetch(0, max_wait_ms=60_000)) == {0: [expected]}
        assert trio.current_time() == pytest.approx(16, abs=0.01)

    run(body, tmp_path)


def test_acknowledgements_in_a_fetch_are_taken_before_it(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c")
        member = Member(caller)
        await member.fetch(0)
        said = ((0, 0, 2, [ACCEPT, RELEASE, REJECT]), (1, 5, 6, [ACCEPT]))
        response = await member.fetch(said=said)
        assert acquired(response) == {0: [(1, 1, 2)]}
        data = partitions_of(response)
        assert data[0].acknowledge_error_code == 0
        assert data[1].acknowledge_error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(body, tmp_path)


def test_connection_that_ends_gives_back_what_its_member_has(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        first, second = Member(caller, "m"), Member(caller, "n")
        await first.fetch(0)
        await second.fetch(0)
        first.disconnect()
        assert acquired(await second.fetch()) == {0: [(0, 0, 2)]}
        second.disconnect()
        assert len(caller.broker.share_groups.sessions) == 0
        assert acquired(await Member(caller, "o").fetch(0)) == {0: [(0, 0, 3)]}

    run(body, tmp_path)


def test_final_epoch_ends_the_session(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        first, second = Member(caller, "m"), Member(caller, "n")
        await first.fetch(0)
        response = await first.fetch(epoch=-1, said=((0, 0, 0, [ACCEPT]),))
        assert (response.error_code, acquired(response)) == (0, {})
        assert acquired(await second.fetch(0)) == {0: [(1, 1, 2)]}
        response = second.acknowledge((0, 1, 1, [ACCEPT]), epoch=-1)
        assert errors(response) == {0: 0}
        assert len(caller.broker.share_groups.sessions) == 0

    run(body, tmp_path)


def test_what_was_done_outlives_the_broker(tmp_path: Path) -> None:
    async def before(caller: Caller) -> None:
        append(caller, b"a", b"b", b"c", b"d")
        member = Member(caller)
        await member.fetch(0)
        assert errors(member.acknowledge((0, 0, 2, [RELEASE, ACCEPT, REJECT]))) == {0: 0}

    async def after(caller: Caller) -> None:
        assert acquired(await Member(caller, "n").fetch(0)) == {0: [(0, 0, 2), (3, 3, 1)]}

    run(before, tmp_path)
    run(after, tmp_path)


def test_group_that_begins_at_the_end_misses_nothing_that_comes_while_the_broker_is_away(tmp_path: Path) -> None:
    async def before(caller: Caller) -> None:
        caller.broker.topics.group_configs.alter("g", {"share.auto.offset.reset": "latest"})
        append(caller, b"a")
        member = Member(caller)
        assert acquired(await member.fetch(0)) == {}
        append(caller, b"b")
        assert acquired(await member.fetch()) == {0: [(1, 1, 1)]}

    async def after(caller: Caller) -> None:
        assert acquired(await Member(caller, "n").fetch(0)) == {0: [(1, 1, 1)]}

    run(before, tmp_path)
    run(after, tmp_path)


def test_log_that_loses_its_beginning_moves_the_group(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        append(caller, b"c")
        member = Member(caller)
        await member.fetch(0)
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        topic.partitions[0].delete_records(2)
        append(caller, b"d")
        assert acquired(await member.fetch()) == {0: [(3, 3, 1)]}
        assert errors(member.acknowledge((0, 0, 3, [ACCEPT]))) == {0: 0}
        (offset,) = finish(caller.broker.share_groups.describe_offsets("g", {"flights": [0]}))["flights"]
        assert (offset.start_offset, offset.lag) == (4, 0)

    run(body, tmp_path)


def test_partition_that_is_deleted_is_told_to_who_waits(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        pending = member.ask(member.fetch_request(0, max_wait_ms=10_000), 2)
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        caller.broker.topics.delete(topic)
        data = partitions_of(await wait_for(pending))
        assert data[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (data[0].current_leader.leader_id, data[0].current_leader.leader_epoch) == (-1, -1), "no broker is named"
        assert finish(caller.broker.share_groups.describe_offsets("g", None)) == {}

    run(body, tmp_path)


def test_partition_that_is_closed_with_the_broker_is_told_to_who_waits(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        pending = member.ask(member.fetch_request(max_wait_ms=10_000), 2)
        topic = caller.broker.topics.find("flights")
        assert topic is not None
        topic.partitions[0].close()
        assert partitions_of(await wait_for(pending))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(body, tmp_path)


def test_partition_of_another_leader_is_told_with_the_leader_s_address(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        cluster = join(caller)
        features = cluster.topics.cluster_features
        features.follow({name: levels.most for name, levels in features.supported.items()}, 1)
        cluster.tell(topic("flights", 2, 3, -1))
        member = Member(caller, joins=False)
        response = await member.fetch(0, 1, 2)
        data = partitions_of(response)
        assert {each.error_code for each in data.values()} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert [(data[index].current_leader.leader_id, data[index].current_leader.leader_epoch) for index in range(3)] == [
            (2, 5),
            (3, 5),
            (-1, 5),
        ]
        # Broker 3 does not listen where the client can reach it.
        assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == [(2, "host2", 9002)]
        acknowledged = member.acknowledge((0, 0, 0, [ACCEPT]))
        leader = partitions_of(acknowledged)[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (2, 5)
        assert [each.host for each in acknowledged.node_endpoints] == ["host2"]

    run(body, tmp_path)


def test_partitions_that_there_are_not_fail_for_themselves(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        request = member.fetch_request(0, 7)
        unknown = member.topic(1)
        unknown.topic_id = b"?" * 16
        request.topics.append(unknown)
        response = await wait_for(member.ask(request, 2))
        found = {
            (topic.topic_id == topic_id(caller), data.partition_index): data.error_code
            for topic in response.responses
            for data in topic.partitions
        }
        assert found == {
            (True, 0): 0,
            (True, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            (False, 1): ErrorCode.UNKNOWN_TOPIC_ID,
        }

    run(body, tmp_path)


def test_partition_that_the_group_was_never_assigned_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        response = await Member(caller, joins=False).fetch(0, max_wait_ms=100)
        data = partitions_of(response)[0]
        assert (data.error_code, data.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)

    run(body, tmp_path)


def test_disk_that_is_full_leaves_the_records_with_the_member(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        states: Any = caller.broker.share_groups.states
        write, states.write = states.write, refuse
        assert errors(member.acknowledge((0, 0, 0, [RELEASE]))) == {0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        states.write = write
        assert acquired(await Member(caller, "n").fetch(0)) == {}
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}

    def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"epoch": -1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        *[({"is_renew_ack": True, **NOTHING, name: 1}, ErrorCode.INVALID_REQUEST) for name in NOTHING],
        ({"share_acquire_mode": 7}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"said": ((0, 0, 0, [ACCEPT]),)}, ErrorCode.INVALID_REQUEST),
    ],
    ids=["no group", "no member", "empty member", "long member", "no session", "no session to end", *NOTHING, "mode", "early"],
)
def test_share_fetch_that_cannot_be_is_refused(tmp_path: Path, fields: dict[str, Any], code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        with pytest.raises(KafkaError) as raised:
            await member.fetch(0, **fields)
        assert (raised.value.code, raised.value.message) == (code, None), "as in Kafka, without a message"

    run(body, tmp_path)


@pytest.mark.parametrize("epoch", [2, 5])
def test_share_fetch_out_of_step_is_refused(tmp_path: Path, epoch: int) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        await member.fetch(0)
        with pytest.raises(KafkaError) as raised:
            await member.fetch(epoch=epoch)
        assert raised.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH

    run(body, tmp_path)


def test_session_beyond_the_limit_is_told_so_after_a_while(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        await Member(caller, "m").fetch(0)
        response = await Member(caller, "n", joins=False).fetch(0, max_wait_ms=700)
        assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert trio.current_time() == pytest.approx(0.7, abs=0.01)

    run(body, tmp_path, group_share_max_share_sessions="1", group_share_max_size="1")


def test_fetch_of_a_session_that_was_opened_anew_gets_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        old = Member(caller, "m")
        pending = old.ask(old.fetch_request(0, max_wait_ms=10_000), 2)
        new = Member(caller, "m", joins=False)
        later = new.ask(new.fetch_request(0, max_wait_ms=10_000), 2)
        append(caller, b"a")
        assert (await wait_for(pending)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert acquired(await wait_for(later)) == {0: [(0, 0, 1)]}

    run(body, tmp_path)


def test_session_that_is_opened_anew_leaves_the_member_what_it_has(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b")
        member = Member(caller)
        await member.fetch(0)
        member.session_epoch = 0
        assert acquired(await member.fetch(0)) == {}
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}
        assert acquired(await Member(caller, "n").fetch(0)) == {}
        member.disconnect()
        assert acquired(await Member(caller, "o").fetch(0)) == {0: [(1, 1, 2)]}

    run(body, tmp_path)


def test_connection_whose_session_was_opened_anew_on_another_ends_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        old, new = Member(caller, "m"), Member(caller, "m", joins=False)
        await old.fetch(0)
        await new.fetch(0)
        old.disconnect()
        assert errors(new.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}

    run(body, tmp_path)


def test_member_that_leaves_its_group_goes_on_with_its_session(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        member = Member(caller)
        await member.fetch(0)
        member.member_epoch = -1
        member.heartbeat()
        assert errors(member.acknowledge((0, 0, 0, [ACCEPT]))) == {0: 0}

    run(body, tmp_path)


def test_connection_keeps_nothing_of_sessions_that_have_ended(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a")
        first, second = Member(caller, "m"), Member(caller, "n")
        second.client = first.client
        for member in (first, second, first):
            member.session_epoch = 0
            await member.fetch(0)
            await member.fetch(epoch=-1)
        assert first.client.on_close == {}
        assert caller.broker.share_groups.partitions.find(ShareKey("g", topic_id(caller), 0)) is None, "the last has ended"

    run(body, tmp_path)


def test_session_remembers_its_partitions_and_forgets_what_it_is_told_to(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        member = Member(caller)
        assert partitions_of(await member.fetch(0, 1)).keys() == {0, 1}
        append(caller, b"a", partition=0)
        append(caller, b"b", partition=1)
        assert acquired(await member.fetch()) == {0: [(0, 0, 1)], 1: [(0, 0, 1)]}
        append(caller, b"c", partition=0)
        append(caller, b"d", partition=1)
        assert acquired(await member.fetch(forget=(0,))) == {1: [(1, 1, 1)]}
        assert partitions_of(await member.fetch()) == {}

    run(body, tmp_path)


def test_append_lets_only_those_of_many_waiting_share_fetches_try_that_can_get_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(caller: Caller) -> None:
        members = [Member(caller, f"m{number}") for number in range(20)]
        waiting = [member.ask(member.fetch_request(0, max_wait_ms=10_000), 2) for member in members]
        attempts: list[str] = []
        attempt = ShareFetches.attempt

        def counted(self: ShareFetches, wish: FetchWish, *, is_last: bool) -> Work[FetchResult | None]:
            attempts.append(wish.member_id)
            return attempt(self, wish, is_last=is_last)

        monkeypatch.setattr(ShareFetches, "attempt", counted)
        append(caller, b"a")
        assert [pending.is_done for pending in waiting] == [True] + [False] * 19
        assert attempts == ["m0"]
        append(caller, b"b")
        assert attempts == ["m0", "m1"]

    run(body, tmp_path)


def damage_second_batch(folder: Path, length: int) -> None:
    """Writes another length into the second of three batches of the same size."""
    path = next(folder.glob("*.log"))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 3 + 8)
        file.write(length.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize("length", [-12, 0, 1 << 30])
def test_share_fetch_ends_before_a_batch_whose_length_is_damaged(tmp_path: Path, length: int) -> None:
    async def body(caller: Caller) -> None:
        for value in (b"a", b"b", b"c"):
            append(caller, value)
        damage_second_batch(tmp_path / "flights-0", length)
        response = await Member(caller).fetch(0)
        assert acquired(response) == {0: [(0, 0, 1)]}

    run(body, tmp_path)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize(("ago_ms", "first_offset"), [(10_000, 0), (5_000, 5_000), (-1, 10_000)])
def test_group_that_begins_at_a_time_searches_it_off_the_loop_if_that_takes_long(
    tmp_path: Path, codec: Compression, ago_ms: int, first_offset: int
) -> None:
    count = 10_000
    assert count > LIGHT_RECORDS

    async def body(caller: Caller) -> None:
        values = [b"%d" % number for number in range(count)]
        append(caller, *values, timestamp=NOW_MS - count, compression=codec)
        reset = "latest" if ago_ms < 0 else f"by_duration:PT{ago_ms // 1000}S"
        caller.broker.topics.group_configs.alter("g", {"share.auto.offset.reset": reset})
        member = Member(caller)
        submitted = record_jobs(caller)
        response = await member.fetch(0, max_records=1, batch_size=1)
        assert len(submitted) == (1 if ago_ms >= 0 else 0)
        (offset,) = finish(caller.broker.share_groups.describe_offsets("g", {"flights": [0]}))["flights"]
        assert (response.error_code, offset.start_offset) == (0, first_offset)

    run(body, tmp_path)


def test_group_that_begins_at_a_time_after_all_records_begins_at_the_end(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        append(caller, b"a", b"b", timestamp=NOW_MS - 10_000)
        caller.broker.topics.group_configs.alter("g", {"share.auto.offset.reset": "by_duration:PT5S"})
        member = Member(caller)
        await member.fetch(0, 1)
        offsets = finish(caller.broker.share_groups.describe_offsets("g", {"flights": [0, 1]}))["flights"]
        assert [offset.start_offset for offset in offsets] == [2, 0]

    run(body, tmp_path)


def record_jobs(caller: Caller) -> list[object]:
    """The jobs that the workers get from now on."""
    submitted: list[object] = []
    submit = caller.broker.workers.submit

    def note(work: Any, done: Any, **fields: Any) -> Any:
        submitted.append(work)
        return submit(work, done, **fields)

    caller.broker.workers.submit = note  # type: ignore[method-assign]
    return submitted
