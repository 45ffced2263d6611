"""The transcripts of the group coordinator, in `transcripts/groups`.

Inputs, with their defaults: `settings delay=3000 max_size=.. retention=..` (first line only), `join CLIENT member= instance=
session=10000 rebalance=20000 protocols=range:META,.. version=9 group=g`, `sync MEMBER generation assignments=MEMBER:BYTES,..`,
`heartbeat MEMBER GENERATION`, `leave MEMBER..` or `leave instance=..`, `commit TOPIC-PARTITION=OFFSET.. member= generation=
metadata= retention= timestamp=`, the same with `producer=ID` for a commit in its transaction, `end-transaction ID
commit|abort`, `delete-offsets TOPIC-PARTITION..`, `delete-group`, `list`, `forget-topic TOPIC`, `pass MS`,
`expire`, `disk full`, `disk free`, `reload`, `describe`. All but `settings` take `group=`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.coordinator.effects import WritingProducer, append_error
from wirekafka.coordinator.groups.requests import (
    CommitRequest,
    HeartbeatRequest,
    JoinRequest,
    LeavingMember,
    PartitionCommit,
    SyncRequest,
)
from wirekafka.coordinator.groups.settings import GroupSettings
from wirekafka.coordinator.groups.types import DEAD
from wirekafka.errors import ErrorCode
from wirekafka.pending import finish
from wirekafka.tests.coordinator import transcripts
from wirekafka.tests.coordinator.groups.world import World


@pytest.mark.parametrize("path", transcripts.transcripts_in("groups"), ids=lambda path: path.stem)
def test_transcript_replayed_is_unchanged(path: Path, request: pytest.FixtureRequest) -> None:
    transcripts.check(path, GroupPlayer(), request)


class GroupPlayer(transcripts.Player):
    def __init__(self) -> None:
        self.world = World()

    def story(self) -> list[str]:
        return self.world.story

    def states(self) -> list[str]:
        return self.world.states()

    def is_named(self, verb: str, word: str) -> bool:
        return not (verb == "commit" and "-" in word.partition("=")[0])

    def answer(self, error: ErrorCode) -> None:
        self.tell(f"answer: {error.name}")

    def do_settings(self, delay: str = "3000", max_size: str = "100", retention: str = "100000") -> None:
        settings = GroupSettings(
            initial_rebalance_delay_ms=int(delay), max_size=int(max_size), offsets_retention_ms=int(retention)
        )
        self.world = World(settings, self.world.topics)
        self.world.reload()

    def do_join(
        self,
        client: str,
        member: str = "",
        instance: str | None = None,
        session: str = "10000",
        rebalance: str = "20000",
        protocols: str = "range:m",
        version: str = "9",
        type: str = "consumer",
        group: str = "g",
    ) -> None:
        pairs = [pair.partition(":") for pair in protocols.split(",") if pair]
        self.world.join(
            JoinRequest(
                group_id=group,
                member_id=member,
                client_id=client,
                client_host="/127.0.0.1",
                session_timeout_ms=int(session),
                rebalance_timeout_ms=int(rebalance),
                protocol_type=type,
                protocols=[(name, metadata.encode()) for name, _, metadata in pairs],
                group_instance_id=instance,
                is_member_id_required=int(version) >= 4,
                can_skip_assignment=int(version) >= 9,
            )
        )

    def do_sync(
        self,
        member: str,
        generation: str,
        assignments: str = "",
        instance: str | None = None,
        protocol: str | None = None,
        group: str = "g",
    ) -> None:
        pairs = [pair.partition(":") for pair in assignments.split(",") if pair]
        self.world.sync(
            SyncRequest(
                group,
                member,
                int(generation),
                group_instance_id=instance,
                protocol_name=protocol,
                assignments={name: assignment.encode() for name, _, assignment in pairs},
            )
        )

    def do_heartbeat(self, member: str, generation: str, instance: str | None = None, group: str = "g") -> None:
        beat = HeartbeatRequest(group, member, int(generation), instance)
        error, effects = self.world.coordinator.membership.heartbeat(beat, self.world.now_ms)
        self.world.run(effects)
        self.answer(error)

    def do_leave(self, *members: str, instance: str | None = None, group: str = "g") -> None:
        leaving = [LeavingMember(member, instance) for member in members or ("",)]
        result, effects = self.world.coordinator.membership.leave(group, leaving, self.world.now_ms)
        self.world.run(effects)
        for error in result.members or [result.error]:
            self.answer(error)

    def do_commit(
        self,
        *offsets: str,
        member: str = "",
        generation: str = "-1",
        metadata: str = "",
        retention: str | None = None,
        timestamp: str | None = None,
        instance: str | None = None,
        producer: str | None = None,
        group: str = "g",
    ) -> None:
        commits = []
        for word in offsets:
            place, _, offset = word.partition("=")
            topic, partition = place.rsplit("-", 1)
            when = None if timestamp is None else int(timestamp)
            commits.append(PartitionCommit(topic, int(partition), int(offset), None, metadata, when))
        request = CommitRequest(group, commits, member, int(generation), instance)
        request.retention_time_ms = None if retention is None else int(retention)
        offsets_, now_ms = self.world.coordinator.offsets, self.world.now_ms
        if producer is None:
            errors, effects = offsets_.commit(request, now_ms)
        else:
            errors, effects = offsets_.commit_in_transaction(request, WritingProducer(int(producer), 0), now_ms)
        failed = self.world.run(effects)
        for error in errors:
            self.answer(error if failed is None else append_error(failed))

    def do_end_transaction(self, producer: str, how: str) -> None:
        self.world.end_transaction(int(producer), is_commit=how == "commit")

    def do_delete_offsets(self, *places: str, group: str = "g") -> None:
        partitions = [(place.rsplit("-", 1)[0], int(place.rsplit("-", 1)[1])) for place in places]
        errors, effects = self.world.coordinator.offsets.delete(group, partitions)
        self.world.run(effects)
        for error in errors:
            self.answer(error)

    def do_delete_group(self, group: str = "g") -> None:
        for effects in self.world.coordinator.delete_group(group):
            self.world.run(effects)

    def do_forget_topic(self, topic: str) -> None:
        for _, effects in self.world.coordinator.forget_topic(topic):
            self.world.run(effects)

    def do_list(self, states: str = "", types: str = "") -> None:
        listed = finish(self.world.coordinator.list_groups(filter(None, states.split(",")), filter(None, types.split(","))))
        self.world.story += [
            f"{group.group_id} {group.protocol_type or '-'} {group.state} {group.group_type}" for group in listed
        ]

    def do_describe(self, group: str = "g") -> None:
        found: Any = self.world.coordinator.describe(group)
        if found is None:
            self.tell(DEAD)
            return
        self.tell(f"{found.state} {found.protocol_type} {found.protocol_name}".rstrip())
        for member in found.members:
            self.tell(f"{member.member_id} {member.metadata.decode()} -> {member.assignment.decode()}".rstrip())

    def do_pass(self, ms: str) -> None:
        self.world.pass_time(int(ms))

    def do_expire(self) -> None:
        self.world.expire()

    def do_disk(self, how: str) -> None:
        self.world.disk_error = ErrorCode.KAFKA_STORAGE_ERROR if how == "full" else None

    def do_reload(self) -> None:
        self.world.reload()
