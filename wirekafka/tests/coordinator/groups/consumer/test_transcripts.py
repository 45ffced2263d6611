"""The transcripts of consumer groups, in `transcripts/consumer_groups`.

Inputs, with their defaults, beside those of the classic groups' transcripts: `settings max_size= policy=bidirectional
interval=1000 assignors=uniform,range delay=3000` (first line only), `topic NAME PARTITIONS` (creates or grows), `delete-topic
NAME`, `beat MEMBER EPOCH topics=a,b regex= instance= rack= rebalance= assignor= owned=a-0,a-1 group=g version=1` (a field that
is not given is null; `owned=-` is an empty list), `classic CLIENT topics=a,b owned= member= instance= session=10000
rebalance=20000 protocol=range` (JoinGroup of a classic consumer), `classic-sync MEMBER GENERATION`, `describe-group`,
`fetch MEMBER EPOCH` (whether the member may fetch offsets). `commit` has the `version` of OffsetCommit, 9 by default.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.coordinator.groups.consumer.consumer_protocol import read_assignment
from wirekafka.coordinator.groups.consumer.requests import ConsumerHeartbeat
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings, GroupTimes, MigrationPolicy
from wirekafka.coordinator.groups.requests import CommitRequest, JoinRequest, PartitionCommit, SyncRequest, SyncResult
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.errors import ErrorCode
from wirekafka.pending import Pending
from wirekafka.tests.coordinator import transcripts
from wirekafka.tests.coordinator.groups.consumer.world import ConsumerWorld, subscription
from wirekafka.tests.coordinator.groups.test_transcripts import GroupPlayer


@pytest.mark.parametrize("path", transcripts.transcripts_in("consumer_groups"), ids=lambda path: path.stem)
def test_transcript_replayed_is_unchanged(path: Path, request: pytest.FixtureRequest) -> None:
    transcripts.check(path, ConsumerPlayer(), request)


class ConsumerPlayer(GroupPlayer):
    world: ConsumerWorld

    def __init__(self) -> None:
        self.world = ConsumerWorld()

    def do_settings(  # type: ignore[override]
        self,
        max_size: str = "100",
        policy: str = "bidirectional",
        interval: str = "1000",
        assignors: str = "uniform,range",
        delay: str = "3000",
    ) -> None:
        self.world = ConsumerWorld(
            GroupSettings(initial_rebalance_delay_ms=int(delay), max_size=100),
            ConsumerSettings(
                max_size=int(max_size),
                assignors=tuple(assignors.split(",")),
                migration_policy=MigrationPolicy(policy),
            ),
            GroupTimes(assignment_interval_ms=int(interval)),
        )

    def do_topic(self, name: str, partitions: str) -> None:
        self.world.image.put(name, int(partitions))

    def do_delete_topic(self, name: str) -> None:
        self.world.image.delete(name)

    def do_beat(
        self,
        member: str,
        epoch: str,
        topics: str | None = None,
        regex: str | None = None,
        instance: str | None = None,
        rack: str | None = None,
        rebalance: str | None = None,
        assignor: str | None = None,
        owned: str | None = None,
        group: str = "g",
        version: str = "1",
    ) -> None:
        is_joining = epoch == "0"
        if is_joining:
            owned, rebalance = owned or "-", rebalance or "20000"
        result = self.world.heartbeat(
            ConsumerHeartbeat(
                group,
                member,
                int(epoch),
                "c",
                "/::1",
                instance_id=instance,
                rack_id=rack,
                rebalance_timeout_ms=None if rebalance is None else int(rebalance),
                subscribed_topic_names=None if topics is None else [name for name in topics.split(",") if name],
                subscribed_topic_regex=regex,
                server_assignor=assignor,
                owned=None if owned is None else self.world.owned_of([] if owned == "-" else owned.split(",")),
                is_member_id_required=version != "0",
            )
        )
        given = "as before" if result.assignment is None else self.world.partitions(result.assignment)
        self.tell(f"answer: {result.member_id} at {result.member_epoch}, assigned {given}")

    def do_classic(
        self,
        client: str,
        topics: str = "a",
        owned: str = "",
        member: str = "",
        instance: str | None = None,
        session: str = "10000",
        rebalance: str = "20000",
        protocol: str = "range",
        group: str = "g",
    ) -> None:
        metadata = subscription(topics.split(","), [word for word in owned.split(",") if word])
        self.world.join(
            JoinRequest(
                group_id=group,
                member_id=member,
                client_id=client,
                client_host="/::1",
                session_timeout_ms=int(session),
                rebalance_timeout_ms=int(rebalance),
                protocol_type="consumer",
                protocols=[(protocol, metadata)],
                group_instance_id=instance,
            )
        )

    def do_classic_sync(self, member: str, generation: str, instance: str | None = None, group: str = "g") -> None:
        pending: Pending[SyncResult] = Pending()
        request = SyncRequest(group, member, int(generation), instance)
        pending.then(self.synced)
        self.world.run(self.world.coordinator.membership.sync(request, pending, self.world.now_ms))

    def synced(self, result: SyncResult) -> None:
        if result.error is not ErrorCode.NONE:
            self.tell(f"answer: {result.error.name}")
        else:
            self.tell(f"answer: {self.world.partitions(read_assignment(result.assignment, self.world.image)[0])}")

    def do_commit(self, *offsets: str, member: str = "", generation: str = "-1", version: str = "9", group: str = "g") -> None:  # type: ignore[override]
        commits = []
        for word in offsets:
            place, _, offset = word.partition("=")
            topic, partition = place.rsplit("-", 1)
            commits.append(PartitionCommit(topic, int(partition), int(offset)))
        request = CommitRequest(group, commits, member, int(generation), knows_consumer_protocol=int(version) >= 9)
        errors, effects = self.world.coordinator.offsets.commit(request, self.world.now_ms)
        self.world.run(effects)
        for error in errors:
            self.answer(error)

    def do_describe_group(self, group: str = "g") -> None:
        found = self.world.machine.groups.describe(group)
        self.tell(f"{found.state}, epoch {found.group_epoch}, target of {found.assignment_epoch}, {found.assignor}")
        for member in found.members:
            has = {topic: frozenset(partitions) for topic, partitions in member.assignment.items()}
            kind = "classic" if member.is_classic else "consumer"
            self.tell(f"{member.member_id} {kind} at {member.member_epoch} has {self.world.partitions(has)}")

    def do_fetch(self, member: str, epoch: str, group: str = "g") -> None:
        self.world.coordinator.groups[group].check_fetch(member, int(epoch))
        self.answer(ErrorCode.NONE)
