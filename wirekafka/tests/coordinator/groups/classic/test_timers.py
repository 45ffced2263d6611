"""The timers of groups in the runtime: sessions, initial waits, expiration."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from wirekafka.clock import Clock
from wirekafka.coordinator.effects import Effects, SessionExpired, SetTimer, TimerEvent, session_timer
from wirekafka.coordinator.groups.requests import HeartbeatRequest
from wirekafka.coordinator.groups.timers import GroupTimers
from wirekafka.errors import ErrorCode
from wirekafka.pending import finish
from wirekafka.tests.coordinator.manual_clock import ManualClock
from wirekafka.tests.coordinator.stage import Stage, run, wait_for


def test_join_is_answered_once_the_initial_delay_is_over() -> None:
    async def play(stage: Stage) -> None:
        start = trio.current_time()
        result = await wait_for(stage.join())
        assert result.error is ErrorCode.NONE
        assert trio.current_time() - start == pytest.approx(3)

    run(play, **{"group.initial.rebalance.delay.ms": "3000"})


def test_member_lives_as_long_as_its_heartbeats_come() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        for _ in range(20):
            await trio.sleep(9)
            assert stage.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1)) is ErrorCode.NONE
        await trio.sleep(9.9)
        assert stage.state() == "Stable"
        await trio.sleep(0.2)
        assert stage.state() == "Empty"

    run(play)


def test_member_whose_heartbeat_waited_while_the_broker_stood_still_lives_on() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        mock_clock = trio.lowlevel.current_clock()
        assert isinstance(mock_clock, trio.testing.MockClock)
        mock_clock.jump(60)
        await trio.sleep(0.5)
        assert stage.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1)) is ErrorCode.NONE
        await trio.sleep(9.9)
        assert stage.state() == "Stable"
        await trio.sleep(0.2)
        assert stage.state() == "Empty"

    run(play)


def test_first_members_of_a_group_do_not_wait_longer_because_the_broker_stood_still() -> None:
    async def play(stage: Stage) -> None:
        joining = stage.join()
        mock_clock = trio.lowlevel.current_clock()
        assert isinstance(mock_clock, trio.testing.MockClock)
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        assert joining.is_done

    run(play, **{"group.initial.rebalance.delay.ms": "3000"})


def test_heartbeats_leave_one_timer_each_member() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        before = len(stage.clock._timers)
        for _ in range(1000):
            stage.runtime.heartbeat(HeartbeatRequest("g", joined.member_id, 1))
        assert len(stage.clock._timers) == before

    run(play)


def test_member_found_in_the_log_has_one_session_to_show_up() -> None:
    async def play(stage: Stage) -> None:
        await stage.join_alone()
        again = stage.restarted()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.clock.run)
            await trio.sleep(9.9)
            assert again.state() == "Stable"
            await trio.sleep(0.2)
            assert again.state() == "Empty"
            nursery.cancel_scope.cancel()

    run(play)


def test_offsets_expire_when_they_are_looked_for() -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        await trio.sleep(61)
        stage.commit(5, "other")
        await trio.sleep(598)
        assert stage.offsets() == {"t": {0: 5}}
        await trio.sleep(2)
        assert stage.offsets() == {}
        assert stage.offsets("other") == {"t": {0: 5}}
        assert [group.group_id for group in finish(stage.runtime.list_groups())] == ["other"]
        await trio.sleep(660)
        assert finish(stage.restarted().runtime.list_groups()) == []

    run(play, **{"offsets.retention.minutes": "10", "offsets.retention.check.interval.ms": "660000"})


def test_offsets_expire_again_after_something_has_gone_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(stage: Stage) -> None:
        stage.commit(5)
        with monkeypatch.context() as broken, capture_logs() as lines:
            broken.setattr(stage.runtime.coordinator, "expire", lambda now_ms: 1 // 0)
            await trio.sleep(601)
        assert [line["event"] for line in lines] == ["Offsets cannot be expired"]
        await trio.sleep(601)
        assert stage.offsets() == {}

    run(play, **{"offsets.retention.minutes": "1"})


def test_group_whose_members_have_all_got_their_assignment_waits_for_nothing_but_their_sessions() -> None:
    async def play(stage: Stage) -> None:
        joined = await stage.join_alone()
        assert [(key.purpose, key.member_id) for key in stage.runtime._timers._armed] == [("session", joined.member_id)]

    run(play)


def test_timer_that_is_set_again_fires_once_at_its_last_time() -> None:
    key, event = session_timer("g", "m"), SessionExpired("g", "m")

    async def play(stage: Stage) -> None:
        expired: list[float] = []
        stage.runtime.coordinator._on_timer[SessionExpired] = lambda event, now_ms, out: expired.append(trio.current_time())
        start = trio.current_time()
        effects = Effects()
        for delay_ms in (10_000, 20_000, 5000):
            effects.set_timer(key, delay_ms, event)
        effects.set_timer_if_absent(key, 1000, event)
        stage.runtime.run("g", effects)
        with capture_logs() as lines:
            await trio.sleep(30)
        assert [time - start for time in expired] == pytest.approx([5])
        assert not lines
        assert not stage.runtime._timers

    run(play)


def test_timer_that_is_cancelled_never_fires() -> None:
    fired: list[TimerEvent] = []
    clock = ManualClock(0)
    timers = GroupTimers(cast(Clock, clock), fired.append)
    key, event = session_timer("g", "m"), SessionExpired("g", "m")
    timers.apply([SetTimer(key, 1000, event), key])
    clock.pass_time(5000)
    assert fired == []
    timers.apply([SetTimer(key, 1000, event)])
    clock.pass_time(1000)
    assert fired == [event]
