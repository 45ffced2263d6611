"""The registration of a broker: the ephemeral znode `/brokers/ids/N`, whose czxid is the broker epoch.

How it works: ZooKeeper deletes the znode when the session ends. After an expiry the client has a new session, and
`Registration.run` registers the broker again, with a new broker epoch. For the controller, the broker has restarted.

Rules of this file:
    The znode of an earlier session of this process is deleted: ZooKeeper may leave it for a while (KAFKA-7165, ZOOKEEPER-2985).
    The znode of any other session belongs to another process, perhaps to a process of this broker that was killed. The start
    waits for the end of that session, and fails if the session does not end in time. A broker that runs waits without a limit.
    The znode is created again if an operator has deleted or replaced it.

Source: kafka.zk.KafkaZkClient (registerBroker, CheckedEphemeral), kafka.server.KafkaServer.createBrokerInfo.

Differs from Apache Kafka: a broker that starts before the session of its killed process has expired waits for the expiry, at most
twice `zookeeper.session.timeout.ms`. Apache Kafka ends with NodeExists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import structlog
import trio

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.metadata.features import Levels
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.membership import BrokerRegistration, Endpoint, read_cluster_id
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Stat,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

log = structlog.get_logger(__name__)

WIREKAFKA = "wirekafka"
"""The key of a registration that only brokers of wirekafka write and read; Apache Kafka ignores it."""

_BROKER_ID = re.compile("[0-9]{1,10}", re.ASCII)


class Registration:
    """The registration of this broker.

    Args:
        endpoints: the advertised addresses.
        cluster_id: the cluster of this broker; in another one it does not register again.
        former_session_ms: how long the start waits for the session of a killed process to expire.
        now_ms: returns the time since 1970.
        features: the levels of features that this broker supports.

    Attributes:
        broker_epoch: the czxid of the znode, -1 before the first registration (Kafka's sentinel, which is in requests).
        on_register: called after each registration.
    """

    def __init__(
        self,
        zookeeper: RetryingClient,
        node_id: int,
        endpoints: tuple[Endpoint, ...],
        rack: str | None,
        *,
        cluster_id: str,
        former_session_ms: int,
        now_ms: Callable[[], int],
        features: Mapping[str, Levels] | None = None,
    ) -> None:
        self.broker_epoch = -1
        self._is_registering = False
        self.on_register: list[Callable[[], object]] = []
        self._zookeeper = zookeeper
        self._node_id = node_id
        self._path = paths.broker(node_id)
        self._endpoints = endpoints
        self._rack = rack
        self._cluster_id = cluster_id
        self._former_session_ms = former_session_ms
        self._now_ms = now_ms
        self._features = features or {}
        self._hint = zookeeper.hint(self._path)
        self._session_id: int | None = None
        """The session that has registered the broker."""

    async def register(self) -> None:
        """Registers the broker for the first time.

        Raises:
            KafkaError: DUPLICATE_BROKER_REGISTRATION, another process is registered with the same id, or with one of the same
                addresses.
            ZooKeeperError: ZooKeeper refuses a request.

        Cancellation: the broker may be registered until its session ends.
        """
        await self._check_addresses()
        if not await self._register_when_free(self._former_session_ms / 1000):
            message = (
                f"Another broker is registered in ZooKeeper as broker {self._node_id}; broker.id must be unique in the cluster: "
                "set another one, or stop the other broker"
            )
            raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)

    async def run(self) -> None:
        """Registers again whenever this session has no registration, until it is cancelled.

        Raises:
            KafkaError: INCONSISTENT_CLUSTER_ID, ZooKeeper has another cluster now, or none.
            MalformedZnodeError: the id of the cluster cannot be read.
            ZooKeeperError: ZooKeeper refuses a request.

        `run` may be called again after each of them.
        """
        while True:
            stat = await self._zookeeper.ask(Exists(self._path, watch=True))
            if self._is_current(stat):
                await self._hint.wait()
            else:
                await self._check_cluster()
                await self._register_when_free()

    def is_present(self, broker_epoch: int) -> bool:
        """Whether a request of the controller with this epoch may be for the present registration.

        While this broker registers, the controller may know the registration before this broker does.
        """
        return broker_epoch == self.broker_epoch or (self._is_registering and broker_epoch > self.broker_epoch)

    async def _check_cluster(self) -> None:
        """Raises unless ZooKeeper has the cluster of this broker: another controller would take its partitions for strays."""
        found = await self._zookeeper.find(GetData(paths.CLUSTER_ID))
        cluster_id = None if found is None else read_cluster_id(found.data)
        if cluster_id != self._cluster_id:
            message = f"{paths.CLUSTER_ID} in ZooKeeper is {cluster_id}, and this broker belongs to cluster {self._cluster_id}"
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)

    def _is_current(self, stat: Stat | None) -> bool:
        """Whether the znode is the registration of this session with the epoch that this broker knows."""
        if stat is None:
            return False
        return (stat.ephemeral_owner, stat.czxid) == (self._zookeeper.client.session_id, self.broker_epoch)

    async def _register_when_free(self, most_wait_s: float = math.inf) -> bool:
        """Registers the broker once no other session holds its registration; returns False if one holds it too long."""
        deadline = None
        while True:
            stat = await self._create_or_find()
            if stat is not None:
                self._note(stat)
                return True
            held = await self._zookeeper.ask(Exists(self._path, watch=True))
            if held is None:
                continue
            if deadline is None:
                deadline = trio.current_time() + most_wait_s
                self._say_that_it_waits(held, most_wait_s)
            with trio.move_on_at(deadline) as wait:
                await self._hint.wait()
            if wait.cancelled_caught:
                return False

    def _say_that_it_waits(self, held: Stat, most_wait_s: float) -> None:
        session = f"{held.ephemeral_owner:#x}"
        stop = f"stop the process with the same broker.id, or delete {self._path} if its session is 0x0, which is none"
        if most_wait_s < math.inf:
            log.warning(
                "Another session holds the registration of this broker; waiting for its end",
                broker=self._node_id,
                session=session,
                at_most_seconds=round(most_wait_s),
                remedy=f"if this broker was killed, its session ends by itself; otherwise {stop}",
            )
        else:
            log.error(
                "Another session holds the registration of this broker, which is not in the cluster until that session ends",
                broker=self._node_id,
                session=session,
                remedy=stop,
            )

    async def _create_or_find(self) -> Stat | None:
        """Creates the znode; returns its stat, or None if another process has the znode or the znode was deleted meanwhile."""
        self._is_registering = True
        ranges, unknown = ranges_of(self._features), {WIREKAFKA: {"features": ranges_with_off(self._features)}}
        content = BrokerRegistration(self._endpoints, self._now_ms(), self._rack, ranges, unknown=unknown)
        try:
            created = await self._zookeeper.ask(Create(self._path, content.write(), ephemeral=True))
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
                raise
            return await self._find_own()
        return created.stat

    async def _find_own(self) -> Stat | None:
        """Returns the stat of the znode if this session has created it. The znode of an earlier session is deleted."""
        stat = await self._zookeeper.ask(Exists(self._path))
        if stat is None:
            return None
        owner = stat.ephemeral_owner
        if owner == self._zookeeper.client.session_id:
            return stat
        if owner == self._session_id:
            await self._zookeeper.find(Delete(self._path))
        return None

    def _note(self, stat: Stat) -> None:
        self.broker_epoch = stat.czxid
        self._is_registering = False
        self._session_id = stat.ephemeral_owner
        addresses = [str(each.listener) for each in self._endpoints]
        log.info("Registered in ZooKeeper", broker=self._node_id, broker_epoch=self.broker_epoch, addresses=addresses)
        for tell in self.on_register:
            with isolate("A registration could not be handled"):
                tell()

    async def _check_addresses(self) -> None:
        """Raises if another broker has registered one of the addresses of this one."""
        own = {(each.listener.host, each.listener.port) for each in self._endpoints}
        for name in (await self._zookeeper.ask(GetChildren(paths.BROKER_IDS))).names:
            if not _BROKER_ID.fullmatch(name) or int(name) == self._node_id:
                continue
            found = await self._zookeeper.find(GetData(paths.broker(int(name))))
            if found is not None and own & _addresses_of(int(name), found.data):
                message = (
                    f"An address of advertised.listeners is registered in ZooKeeper by broker {name}: correct it, because "
                    "clients know a broker by its address"
                )
                raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)


def ranges_of(features: Mapping[str, Levels]) -> dict[str, dict[str, int]]:
    """Returns supported features as a registration has them.

    The least level is 1 at least: brokers before 3.9 could not read a registration with level 0, which means that the feature is
    off, and which every feature may have in a cluster with ZooKeeper.

    Source: org.apache.kafka.common.feature.BaseVersionRange.
    """
    return {name: {"min_version": max(1, levels.least), "max_version": levels.most} for name, levels in features.items()}


def ranges_with_off(features: Mapping[str, Levels]) -> dict[str, dict[str, int]]:
    """Returns supported features with their least levels, of which 0 means that the feature can be off."""
    return {name: {"min_version": levels.least, "max_version": levels.most} for name, levels in features.items()}


def _addresses_of(broker_id: int, data: bytes) -> set[tuple[str, int]]:
    """Returns the hosts and ports of a broker; none if its registration cannot be read."""
    try:
        endpoints = BrokerRegistration.read(broker_id, data).endpoints
    except MalformedZnodeError as error:
        remedy = "look which process has written it; this broker does not compare its addresses with it"
        log.warning("The registration of another broker cannot be read", error=str(error), remedy=remedy)
        return set()
    return {(each.listener.host, each.listener.port) for each in endpoints}
