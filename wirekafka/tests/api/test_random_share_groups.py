"""Random members of a share group against a broker: they fetch, wait, acknowledge, disconnect, and let locks expire.

Invariants: no record has two owners, no accepted or rejected record is delivered again, no member waits while records are
available for it, and at the end every record was accepted, rejected or delivered for the last time.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.coordinator.share_delivery.acquisition import Limits
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.sharing import ACCEPT, REJECT, RELEASE, Member, acquired, append, errors, run, topic_id

STEPS = 150
LOCK_S = 15
MOST_IN_FLIGHT = 100
MOST_DELIVERIES = 5
FINAL = {ACCEPT, REJECT}
PARTITIONS = (0, 1)


class Actor:
    """A member, its waiting fetch, and its acquired records: offsets by partition, with the expiry time of each lock."""

    def __init__(self, caller: Caller, number: int) -> None:
        self.member = Member(caller, f"m{number}")
        self.pending: Pending[Any] | None = None
        self.has: dict[tuple[int, int], float] = {}
        self.joined = False
        self.is_gone = False


class Play:
    def __init__(self, caller: Caller, seed: int) -> None:
        self.caller = caller
        self.chance = random.Random(seed)
        self.members_ever = 0
        self.actors = [self.new_actor() for _ in range(3)]
        self.written: set[tuple[int, int]] = set()
        self.done: set[tuple[int, int]] = set()
        self.given_up: set[tuple[int, int]] = set()  # or about to be archived: it was their last delivery

    def new_actor(self) -> Actor:
        self.members_ever += 1
        return Actor(self.caller, self.members_ever)

    async def step(self) -> None:
        for each in self.actors:
            each.member.heartbeat()
        actor = self.chance.choice(self.actors)
        what = self.chance.choice(["append", "fetch", "fetch", "acknowledge", "acknowledge", "pass", "disconnect", "leave"])
        if what == "append":
            partition = self.chance.choice(PARTITIONS)
            append(self.caller, *[b"v"] * self.chance.randint(1, 30), partition=partition)
            self.written.update((partition, offset) for offset in range(self.partition(partition).log.log_end_offset))
        elif what == "pass":
            await trio.sleep(self.chance.choice([0.1, LOCK_S, LOCK_S]))
        elif what in {"disconnect", "leave"}:
            if self.chance.random() < 1 / 4:
                self.end(actor, leaves=what == "leave")
        elif actor.pending is None:
            self.act(actor, what)
        await trio.sleep(0.001)
        self.check()

    def act(self, actor: Actor, what: str) -> None:
        if what == "acknowledge":
            said = self.words_for(actor)
            if actor.joined and said:
                self.acknowledge(actor, said)
            return
        fields: dict[str, Any] = {
            "max_wait_ms": self.chance.choice([0, 100, 40_000, 40_000]),
            "max_records": self.chance.choice([1, 7, 500]),
            "batch_size": self.chance.choice([1, 7, 500]),
            "max_bytes": self.chance.choice([100, 1 << 20]),
            "share_acquire_mode": self.chance.choice([0, 0, 1]),
        }
        partitions = () if actor.joined else PARTITIONS
        response = actor.member.ask(actor.member.fetch_request(*partitions, **fields), 2)
        actor.member.session_epoch += 1
        actor.joined = True
        if isinstance(response, Pending):
            actor.pending = response
            response.then(lambda answer: self.fetched(actor, answer))
        else:
            self.fetched(actor, response)

    def fetched(self, actor: Actor, response: Any) -> None:
        actor.pending = None
        assert response.error_code == (ErrorCode.INVALID_SHARE_SESSION_EPOCH if actor.is_gone else 0)
        for index, lots in acquired(response).items():
            for first_offset, last_offset, delivery_count in lots:
                for offset in range(first_offset, last_offset + 1):
                    record = index, offset
                    assert record not in self.done | self.given_up
                    for other in self.actors:
                        assert other.has.get(record, -1) <= trio.current_time(), "somebody else has it"
                        other.has.pop(record, None)
                    if delivery_count == MOST_DELIVERIES:
                        self.given_up.add(record)
                    actor.has[record] = trio.current_time() + LOCK_S

    def words_for(self, actor: Actor) -> list[tuple[int, int, int, list[int]]]:
        """Acknowledges some of the records whose locks have not expired."""
        soon = trio.current_time() + 0.5
        has = sorted(record for record, deadline in actor.has.items() if deadline > soon)
        words = [ACCEPT, ACCEPT, ACCEPT, REJECT, RELEASE]
        return [
            (index, offset, offset, [self.chance.choice(words)])
            for index, offset in has[: self.chance.randint(0, len(has))]
            if self.chance.random() < 2 / 3
        ]

    def acknowledge(self, actor: Actor, said: list[tuple[int, int, int, list[int]]]) -> None:
        for index, offset, _, (what,) in said:
            del actor.has[index, offset]
            if what in FINAL:
                self.done.add((index, offset))
        assert set(errors(actor.member.acknowledge(*said)).values()) == {0}

    def end(self, actor: Actor, *, leaves: bool) -> None:
        actor.has.clear()
        actor.is_gone = True
        if leaves:
            actor.member.member_epoch = -1
            actor.member.heartbeat()
        if actor.pending is not None:
            actor.pending.abandon()
        actor.member.disconnect()
        self.actors[self.actors.index(actor)] = self.new_actor()

    def partition(self, index: int) -> Any:
        topic = self.caller.broker.topics.find("flights")
        assert topic is not None
        return topic.partitions[index]

    def check(self) -> None:
        """Raises if a member waits while records are available for it."""
        shares = self.caller.broker.share_groups.partitions
        limits = Limits(lock_duration_ms=LOCK_S * 1000, max_in_flight=MOST_IN_FLIGHT)
        if not any(actor.pending is not None for actor in self.actors):
            return
        for index in PARTITIONS:
            loaded = shares.find(ShareKey("g", topic_id(self.caller), index))
            assert loaded is not None, "somebody waits for it"
            is_in_vain = (
                loaded.share.can_acquire(limits) and loaded.share.fetch_offset() < self.partition(index).log.high_watermark
            )
            assert not is_in_vain

    async def finish(self) -> None:
        """Lets another member take the remaining records."""
        for actor in list(self.actors):
            self.end(actor, leaves=True)
        last = self.actors[0]
        while not self.done | self.given_up >= self.written:
            self.fetched(last, await last.member.fetch(*(() if last.joined else PARTITIONS)))
            last.joined = True
            assert last.has, "something is lost"
            self.acknowledge(last, [(index, offset, offset, [ACCEPT]) for index, offset in sorted(last.has)])


@pytest.mark.parametrize("seed", range(6))
def test_random_members_do_with_every_record(tmp_path: Path, seed: int) -> None:
    async def body(caller: Caller) -> None:
        settings = {
            "share.record.lock.duration.ms": str(LOCK_S * 1000),
            "share.partition.max.record.locks": str(MOST_IN_FLIGHT),
            "share.auto.offset.reset": "earliest",
        }
        caller.broker.topics.group_configs.alter("g", settings)
        play = Play(caller, seed)
        for _ in range(STEPS):
            await play.step()
        await play.finish()

    run(body, tmp_path, group_share_assignment_interval_ms="0")
