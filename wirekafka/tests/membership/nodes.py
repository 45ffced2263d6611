"""Data directories of single nodes, and the znodes of a model."""

from __future__ import annotations

from pathlib import Path

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.log.manager import LogManager
from wirekafka.log.storage import Storage
from wirekafka.membership.many_znodes import children_of
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.metadata.journal import Journal
from wirekafka.replication.replica_manager import HostedTopics, open_hosted_topics
from wirekafka.tests.log.logs import append, batch
from wirekafka.zookeeper.session import GetData

ORDERS, LOGINS = b"orders-is-the-id", b"logins-is-the-id"
GIVEN = {"broker.id": "1", "zookeeper.connect": "zookeeper:2181/kafka", "listeners": "PLAINTEXT://127.0.0.1:0"}


def config_of(path: Path, **settings: str) -> BrokerConfig:
    """Returns the settings of a member with two data directories."""
    given = GIVEN | {"log.dirs": f"{path / 'a'},{path / 'b'}"}
    return BrokerConfig(given | {name.replace("_", "."): value for name, value in settings.items()})


class Node:
    """An open single node."""

    def __init__(self, logs: LogManager, topics: HostedTopics) -> None:
        self.logs = logs
        self.topics = topics

    async def close(self) -> None:
        """Closes the node."""
        self.topics.close()
        await self.logs.close()


async def open_node(path: Path) -> Node:
    """Opens a single node."""
    config = config_of(path)
    logs = await LogManager.open(config, Clock())
    return Node(logs, open_hosted_topics(config, logs))


async def make_node(path: Path) -> str:
    """Makes the directories of a single node with two topics, and returns the id of its cluster."""
    node = await open_node(path)
    orders = node.topics.create("orders", 2, {"retention.ms": "1000"}, topic_id=ORDERS)
    node.topics.create("logins", 1, topic_id=LOGINS)
    orders.partitions[1].writable_log.begin_leader_epoch(6)
    append(orders.partitions[1].writable_log, batch(b"value"), leader_epoch=6)
    node.topics.alter_broker_configs("", {"log.retention.ms": "5000"})
    node.topics.alter_broker_configs("1", {"message.max.bytes": "2000000"})
    (path / "a" / "latest-producer-id-block").write_text(
        '{"version": 1, "broker": 1, "block_start": "2000", "block_end": "2999"}'
    )
    await node.close()
    return node.logs.cluster_id


async def all_znodes(zookeeper: RetryingClient, path: str = "") -> dict[str, bytes]:
    """Returns the content of every znode, but for those of ZooKeeper itself."""
    found = {}
    for name in await children_of(zookeeper, path or "/"):
        child = f"{path}/{name}"
        if child != "/zookeeper":
            found[child] = (await zookeeper.ask(GetData(child))).data
            found |= await all_znodes(zookeeper, child)
    return found


def meta_of(directory: Path) -> dict[str, str]:
    """Returns the fields of `meta.properties`."""
    lines = (directory / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def journal_of(path: Path) -> Journal:
    """Returns the content of the journal."""
    journal = Journal.open(str(path / "a"), Storage())
    journal.close()
    return journal
