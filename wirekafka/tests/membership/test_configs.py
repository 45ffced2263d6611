"""The settings in ZooKeeper: they are read, followed and changed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import structlog.testing
import trio

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.configs import NOTIFICATION_LIFE_MS, REMEDY, ClusterConfigs
from wirekafka.metadata.config_resources import AlterConfigOp, Change, ChangedResource
from wirekafka.pending import Work, finish
from wirekafka.tests.membership.zookeeper import NOW_MS, Stage, play, until
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs, write_config_change
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    GetChildren,
    GetData,
    Operation,
    SetData,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

TOPIC, BROKER, GROUP = 2, 4, 32


class Table:
    """A table of topics, which keeps what it is told."""

    def __init__(self) -> None:
        self.overrides: dict[str, dict[str, str]] = {}
        self.group_overrides: dict[str, dict[str, str]] = {}
        self.has_group_configs = True
        self.reconfigured_count = 0

    def set_group_overrides(self, group_id: str, overrides: Mapping[str, str]) -> None:
        self.group_overrides[group_id] = dict(overrides)

    def set_overrides(self, name: str, overrides: Mapping[str, str]) -> None:
        self.overrides[name] = dict(overrides)

    def reconfigure(self) -> Work[None]:
        self.reconfigured_count += 1
        yield

    def find(self, name: str) -> object | None:
        return self.overrides.get(name)


class Member:
    """A broker whose settings are in the model.

    Attributes:
        now_ms: the time, which a test moves.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.config = BrokerConfig.load(None, {"zookeeper.connect": "model", "broker.id": "3"})
        self.topics = Table()
        self.now_ms = NOW_MS
        self.configs = ClusterConfigs(stage.zookeeper, self.config, self.topics, finish, lambda: self.now_ms)

    async def put(self, entity: str, **configs: str) -> None:
        """Changes settings as another broker does."""
        path = f"{paths.CONFIG}/{entity}"
        content = EntityConfigs({name.replace("_", "."): text for name, text in configs.items()}).write()
        await self.stage.zookeeper.create_persistent(path, content)
        await self.stage.zookeeper.ask(
            Create(paths.CONFIG_CHANGE_PREFIX, write_config_change(entity), sequential=True),
        )

    async def stored(self, entity: str) -> Mapping[str, str]:
        path = f"{paths.CONFIG}/{entity}"
        return EntityConfigs.read(path, (await self.stage.zookeeper.ask(GetData(path))).data).values

    async def notification_count(self) -> int:
        return len((await self.stage.zookeeper.ask(GetChildren(paths.CONFIG_CHANGES))).names)

    async def alter(
        self, type_: int, name: str, *changes: Change, keeps_others: bool = True, validate_only: bool = False
    ) -> KafkaError | None:
        replies: list[list[KafkaError | None]] = []
        self.configs.alter([ChangedResource(type_, name, changes, keeps_others, validate_only)]).then(replies.append)
        await until(lambda: replies)
        return replies[0][0]


def run(act: Callable[[Member], Awaitable[None]], before: Callable[[Member], Awaitable[None]] | None = None) -> None:
    async def on_stage(stage: Stage) -> None:
        await stage.zookeeper.create_persistent(paths.CONFIG_CHANGES)
        member = Member(stage)
        if before is not None:
            await before(member)
        await member.configs.load()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.configs.run)
            await trio.sleep(1)
            await act(member)
            nursery.cancel_scope.cancel()

    play(on_stage)


def set_(name: str, value: str) -> Change:
    return Change(name, AlterConfigOp.SET, value)


def test_settings_are_read_at_the_start() -> None:
    async def before(member: Member) -> None:
        await member.put("topics/t", retention_ms="1000")
        await member.put("brokers/<default>", log_retention_ms="2000", log_segment_bytes="2000000")
        await member.put("brokers/3", log_retention_ms="3000")
        await member.put("brokers/4", log_retention_ms="4000")

    async def act(member: Member) -> None:
        assert member.topics.overrides == {"t": {"retention.ms": "1000"}}
        assert member.config.integer("log.retention.ms") == 3000
        assert member.config.integer("log.segment.bytes") == 2_000_000
        assert member.topics.reconfigured_count == 1

    run(act, before)


def test_settings_that_have_no_effect_here_hide_no_others() -> None:
    async def before(member: Member) -> None:
        await member.put("topics/t", retention_ms="1", message_format_version="2.8", remote_storage_enable="true")
        await member.put("brokers/3", log_retention_ms="7", num_io_threads="9", log_segment_bytes="many", background_threads="1")

    async def act(member: Member) -> None:
        assert member.topics.overrides == {"t": {"retention.ms": "1"}}
        assert member.config.integer("log.retention.ms") == 7

    run(act, before)


def test_changes_of_other_brokers_are_followed() -> None:
    async def act(member: Member) -> None:
        told: list[tuple[str, str]] = []
        member.configs.on_change.append(lambda kind, entity: told.append((kind, entity)))
        await member.put("topics/t", retention_ms="1")
        await until(lambda: member.topics.overrides == {"t": {"retention.ms": "1"}})
        await member.put("brokers/<default>", log_retention_ms="5")
        await until(lambda: member.config.get("log.retention.ms") == 5)
        assert told == [("topics", "t"), ("brokers", "<default>")]
        member.stage.expire()
        await member.put("topics/u", retention_ms="2")
        await until(lambda: member.topics.overrides.get("u") == {"retention.ms": "2"})

    run(act)


def test_changes_whose_notifications_were_deleted_while_the_broker_had_no_session_are_followed() -> None:
    async def before(member: Member) -> None:
        await member.put("topics/t", retention_ms="1000")
        await member.put("groups/g", consumer_session_timeout_ms="50000")

    async def act(member: Member) -> None:
        zookeeper = member.stage.zookeeper
        for number in range(2):
            await zookeeper.ask(Delete(f"{paths.CONFIG_CHANGE_PREFIX}{number:010}"))
        await zookeeper.ask(SetData(f"{paths.CONFIG}/topics/t", EntityConfigs({"retention.ms": "2000"}).write()))
        await zookeeper.create_persistent(f"{paths.CONFIG}/brokers/3", EntityConfigs({"log.retention.ms": "4000"}).write())
        await zookeeper.ask(Delete(f"{paths.CONFIG}/groups/g"))
        await trio.sleep(10)
        assert member.topics.overrides == {"t": {"retention.ms": "1000"}}
        assert member.topics.group_overrides == {"g": {"consumer.session.timeout.ms": "50000"}}
        member.stage.expire()
        await until(lambda: not member.topics.group_overrides["g"])
        assert member.topics.overrides == {"t": {"retention.ms": "2000"}}
        assert member.config.integer("log.retention.ms") == 4000

    run(act, before)


def test_settings_stay_when_a_new_session_finds_no_cluster() -> None:
    async def before(member: Member) -> None:
        await member.put("brokers/3", log_retention_ms="-1")
        await member.stage.zookeeper.create_persistent(paths.CLUSTER_ID, b"c")

    async def act(member: Member) -> None:
        await member.stage.zookeeper.ask(Delete(paths.CLUSTER_ID))
        await member.stage.zookeeper.ask(Delete(f"{paths.CONFIG}/brokers/3"))
        session_id = member.stage.client.session_id
        member.stage.expire()
        await until(lambda: member.stage.client.session_id != session_id)
        await trio.sleep(10)
        assert member.config.integer("log.retention.ms") == -1

    run(act, before)


def test_settings_of_new_topics_are_read_on_request() -> None:
    async def act(member: Member) -> None:
        names = [f"t{number}" for number in range(200)]
        for name in names:
            path = paths.configs("topics", name)
            await member.stage.zookeeper.create_persistent(path, EntityConfigs({"retention.ms": "9"}).write())
        replies: list[None] = []
        member.configs.read([*names, "without"]).then(replies.append)
        await until(lambda: replies)
        assert member.topics.overrides == {name: {"retention.ms": "9"} for name in names} | {"without": {}}

    run(act)


def test_old_notifications_are_deleted() -> None:
    async def act(member: Member) -> None:
        await member.put("topics/t", retention_ms="1")
        await until(lambda: member.topics.overrides)
        assert await member.notification_count() == 1
        member.now_ms += NOTIFICATION_LIFE_MS + 1
        await member.put("topics/u", retention_ms="1")
        await until(lambda: "u" in member.topics.overrides)
        await trio.sleep(1)
        assert await member.notification_count() == 0

    run(act)


def test_change_of_a_topic_is_stored_and_all_brokers_are_notified() -> None:
    async def act(member: Member) -> None:
        await member.put("topics/t", retention_ms="1")
        await until(lambda: "t" in member.topics.overrides)
        assert await member.alter(TOPIC, "t", set_("cleanup.policy", "compact")) is None
        assert await member.stored("topics/t") == {"retention.ms": "1", "cleanup.policy": "compact"}
        await until(lambda: member.topics.overrides["t"] == {"retention.ms": "1", "cleanup.policy": "compact"})
        assert await member.notification_count() == 2
        assert await member.alter(TOPIC, "t", set_("segment.ms", "5"), keeps_others=False) is None
        assert await member.stored("topics/t") == {"segment.ms": "5"}

    run(act)


def test_change_of_a_client_that_disconnects_during_the_write_is_announced_to_all_brokers_and_no_other_begins() -> None:
    async def act(member: Member) -> None:
        await member.put("topics/t", retention_ms="1")
        await member.put("topics/u", retention_ms="1")
        await until(lambda: {"t", "u"} <= member.topics.overrides.keys())
        ask = member.stage.zookeeper.ask

        async def disconnect_before_the_write(operation: Operation[Any]) -> Any:
            if isinstance(operation, SetData):
                reply.abandon()
            return await ask(operation)

        member.stage.zookeeper.ask = disconnect_before_the_write  # type: ignore[method-assign]
        change = [set_("retention.ms", "2")]
        reply = member.configs.alter([ChangedResource(TOPIC, name, change, True, False) for name in ("t", "u")])
        await until(lambda: member.topics.overrides["t"] == {"retention.ms": "2"})
        await trio.sleep(1)
        assert await member.notification_count() == 3
        assert await member.stored("topics/u") == {"retention.ms": "1"}

    run(act)


def test_changes_of_clients_that_disconnect_while_zookeeper_is_away_do_not_accumulate() -> None:
    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}

        async def wait(operation: Operation[Any]) -> Any:
            await trio.sleep_forever()

        member.stage.zookeeper.ask = wait  # type: ignore[method-assign]
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(10):
            reply = member.configs.alter([ChangedResource(TOPIC, "t", [set_("retention.ms", "2")], True, False)])
            await trio.sleep(0.01)
            reply.abandon()
        await trio.sleep(1)
        assert trio.lowlevel.current_statistics().tasks_living == before

    run(act)


def test_write_that_zookeeper_does_not_answer_does_not_hold_up_the_end_of_the_broker() -> None:
    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}

        is_writing = trio.Event()

        async def wait(path: str, data: bytes) -> None:
            is_writing.set()
            await trio.sleep_forever()

        member.stage.zookeeper.create_persistent = wait  # type: ignore[assignment, method-assign]
        reply = member.configs.alter([ChangedResource(TOPIC, "t", [set_("retention.ms", "2")], True, False)])
        await is_writing.wait()
        reply.abandon()

    run(act)


def test_change_of_brokers_is_stored_and_applied() -> None:
    async def act(member: Member) -> None:
        assert await member.alter(BROKER, "", set_("log.retention.ms", "6")) is None
        assert await member.alter(BROKER, "3", set_("leader.replication.throttled.rate", "1000")) is None
        assert await member.stored("brokers/<default>") == {"log.retention.ms": "6"}
        assert await member.stored("brokers/3") == {"leader.replication.throttled.rate": "1000"}
        await until(lambda: member.config.get("log.retention.ms") == 6)
        await until(lambda: member.config.get("leader.replication.throttled.rate") == 1000)

    run(act)


def test_throttles_of_a_topic_are_stored_and_applied() -> None:
    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}
        change = Change("leader.replication.throttled.replicas", AlterConfigOp.APPEND, "0:1,0:2")
        assert await member.alter(TOPIC, "t", change) is None
        assert await member.stored("topics/t") == {"leader.replication.throttled.replicas": "0:1,0:2"}
        await until(lambda: member.topics.overrides["t"] == {"leader.replication.throttled.replicas": "0:1,0:2"})

    run(act)


@pytest.mark.parametrize(
    ("type_", "name", "change", "code"),
    [
        (TOPIC, "", set_("retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "a/b", set_("retention.ms", "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "unknown", set_("retention.ms", "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", set_("retention.ms", "soon"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", set_("no.such", "1"), ErrorCode.INVALID_CONFIG),
        (BROKER, "4", set_("log.retention.ms", "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "3", set_("num.partitions", "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "3", set_("log.retention.ms", "soon"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g", set_("consumer.session.timeout.ms", "1"), ErrorCode.INVALID_CONFIG),
        (GROUP, "g", set_("retention.ms", "1"), ErrorCode.INVALID_CONFIG),
        (GROUP, "", set_("consumer.session.timeout.ms", "50000"), ErrorCode.INVALID_REQUEST),
        (GROUP, "g" * 10_001, set_("consumer.session.timeout.ms", "50000"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_wrong_change_is_refused_and_stores_nothing(type_: int, name: str, change: Change, code: ErrorCode) -> None:
    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}
        error = await member.alter(type_, name, change)
        assert error is not None
        assert error.code is code
        assert await member.notification_count() == 0

    run(act)


@pytest.mark.parametrize("group_id", ["workers", "a/b", "..", ".", "é %2E*", "x" * 300])
def test_settings_of_a_group_are_stored_read_and_taken_back(group_id: str) -> None:
    async def act(member: Member) -> None:
        (name, value), path = ("consumer.session.timeout.ms", "50000"), paths.configs("groups", paths.group_entity(group_id))
        assert await member.alter(GROUP, group_id, set_(name, value)) is None
        await until(lambda: member.topics.group_overrides == {group_id: {name: value}})
        other = ClusterConfigs(member.stage.zookeeper, member.config, Table(), finish, lambda: 0)
        await other.load()
        assert await member.stage.zookeeper.find(GetData(path)) is not None
        assert await member.alter(GROUP, group_id, Change(name, AlterConfigOp.DELETE, None)) is None
        await until(lambda: member.topics.group_overrides == {group_id: {}})
        assert await member.stage.zookeeper.find(GetData(path)) is None

    run(act)


def test_group_whose_last_setting_is_removed_by_a_request_with_a_lost_answer_is_announced() -> None:
    async def act(member: Member) -> None:
        name, path = "consumer.session.timeout.ms", paths.configs("groups", "workers")
        assert await member.alter(GROUP, "workers", set_(name, "50000")) is None
        await until(lambda: member.topics.group_overrides == {"workers": {name: "50000"}})
        faults = [Fault.REPLY_LOST]
        member.stage.client.choose_fault = lambda operation: (
            faults.pop() if faults and isinstance(operation, Delete) and operation.path == path else None
        )
        assert await member.alter(GROUP, "workers", Change(name, AlterConfigOp.DELETE, None)) is None
        await until(lambda: member.topics.group_overrides == {"workers": {}})
        assert faults == []
        assert await member.notification_count() == 2

    run(act)


def test_settings_of_groups_are_read_at_the_start() -> None:
    async def before(member: Member) -> None:
        await member.put("groups/workers", share_auto_offset_reset="earliest", no_such="1")
        await member.put("groups/a%2Fb", consumer_session_timeout_ms="50000")

    async def act(member: Member) -> None:
        assert member.topics.group_overrides == {
            "workers": {"share.auto.offset.reset": "earliest"},
            "a/b": {"consumer.session.timeout.ms": "50000"},
        }

    run(act, before)


def test_group_without_settings_gets_no_znode() -> None:
    async def act(member: Member) -> None:
        assert await member.alter(GROUP, "g", Change("consumer.session.timeout.ms", AlterConfigOp.DELETE, None)) is None
        assert await member.stage.zookeeper.find(GetData(paths.GROUP_CONFIGS)) is None
        assert await member.notification_count() == 0

    run(act)


def test_groups_have_no_settings_while_brokers_of_apache_kafka_may_join() -> None:
    async def act(member: Member) -> None:
        member.topics.has_group_configs = False
        error = await member.alter(GROUP, "g", set_("consumer.session.timeout.ms", "50000"))
        assert error is not None
        assert error.code is ErrorCode.INVALID_REQUEST
        assert await member.stage.zookeeper.find(GetData(paths.GROUP_CONFIGS)) is None

    run(act)


def test_settings_that_are_too_large_for_zookeeper_are_refused() -> None:
    """ZooKeeper would close the connection, and the broker would connect and send them again for ever."""

    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}
        replicas = ",".join(["0:1"] * 300_000)
        error = await member.alter(TOPIC, "t", set_("leader.replication.throttled.replicas", replicas))
        assert error is not None
        assert error.code is ErrorCode.POLICY_VIOLATION
        assert await member.notification_count() == 0

    run(act)


def test_change_that_is_only_checked_stores_nothing() -> None:
    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}
        assert await member.alter(TOPIC, "t", set_("retention.ms", "1"), validate_only=True) is None
        assert await member.notification_count() == 0

    run(act)


def test_changes_at_the_same_time_are_all_kept() -> None:
    async def act(member: Member) -> None:
        member.topics.overrides["t"] = {}
        changes = {"retention.ms": "1", "segment.ms": "2", "segment.bytes": "2000000", "cleanup.policy": "compact"}
        async with trio.open_nursery() as nursery:
            for name, value in changes.items():
                nursery.start_soon(member.alter, TOPIC, "t", set_(name, value))
        assert await member.stored("topics/t") == changes

    run(act)


def test_change_keeps_keys_that_this_broker_does_not_know() -> None:
    async def before(member: Member) -> None:
        await member.stage.zookeeper.create_persistent(
            paths.configs("topics", "t"), b'{"config":{"segment.ms":"2"},"version":1,"x":[7]}'
        )

    async def act(member: Member) -> None:
        assert await member.alter(TOPIC, "t", Change("retention.ms", AlterConfigOp.SET, "1")) is None
        found = await member.stage.zookeeper.ask(GetData(paths.configs("topics", "t")))
        assert json.loads(found.data) == {"version": 1, "config": {"segment.ms": "2", "retention.ms": "1"}, "x": [7]}

    run(act, before)


def test_notifications_are_followed_in_a_list_that_was_deleted_and_created_again() -> None:
    """The numbers of the notifications begin again there."""

    async def before(member: Member) -> None:
        for _ in range(3):
            await member.put("topics/t", retention_ms="1")

    async def act(member: Member) -> None:
        zookeeper = member.stage.zookeeper
        for name in (await zookeeper.ask(GetChildren(paths.CONFIG_CHANGES))).names:
            await zookeeper.ask(Delete(f"{paths.CONFIG_CHANGES}/{name}"))
        await zookeeper.ask(Delete(paths.CONFIG_CHANGES))
        await trio.sleep(1)
        await member.put("topics/u", retention_ms="2")
        await until(lambda: member.topics.overrides.get("u") == {"retention.ms": "2"})

    run(act, before)


def test_change_whose_settings_cannot_be_read_now_is_applied_later() -> None:
    async def act(member: Member) -> None:
        refused = [ZooKeeperError(ZooKeeperErrorCode.SYSTEM_ERROR)] * 3
        find = member.stage.zookeeper.find

        async def refuse(operation: Any) -> Any:
            if operation == GetData(paths.configs("topics", "t")) and refused:
                raise refused.pop()
            return await find(operation)

        member.stage.zookeeper.find = refuse  # type: ignore[method-assign]
        with structlog.testing.capture_logs() as logs:
            await member.put("topics/t", retention_ms="1")
            await until(lambda: member.topics.overrides == {"t": {"retention.ms": "1"}})
        assert [line["remedy"] for line in logs if line["log_level"] == "error"] == [REMEDY]

    run(act)


def test_ten_thousand_notifications_are_few_lines_and_old_ones_are_deleted() -> None:
    async def act(member: Member) -> None:
        for number in range(10_000):
            content = write_config_change(f"topics/t{number}")
            member.stage.client.submit(Create(paths.CONFIG_CHANGE_PREFIX, content, sequential=True), lambda outcome: None)
        with structlog.testing.capture_logs() as logs:
            await member.put("topics/last", retention_ms="1")
            await until(lambda: member.topics.overrides.get("last"))
        assert len(member.topics.overrides) == 10_001
        assert len(logs) <= 3 and all(len(str(line)) < 1_000 for line in logs)
        member.now_ms += NOTIFICATION_LIFE_MS + 1
        await member.put("topics/t", retention_ms="1")
        await trio.sleep(10)
        assert await member.notification_count() == 0

    run(act)


def test_thousands_of_unknown_settings_are_one_line() -> None:
    async def before(member: Member) -> None:
        many = EntityConfigs({f"strange.{number}": "x" * 10 for number in range(20_000)}).write()
        await member.stage.zookeeper.create_persistent(paths.configs("topics", "t"), many)
        await member.stage.zookeeper.create_persistent(paths.configs("brokers", "3"), many)

    async def act(member: Member) -> None:
        assert member.topics.overrides == {"t": {}}

    with structlog.testing.capture_logs() as logs:
        run(act, before)
    assert [line["count"] for line in logs] == [20_000, 20_000]
    assert all(len(str(line)) < 2_000 for line in logs)
