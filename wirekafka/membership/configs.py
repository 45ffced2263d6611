"""The settings that are in ZooKeeper: those of topics, of groups, of this broker and of all brokers.

How it works: `/config/topics/T`, `/config/groups/G` and `/config/brokers/N` have the settings. The broker that changes settings
then creates a sequential znode below `/config/changes`, the notification, which names the entity. Every broker watches the
notifications and reads the settings again. At its start and in each new session a broker reads all settings, because
notifications that it has not read may have been deleted.

Rules of this file:
    The settings of a topic are read before its first log is made, because the notification may come later than the controller's
    request.
    A setting that this broker does not know, or cannot honour, has no effect on this broker, which logs a warning. Other brokers
    may honour the setting.
    A change is checked against the settings in ZooKeeper, because this broker may not have read the newest ones yet. The change
    is written only if the znode has not changed since it was read; otherwise the broker reads the znode and makes the change
    again. So no change overwrites another one that was acknowledged.

Differs from Apache Kafka:
    Quotas (users, clients, addresses) and settings of a listener have no effect.
    With ZooKeeper, Apache Kafka has no settings of groups. Here groups have some once group.version or share.version is
    finalized, which no broker of Apache Kafka survives.
    Apache Kafka does not compare the version of the znode, so it may lose one of two changes at the same time. It reads all
    notifications at each change; this broker reads the new ones, and those that are old enough to be deleted.
    A broker of Apache Kafka that had no session while a notification was deleted does not learn that change until it restarts.

Source: kafka.server.ZkConfigManager, kafka.common.ZkNodeChangeNotificationListener, kafka.server.ConfigHandler;
kafka.server.ZkAdminManager (alterConfigs, incrementalAlterConfigs), kafka.zk.AdminZkClient.changeEntityConfig.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any, Protocol

import structlog
import trio

from wirekafka.config import BrokerConfig, ConfigError
from wirekafka.config.definition import Setting
from wirekafka.config.group_table import GROUP_SETTINGS
from wirekafka.config.topic_table import TOPIC_SETTINGS
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate, log_once
from wirekafka.membership.many_znodes import REQUESTS_AT_ONCE, for_each
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.stored_configs import StoredConfigs, stored_broker, stored_group, stored_topic
from wirekafka.metadata.config_resources import ChangedResource, ResourceType, apply_changes, check_broker_name, check_changes
from wirekafka.metadata.topic_names import check_topic_name, is_valid_topic_name
from wirekafka.pending import Pending, Work
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs, read_config_change, write_config_change
from wirekafka.zookeeper.layout.content import MOST_BYTES, MOST_SHOWN, MalformedZnodeError
from wirekafka.zookeeper.session import (
    Children,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

NAMES_AT_ONCE = 1_000
"""The number of notifications whose names are read in one turn of the loop, and of settings that are read and used in one."""

MOST_NAMED = 10
"""The most names in one line of the log."""

PAUSE_S = 0.1
"""The pause between two reads of the list of notifications, which may be long."""

RETRY_S = 1.0
"""The pause before changes are handled again whose handling has failed."""

NOTIFICATION_LIFE_MS = 15 * 60 * 1000
"""Every broker deletes the notifications that are older (ZkNodeChangeNotificationListener)."""

MOST_GROUPS_READ = 100
"""The most groups whose settings are read again for one request; those of the others are as the notifications have told them."""

MOST_GROUP_NAME = 10_000
"""The most characters of the name of a group's znode."""

TOPICS, BROKERS, GROUPS = "topics", "brokers", "groups"
REMEDY = "look whether this broker may read and write the znodes below /config; if it may, report it with this traceback"


class ConfiguredTopics(Protocol):
    """The table of topics, which has their settings; `metadata.cluster_topics.ClusterTopics`."""

    def set_overrides(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces the own settings of a topic."""

    @property
    def has_group_configs(self) -> bool:
        """Whether groups have settings in this cluster."""

    def set_group_overrides(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replaces the own settings of a group."""

    def reconfigure(self) -> Work[None]:
        """Resolves the settings of all topics again, after those of the broker have changed."""

    def find(self, name: str) -> object | None:
        """Returns the topic with this name, or None."""


class _Abandonment:
    """The end of work whose client has gone. While ZooKeeper is away, the work of such clients must not accumulate.

    Attributes:
        scope: the work runs in it.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._is_held_off = self._has_begun = False

    def begin(self) -> None:
        """Ends the work at its next wait, or at the end of `held_off`."""
        self._has_begun = True
        if not self._is_held_off:
            self.scope.cancel()

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Keeps the block whole if the client goes; the end of the broker still cancels it."""
        self._is_held_off = True
        try:
            yield
        finally:
            self._is_held_off = False
            if self._has_begun:
                self.scope.cancel()


class ClusterConfigs:
    """The settings in ZooKeeper, as a member knows and changes them.

    Args:
        run_work: runs long work.
        now_ms: returns the time since 1970.

    Attributes:
        run_work: as the argument; the broker replaces it by its slices before it serves.
        on_change: called with the type and the name of an entity, after its changed settings were applied.
    """

    def __init__(
        self,
        zookeeper: RetryingClient,
        config: BrokerConfig,
        topics: ConfiguredTopics,
        run_work: Callable[[Work[None]], object],
        now_ms: Callable[[], int],
    ) -> None:
        self._zookeeper = zookeeper
        self._config = config
        self._topics = topics
        self.run_work = run_work
        self.on_change: list[Callable[[str, str], object]] = []
        self._now_ms = now_ms
        self._hint = zookeeper.hint(paths.CONFIG_CHANGES)
        self._last_change = -1
        """The number of the last notification that was read."""
        self._changes_czxid = 0
        """The transaction that created the list of notifications. In another list the numbers begin again."""
        self._changed: dict[str, None] = {}
        """The entities of notifications whose settings were not read again yet."""
        self._session_id: int | None = None
        """The session in which all settings were read last."""
        self._cluster: bytes | None = None
        """The znode with the id of the cluster, from which the settings were read first."""
        self._groups: set[str] = set()
        """The groups that have settings, by the names of their znodes."""
        self._nursery: trio.Nursery | None = None

    async def load(self) -> None:
        """Reads all settings; called before the logs are opened, and by `run` in each new session.

        If ZooKeeper has another cluster in a later session, or none, the settings stay as they are: the defaults might delete
        records. `Registration` says that the cluster is another one.

        Raises:
            ZooKeeperError: ZooKeeper refuses a request.

        Cancellation: some of the settings may have been applied.
        """
        session_id = self._zookeeper.client.session_id
        found = await self._zookeeper.find(GetData(paths.CLUSTER_ID))
        cluster = None if found is None else found.data
        if self._session_id is None:
            self._cluster = cluster
        elif cluster != self._cluster:
            return
        self._last_change = max(await self._notifications(), default=-1)
        await self._load_broker()
        children = await self._zookeeper.find(GetChildren(f"{paths.CONFIG}/{TOPICS}"))
        await self._read_topics(children.names if children is not None else ())
        groups = await self._zookeeper.find(GetChildren(paths.GROUP_CONFIGS))
        await for_each({*self._groups, *(groups.names if groups is not None else ())}, self._read_group)
        self._session_id = session_id

    async def run(self) -> None:
        """Handles the changes of settings, and the requests of `read` and `alter`, until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                with isolate("Changed settings in ZooKeeper could not be applied; it is tried again", remedy=REMEDY) as attempt:
                    if self._zookeeper.client.session_id != self._session_id:
                        await self.load()
                    await self._handle_changes()
                # In a flood of changes, one read of the list finds many of them.
                await trio.sleep(PAUSE_S)
                with trio.move_on_after(RETRY_S if attempt.error or self._changed else math.inf):
                    await self._hint.wait()

    def read(self, topics: Iterable[str], groups: Iterable[str] = ()) -> Pending[Any]:
        """Reads the settings of topics and groups. The logs of the topics may be made when the reply is complete.

        Returns:
            A Pending of None, or of the exception if the settings cannot be read.
        """

        async def read_all() -> None:
            await self._read_topics(topics)
            await for_each([paths.group_entity(group_id) for group_id in islice(groups, MOST_GROUPS_READ)], self._read_group)

        return self._in_task(lambda _: read_all())

    def alter(self, wanted: Sequence[ChangedResource]) -> Pending[list[KafkaError | None]]:
        """Changes the settings of each resource, or checks the changes.

        Returns:
            For each resource the error, or None. The settings are in ZooKeeper then; every broker applies them soon after.
            If the reply is abandoned, a change whose write has begun is still announced to the brokers, and no other begins.
        """

        async def alter_all(abandonment: _Abandonment) -> list[KafkaError | None]:
            return [await self._alter_isolated(each, abandonment) for each in wanted]

        return self._in_task(alter_all)

    def _in_task(self, act: Callable[[_Abandonment], Any]) -> Pending[Any]:
        assert self._nursery is not None, "`run` does not run"
        abandonment = _Abandonment()
        reply: Pending[Any] = Pending(on_abandon=abandonment.begin)

        async def task() -> None:
            with abandonment.scope:
                try:
                    reply.complete(await act(abandonment))
                except Exception as error:  # noqa: BLE001 - the result of the reply
                    log_once(error, "Settings in ZooKeeper could not be read")
                    reply.complete(error)

        self._nursery.start_soon(task)
        return reply

    # Reading

    async def _load_broker(self) -> None:
        """Reads and applies the settings of this broker and of all brokers."""
        entities = (paths.DEFAULT_ENTITY, str(self._config.node_id))
        layers = [await self._read_entity(BROKERS, entity) for entity in entities]
        for_all, for_this = (self._usable(layer) for layer in layers)
        try:
            self._config.set_dynamic(for_all, for_this)
        except ConfigError as error:
            log.error("The settings of this broker in ZooKeeper contradict its other settings", error=str(error))
            return
        self.run_work(self._topics.reconfigure())

    def _usable(self, layer: Mapping[str, str]) -> dict[str, str]:
        """Returns the settings of a broker that have an effect."""
        dynamic = {name: setting for name, setting in self._config.settings.items() if setting.is_dynamic}
        return _usable(layer, dynamic, of=f"{BROKERS}/{self._config.node_id}")

    async def _read_topics(self, names: Iterable[str]) -> None:
        await for_each(names, self._read_topic)

    async def _read_topic(self, name: str) -> None:
        settings = await self._read_entity(TOPICS, name)
        if len(settings) > NAMES_AT_ONCE:
            await trio.lowlevel.checkpoint()
        self._topics.set_overrides(name, _usable(settings, TOPIC_SETTINGS, of=f"{TOPICS}/{name}"))

    async def _read_group(self, entity: str) -> None:
        settings = _usable(await self._read_entity(GROUPS, entity), GROUP_SETTINGS, of=f"{GROUPS}/{entity}")
        if settings:
            self._groups.add(entity)
        else:
            self._groups.discard(entity)
        self._topics.set_group_overrides(paths.group_of_entity(entity), settings)

    async def _read_entity(self, kind: str, entity: str) -> Mapping[str, str]:
        """Returns the settings of an entity; empty if it has none, or if they cannot be read."""
        return (await self._find_entity(kind, entity))[0].values

    async def _find_entity(self, kind: str, entity: str) -> tuple[EntityConfigs, int | None]:
        """Returns the content of an entity, empty if it cannot be read; and the version of its znode, None if there is none."""
        path = paths.configs(kind, entity)
        found = await self._zookeeper.find(GetData(path))
        if found is None:
            return EntityConfigs({}), None
        try:
            return EntityConfigs.read(path, found.data), found.stat.version
        except MalformedZnodeError as error:
            log.error("Settings in ZooKeeper cannot be read, and have no effect", error=str(error), remedy="set them again")
            return EntityConfigs({}), found.stat.version

    # Notifications

    async def _notifications(self) -> dict[int, str]:
        """Returns the paths of all notifications by their numbers, the oldest first, and watches for more."""
        children = await self._change_children()
        if children.stat.czxid != self._changes_czxid:
            self._changes_czxid, self._last_change = children.stat.czxid, -1
        found, strange = {}, []
        for count, name in enumerate(children.names, 1):
            path = f"{paths.CONFIG_CHANGES}/{name}"
            try:
                found[paths.sequence_number(path, paths.CONFIG_CHANGE_PREFIX)] = path
            except MalformedZnodeError:
                strange.append(name)
            if count % NAMES_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        if strange:
            log.warning(
                "Znodes whose names are not those of notifications are ignored", of=paths.CONFIG_CHANGES, names=_some(strange)
            )
        return dict(sorted(found.items()))

    async def _change_children(self) -> Children:
        """Returns the list of notifications, and watches it. If somebody has deleted the list, a new one is created."""
        while True:
            children = await self._zookeeper.find(GetChildren(paths.CONFIG_CHANGES, watch=True))
            if children is not None:
                return children
            await self._zookeeper.create_persistent(paths.CONFIG_CHANGES)

    async def _handle_changes(self) -> None:
        notifications = await self._notifications()
        new = {number: path for number, path in notifications.items() if number > self._last_change}
        await for_each(new.values(), self._read_notification)
        self._last_change = max(new, default=self._last_change)
        await self._apply_changed()
        await self._purge(notifications.values())

    async def _read_notification(self, path: str) -> None:
        found = await self._zookeeper.find(GetData(path))
        if found is None:
            return
        try:
            self._changed[read_config_change(path, found.data)] = None
        except MalformedZnodeError as error:
            remedy = "it is ignored; change the settings again if they have not taken effect"
            log.error("A notification about settings cannot be read", error=str(error), remedy=remedy)

    async def _purge(self, oldest_first: Iterable[str]) -> None:
        """Deletes the notifications that every broker has seen."""
        remaining = iter(oldest_first)
        while some := [*islice(remaining, REQUESTS_AT_ONCE)]:
            old: list[str] = []
            await for_each(some, partial(self._note_if_old, old))
            await for_each(old, self._delete)
            if len(old) < len(some):
                return

    async def _note_if_old(self, old: list[str], path: str) -> None:
        found = await self._zookeeper.ask(Exists(path))
        if found is None or self._now_ms() - found.ctime_ms > NOTIFICATION_LIFE_MS:
            old.append(path)

    async def _delete(self, path: str) -> None:
        await self._zookeeper.find(Delete(path))

    async def _apply_changed(self) -> None:
        """Reads the settings again that have changed, and applies them. What fails stays in `_changed`."""
        if not self._changed:
            return
        log.info("Settings in ZooKeeper have changed", count=len(self._changed), of=_some(self._changed))
        await for_each([*self._changed], self._apply)

    async def _apply(self, entity_path: str) -> None:
        kind, _, entity = entity_path.partition("/")
        with isolate("Changed settings in ZooKeeper could not be read; they are read again", remedy=REMEDY, entity=entity_path):
            if kind == TOPICS and is_valid_topic_name(entity):
                await self._read_topic(entity)
            elif kind == GROUPS:
                await self._read_group(entity)
            elif kind == BROKERS and entity in (paths.DEFAULT_ENTITY, str(self._config.node_id)):
                await self._load_broker()
            del self._changed[entity_path]
            for tell in self.on_change:
                tell(kind, entity)

    # Changing

    async def _alter_isolated(self, wanted: ChangedResource, abandonment: _Abandonment) -> KafkaError | None:
        try:
            await self._alter(wanted, abandonment)
        except KafkaError as error:
            return error
        except Exception as error:  # noqa: BLE001 - costs the change of one resource
            log_once(error, "Settings in ZooKeeper could not be changed", entity=wanted.name)
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return None

    async def _alter(self, wanted: ChangedResource, abandonment: _Abandonment) -> None:
        """Changes the settings of one resource.

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_CONFIG, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION; POLICY_VIOLATION,
                ZooKeeper does not take so much.
            ZooKeeperError: ZooKeeper refuses a request.
        """
        check_changes(wanted.changes)
        kind, entity = self._entity_of_resource(wanted)
        has_written = False
        with ExitStack() as stack:
            while True:
                found, version = await self._find_entity(kind, entity)
                own = dict(found.values)
                stored = self._stored(kind, entity, own)
                configs = apply_changes(stored, wanted.changes, keeps_others=wanted.keeps_others)
                stored.check(configs)
                content = None if kind == GROUPS and not configs else _content(configs, found)
                is_deleted = content is None and version is None
                if wanted.validate_only or (is_deleted and not has_written):
                    return
                if not has_written:
                    stack.enter_context(abandonment.held_off())
                    has_written = True
                # A former turn may have deleted the znode and lost the answer; no broker has been told then.
                if is_deleted or await self._write(paths.configs(kind, entity), content, version):
                    change = write_config_change(f"{kind}/{entity}")
                    await self._zookeeper.create_sequential(paths.CONFIG_CHANGE_PREFIX, change)
                    return

    def _stored(self, kind: str, entity: str, own: dict[str, str]) -> StoredConfigs:
        if kind == TOPICS:
            return stored_topic(self._config, own)
        if kind == GROUPS:
            return stored_group(self._config, own)
        return stored_broker(self._config, own, is_default=entity == paths.DEFAULT_ENTITY)

    def _entity_of_resource(self, wanted: ChangedResource) -> tuple[str, str]:
        """Returns the type and the name of a resource in ZooKeeper.

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
        """
        if wanted.resource_type == ResourceType.TOPIC:
            if not wanted.name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            check_topic_name(wanted.name)
            if self._topics.find(wanted.name) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{wanted.name}' does not exist.")
            return TOPICS, wanted.name
        if wanted.resource_type == ResourceType.BROKER:
            check_broker_name(wanted.name, self._config.node_id)
            return BROKERS, wanted.name or paths.DEFAULT_ENTITY
        if wanted.resource_type == ResourceType.GROUP:
            return GROUPS, self._group_entity(wanted.name)
        message = f"AlterConfigs is only supported for topics, brokers and groups, but resource type is {wanted.resource_type}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)

    def _group_entity(self, group_id: str) -> str:
        """Returns the name of a group in ZooKeeper.

        Raises:
            KafkaError: INVALID_REQUEST.
        """
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        if not self._topics.has_group_configs:
            message = "Groups have settings once the feature group.version or share.version is finalized."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        entity = paths.group_entity(group_id)
        if len(entity) > MOST_GROUP_NAME:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The id of the group is too long for ZooKeeper.")
        return entity

    async def _write(self, path: str, content: bytes | None, version: int | None) -> bool:
        """Replaces settings in ZooKeeper unless they are in another version by now; returns whether it has replaced them.

        Args:
            content: None to delete the znode.

        It returns False too if it has replaced them and the answer was lost. To make the change again is harmless.
        """
        if version is None:
            return await self._zookeeper.create_persistent(path, content)
        try:
            if content is None:
                await self._zookeeper.ask(Delete(path, version))
            else:
                await self._zookeeper.ask(SetData(path, content, version))
        except ZooKeeperError as error:
            if error.code not in (ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE):
                raise
            return False
        return True


def _content(configs: Mapping[str, str], former: EntityConfigs) -> bytes | None:
    """Returns the content of a znode with these settings.

    Raises:
        KafkaError: POLICY_VIOLATION, ZooKeeper does not take so much.
    """
    content = EntityConfigs(configs, former.unknown).write()
    if len(content) > MOST_BYTES:
        message = f"The settings would take {len(content)} bytes in ZooKeeper, which takes at most {MOST_BYTES}."
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return content


def _some(names: Collection[str]) -> list[str]:
    """Returns the first names, as many as a line of the log has."""
    return [*islice(names, MOST_NAMED)]


def _usable(own: Mapping[str, str], settings: Mapping[str, Setting], *, of: str) -> dict[str, str]:
    """Returns the settings of an entity that have an effect here, and logs the others in one line.

    Args:
        settings: those that can have an effect, by name.
    """
    usable, without_effect = {}, {}
    for name, text in own.items():
        setting = settings.get(name)
        if setting is None:
            without_effect[name] = "this broker has no such setting"
            continue
        try:
            setting.parse(text)
            usable[name] = text
        except ConfigError as error:
            without_effect[name] = textwrap.shorten(str(error), MOST_SHOWN, placeholder="...")
    if without_effect:
        log.warning(
            "Settings in ZooKeeper have no effect on this broker",
            of=of,
            count=len(without_effect),
            reasons={name[:MOST_SHOWN]: without_effect[name] for name in _some(without_effect)},
            remedy="correct them by kafka-configs.sh if their values are wrong; other brokers may honour the others",
        )
    return usable
