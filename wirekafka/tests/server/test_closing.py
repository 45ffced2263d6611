"""A whole broker that is closed while requests wait and background work is under way."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from wirekafka.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.share_acknowledge import AcknowledgePartition, AcknowledgeTopic
from wirekafka.api.share_fetch import ShareFetchRequest
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.coordinator.transactions.requests import InitRequest
from wirekafka.log.validation import ON_LOOP
from wirekafka.names import GROUP_METADATA_TOPIC, TopicPartition
from wirekafka.server import running as running_module
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.tests.server.test_running import Caller
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.types import Message

PRODUCE, FETCH, JOIN_GROUP, DELETE_TOPICS, SHARE_HEARTBEAT, SHARE_FETCH = 0, 1, 11, 20, 76, 78
FOLLOWER = 99


def config(path: Path) -> BrokerConfig:
    few = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
    few["share.coordinator.state.topic.num.partitions"] = "2"
    folders = f"{path / 'a'},{path / 'b'}"
    return BrokerConfig.load(None, {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": folders, **few})


def produce(topic: str, count: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=build_batch([Record(key=b"k", value=b"v", timestamp=1)] * count))]
    return ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])


def waiting_requests(topic_id: bytes) -> list[tuple[int, int, Message]]:
    """Requests that wait, each with its key and version."""
    fetch = FetchTopic(topic="flights", partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)])
    shared = AcknowledgeTopic(topic_id=topic_id, partitions=[AcknowledgePartition(partition_index=0)])
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    share_fetch = ShareFetchRequest(
        group_id="s", member_id="m", max_wait_ms=60_000, min_bytes=1, max_bytes=1000, max_records=1, topics=[shared]
    )
    return [
        (FETCH, 4, FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1000, topics=[fetch])),
        (PRODUCE, 9, produce("replicated")),
        (PRODUCE, 9, produce("heavy", 8 * ON_LOOP.record_count)),
        (JOIN_GROUP, 3, join),
        (SHARE_FETCH, 1, share_fetch),
        (DELETE_TOPICS, 6, DeleteTopicsRequest(topics=[DeleteTopicState(name="large")])),
    ]


def end_a_transaction_whose_marker_waits(broker: Broker) -> None:
    producer = broker.transactions.init_producer_id(InitRequest("x", 60_000))
    broker.transactions.add_partitions("x", producer, [TopicPartition("replicated", 0)], client_version=2)
    broker.transactions.end("x", producer, is_commit=True, client_version=2)


async def keep_busy(running: RunningBroker, streams: ExitStack) -> None:
    """Begins everything that may be under way when a broker is closed."""
    broker = running.broker
    for name, partition_count in (("flights", 1), ("heavy", 1), ("large", 300), ("moved", 1), ("replicated", 1)):
        broker.topics.create(name, partition_count)
    [replicated] = broker.topics.get("replicated").partitions
    replicated.set_replicas((replicated.leader, FOLLOWER), (replicated.leader, FOLLOWER))
    end_a_transaction_whose_marker_waits(broker)
    [moved] = broker.topics.get("moved").partitions
    for _ in range(20):
        moved.append(memoryview(build_batch([Record(value=bytes(100_000), timestamp=1)])), now_ms=broker.clock.now_ms())
    other = next(each for each in broker.logs.directories if each is not broker.logs.home_of(moved.log))
    broker.logs.mover.begin(TopicPartition("moved", 0), other.path)

    async def call() -> Caller:
        stream = await trio.open_tcp_stream("127.0.0.1", running.addresses[0].port)
        streams.callback(stream.socket.close)
        return Caller(stream)

    joining = ShareGroupHeartbeatRequest(group_id="s", member_id="m", member_epoch=0, subscribed_topic_names=["flights"])
    await (await call()).ask(SHARE_HEARTBEAT, 1, joining)
    for request in waiting_requests(broker.topics.get("flights").topic_id):
        await (await call()).send(*request)
    while broker.topics.find("large") is not None or not replicated._commit_waits:
        await trio.lowlevel.checkpoint()
    partition = broker.groups.state.partition(broker.groups.partition_of("g"))
    broker.groups.unload_partition(partition.index, None)
    broker.groups.state.elect(partition, 7)


def test_broker_that_is_closed_while_everything_waits_closes_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_module, "CLOSE_SECONDS", 60)  # however slow the machine is

    async def main() -> None:
        with capture_logs() as lines, ExitStack() as streams:
            async with open_broker(config(tmp_path)) as running:
                await keep_busy(running, streams)
            async with open_broker(config(tmp_path)) as running:
                assert running.broker.topics.find("large") is None
                assert running.broker.topics.find(GROUP_METADATA_TOPIC) is not None
                assert all(directory.is_clean for directory in running.broker.logs.directories)
        faults = [line for line in lines if line["log_level"] in ("warning", "error", "critical")]
        assert [line for line in faults if not line["event"].startswith(("The loop was blocked", "A client fails"))] == []

    trio.run(main)


@pytest.mark.parametrize("times", [1, 2])
def test_broker_that_was_never_started_is_closed_cleanly(tmp_path: Path, times: int) -> None:
    async def main() -> None:
        for _ in range(2):
            broker = await Broker.open(config(tmp_path), Clock())
            if broker.topics.find("flights") is None:
                broker.topics.create("flights", 1)
            for _ in range(times):
                await broker.close()
        assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()

    trio.run(main)


def test_broker_whose_topics_cannot_be_closed_closes_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        broker = await Broker.open(config(tmp_path), Clock())
        monkeypatch.setattr(broker.topics, "close", fail)
        with pytest.raises(ZeroDivisionError):
            await broker.close()
        assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()

    trio.run(main)
