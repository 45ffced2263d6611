"""Random members of both protocols, crashes, lost answers, delays, full disks and topics that change, against consumer groups.

Each client here is an honest consumer: it reads only its assigned partitions, reports the partitions that it owns, and revokes
partitions before it reports the revocation; but it takes each step at a random time, or never.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wirekafka.coordinator.groups.classic.group import ClassicGroup
from wirekafka.coordinator.groups.consumer.consumer_protocol import read_assignment, write_assignment
from wirekafka.coordinator.groups.consumer.group import ConsumerGroup
from wirekafka.coordinator.groups.consumer.member import ConsumerMember
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.groups.consumer.settings import GroupTimes
from wirekafka.coordinator.groups.consumer.timers import session_timer
from wirekafka.coordinator.groups.modern.group import ModernGroup
from wirekafka.coordinator.groups.modern.topics import Partitions
from wirekafka.coordinator.groups.requests import (
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.pending import Pending
from wirekafka.tests.coordinator.groups.consumer.world import ConsumerWorld, subscription

GROUP = "g"
Place = tuple[bytes, int]
CLASSIC_SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
TIMES = GroupTimes(session_timeout_ms=45_000, assignment_interval_ms=1000)
SUBSCRIPTIONS = (("a", ""), ("b", ""), ("a,b", ""), ("", "a|b"), ("b", "a"), ("", ""))


def places(partitions: Partitions) -> set[Place]:
    return {(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes}


@dataclass(eq=False)
class Client:
    """Attributes:
    owned: the partitions that the client reads.
    told: the assignment that the client has not applied yet; None if it has applied all.
    """

    name: str
    instance: str | None
    is_classic: bool = False
    member_id: str = ""
    epoch: int = 0
    owned: set[Place] = field(default_factory=set)
    told: set[Place] | None = None
    must_sync: bool = False
    waits_for: Pending[Any] | None = None

    def forget(self, member_id: str = "") -> None:
        self.member_id, self.epoch, self.owned, self.told, self.must_sync = member_id, 0, set(), None, False


CLIENTS = st.integers(0, 5)


class ConsumerGroups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld(CLASSIC_SETTINGS, times=TIMES)
        self.world.image.put("a", 3)
        self.world.image.put("b", 2)
        self.lives = 0
        self.clients = [self.new_client(number) for number in range(6)]
        self.last: ConsumerGroup | None = None
        self.last_epochs = (0, 0)

    def new_client(self, number: int) -> Client:
        """Clients 0 to 3 use the consumer protocol, 4 and 5 the classic one; 3 and 5 are static, with the same instance id."""
        self.lives += 1
        client = Client(f"c{number}", "i" if number in (3, 5) else None, number >= 4)
        if not client.is_classic:
            client.member_id = f"c{number}-{self.lives}"
        return client

    @property
    def group(self) -> ConsumerGroup | None:
        return self.world.consumer_group(GROUP)

    @rule(number=st.integers(0, 3), said=st.sampled_from(SUBSCRIPTIONS), is_heard=st.booleans())
    def beat(self, number: int, said: tuple[str, str] = SUBSCRIPTIONS[2], is_heard: bool = True) -> None:
        """A consumer member joins or sends a heartbeat; the answer may be lost."""
        client = self.clients[number]
        names, regex = said
        is_joining = client.epoch == 0
        request = ConsumerHeartbeat(GROUP, client.member_id, client.epoch, client.name, "/::1", client.instance)
        if is_joining:
            client.owned, client.told = set(), None
            request.rebalance_timeout_ms = 20_000
            request.subscribed_topic_names = [name for name in names.split(",") if name]
            request.subscribed_topic_regex = regex
        request.owned = {topic: [i for t, i in client.owned if t == topic] for topic, _ in client.owned}
        try:
            result = self.world.heartbeat(request)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return
            client.forget(client.member_id)
            return
        if is_heard:
            client.epoch = result.member_epoch
            if result.assignment is not None:
                client.told = places(result.assignment)

    @rule(number=st.integers(0, 3))
    def obey(self, number: int) -> None:
        """A consumer member revokes and takes partitions by its last assignment."""
        client = self.clients[number]
        if client.told is not None:
            client.owned, client.told = client.told, None

    @rule(number=st.integers(4, 5))
    def join(self, number: int) -> None:
        """A classic member with an eager assignor: it revokes everything before it joins."""
        client = self.clients[number]
        if client.waits_for is not None:
            return
        client.owned, client.must_sync = set(), False
        request = JoinRequest(
            GROUP, client.member_id, client.name, "/::1", 10_000, 20_000, "consumer", [("range", subscription(["a", "b"]))]
        )
        request.group_instance_id = client.instance
        pending = self.world.join(request, lambda result: self.joined(client, result))
        client.waits_for = None if pending.is_done else pending

    def joined(self, client: Client, result: JoinResult) -> None:
        client.waits_for = None
        if result.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
        elif result.error is ErrorCode.REBALANCE_IN_PROGRESS:
            client.owned = set()
        elif result.error is not ErrorCode.NONE:
            client.forget()
        else:
            client.member_id, client.epoch, client.must_sync = result.member_id, result.generation_id, True
            self.leads = [member.member_id for member in result.members]

    @rule(number=st.integers(4, 5))
    def sync(self, number: int) -> None:
        client = self.clients[number]
        if client.waits_for is not None or not client.must_sync:
            return
        everything = sorted((topic.topic_id, index) for topic in self.world.image for index in topic.partitions)
        shares: dict[str, dict[bytes, list[int]]] = {}
        for turn, (topic_id, index) in enumerate(everything):
            if self.leads:
                shares.setdefault(self.leads[turn % len(self.leads)], {}).setdefault(topic_id, []).append(index)
        assignments = {name: write_assignment(share, self.world.image, 1) for name, share in shares.items()}
        request = SyncRequest(GROUP, client.member_id, client.epoch, client.instance, assignments=assignments)
        pending = self.world.sync(request, lambda result: self.synced(client, result))
        client.waits_for = None if pending.is_done else pending

    leads: list[str] = []

    def synced(self, client: Client, result: SyncResult) -> None:
        client.waits_for, client.must_sync = None, False
        if result.error is ErrorCode.NONE:
            client.owned = places(read_assignment(result.assignment, self.world.image)[0])
        elif result.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            client.forget()

    @rule(number=st.integers(4, 5))
    def classic_heartbeat(self, number: int) -> None:
        client = self.clients[number]
        if client.waits_for is not None or not client.epoch or client.must_sync:
            return
        beat = HeartbeatRequest(GROUP, client.member_id, client.epoch, client.instance)
        error, effects = self.world.coordinator.membership.heartbeat(beat, self.world.now_ms)
        self.world.run(effects)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join(number)
        elif error is not ErrorCode.NONE:
            client.forget()

    @rule(number=CLIENTS, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.clients[number]
        if client.waits_for is not None or not client.epoch:
            return
        if client.is_classic:
            self.world.leave(GROUP, LeavingMember(client.member_id, client.instance))
            client.forget()
            return
        epoch = -2 if for_a_while and client.instance is not None else -1
        with suppress(KafkaError):
            self.world.heartbeat(ConsumerHeartbeat(GROUP, client.member_id, epoch, instance_id=client.instance))
        self.clients[number] = self.new_client(number)

    @rule(number=CLIENTS)
    def crash_of_client(self, number: int) -> None:
        self.clients[number] = self.new_client(number)

    @rule(
        who=st.sets(CLIENTS, min_size=1, max_size=4),
        slow=st.sets(CLIENTS, max_size=1),
        rounds=st.integers(1, 6),
        ms=st.sampled_from([0, 400, 1000, 5000]),
    )
    def go_on(self, who: set[int], slow: set[int], rounds: int, ms: int) -> None:
        """Lets some clients take their next steps for a while, so that groups become stable. Slow clients process records."""
        for _ in range(rounds):
            for number in sorted(who):
                self.step(number, is_slow=number in slow)
            self.world.pass_time(ms)

    def step(self, number: int, is_slow: bool = False) -> None:
        client = self.clients[number]
        if not client.is_classic:
            if not is_slow:
                self.obey(number)
            self.beat(number)
        elif client.must_sync:
            self.sync(number)
        elif client.epoch:
            self.classic_heartbeat(number)
        else:
            self.join(number)

    @rule(ms=st.sampled_from([1, 999, 1000, 5000, 10_001, 20_000, 45_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(name=st.sampled_from("ab"), partition_count=st.integers(1, 4))
    def change_topic(self, name: str, partition_count: int) -> None:
        known = self.world.image.find(name)
        if known is None or len(known.partitions) < partition_count:
            self.world.image.put(name, partition_count)
        elif partition_count == 1:
            self.world.image.delete(name)

    @rule()
    def crash_of_broker(self) -> None:
        self.world.reload()
        self.last = None
        for client in self.clients:
            if client.waits_for is not None:
                client.waits_for = None

    @rule()
    def fill_disk(self) -> None:
        self.world.disk_error = ErrorCode.KAFKA_STORAGE_ERROR

    @precondition(lambda self: self.world.disk_error is not None)
    @rule()
    def free_disk(self) -> None:
        self.world.disk_error = None

    @rule()
    def expire(self) -> None:
        self.world.expire()

    def is_known(self, client: Client) -> bool:
        """Returns whether the coordinator has the client as a member, at the client's epoch or the one before."""
        group = self.world.coordinator.groups.get(GROUP)
        if isinstance(group, ClassicGroup):
            member_ids = group.members.keys()
            return client.is_classic and client.member_id in member_ids and client.epoch == group.generation_id
        member = None if self.group is None else self.group.members.get(client.member_id)
        return member is not None and client.epoch in (member.member_epoch, member.previous_member_epoch)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owned = [place for client in self.clients if self.is_known(client) for place in client.owned]
        assert len(owned) == len(set(owned))
        if self.group is None:
            return
        held = [place for member in self.group.members.values() for place in held_by(member)]
        assert len(held) == len(set(held))
        assert set(held) == {(topic, index) for topic, epochs in self.group.partition_epochs.items() for index in epochs}

    @invariant()
    def epochs_never_go_back(self) -> None:
        group = self.group
        if group is None or group is not self.last:
            self.last, self.last_epochs = group, (0, 0)
        if group is None:
            return
        assert group.assignment_epoch <= group.group_epoch
        assert all(member.member_epoch <= group.assignment_epoch for member in group.members.values())
        epochs = (group.group_epoch, group.assignment_epoch)
        assert epochs >= self.last_epochs
        self.last_epochs = epochs

    @invariant()
    def counts_are_right(self) -> None:
        group = self.group
        if group is None:
            return
        members = group.members.values()
        assert group.static_members == {m.instance_id: m.member_id for m in members if m.instance_id is not None}
        assert group.classic_count == sum(member.is_classic for member in members)
        assert {*group.subscriptions} == {name for member in members for name in member.subscribed_topic_names}
        assert group.regexes.keys() == {m.subscribed_topic_regex for m in members if m.subscribed_topic_regex}
        assert group.resolved.keys() <= group.regexes.keys()
        assert group.targets.keys() <= group.members.keys()

    @invariant()
    def hash_is_that_of_what_members_read(self) -> None:
        group = self.group
        if group is not None and not group.is_refresh_due:
            topics = {*group.subscriptions, *group.regex_topics}
            assert group.metadata_hash == self.world.image.hashes.of_topics(topics)
            assert group.current_hash(self.world.image.hashes) == group.metadata_hash

    @invariant()
    def every_member_has_a_session(self) -> None:
        if self.group is not None:
            assert all(session_timer(GROUP, member_id) in self.world.timers for member_id in self.group.members)

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        copy = ConsumerWorld(CLASSIC_SETTINGS, times=TIMES)
        copy.image = self.world.image
        copy.log.appended = list(self.world.log.appended)
        copy.now_ms = self.world.now_ms
        copy.reload()
        assert state_of(copy.consumer_group(GROUP)) == state_of(self.group)

    def teardown(self) -> None:
        self.world.disk_error = None
        self.world.pass_time(3_600_000)
        for client in list(self.clients):
            assert client.waits_for is None
        for number in (0, 1, 3):
            self.clients[number] = self.new_client(number)
        for _ in range(12):
            for number in (0, 1, 3, 4):
                self.step(number)
            self.world.pass_time(3000)
        group = self.group
        assert group is not None
        assert group.state_name == "Stable"
        everything = {(topic.topic_id, index) for topic in self.world.image for index in topic.partitions}
        for number in (0, 1, 3):
            self.obey(number)
        owners = [self.clients[number] for number in (0, 1, 3, 4)]
        assert {place for client in owners for place in client.owned} == everything
        self.world.pass_time(3_600_000)
        assert group.state_name == "Empty"


def held_by(member: ConsumerMember) -> set[Place]:
    has = [*member.assigned.items(), *member.pending_revocation.items()]
    return {(topic_id, index) for topic_id, epochs in has for index in epochs}


def state_of(group: ConsumerGroup | None) -> object:
    """Returns the state of a group that must survive a restart of the broker."""
    if group is None:
        return None
    skipped = {"image", "refreshed", "partition", "subscriptions", "_known_hash", "_regex_revision"}
    names = {*ConsumerGroup.__slots__, *ModernGroup.__slots__} - skipped
    return {name: getattr(group, name) for name in names}, sorted(group.subscriptions)


ConsumerGroups.TestCase.settings = settings(max_examples=100, stateful_step_count=50, derandomize=True)
TestRandomConsumerGroups = ConsumerGroups.TestCase
