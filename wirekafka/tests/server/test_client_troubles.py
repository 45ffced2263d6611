"""Clients that fail, and what the log says about each."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from wirekafka.api.awaited_clients import RETURN_SECONDS
from wirekafka.api.heartbeat import HeartbeatRequest
from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.api.registry import Client, all_apis
from wirekafka.errors import ProtocolError, RepeatedError
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.testing.data_plane import NOW_MS, Caller, open_caller, wait_for
from wirekafka.tests.api.data_plane import batch
from wirekafka.tests.server.frames import request as framed
from wirekafka.wire.codec import encode
from wirekafka.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wirekafka.wire.types import Message

APIS = {api.request: api for api in all_apis()}


class Clients:
    """Clients of a broker, without sockets."""

    def __init__(self, caller: Caller) -> None:
        self.broker = caller.broker
        self.dispatcher = Dispatcher(caller.broker)
        self.connection = self.connect()

    @staticmethod
    def connect(host: str = "192.0.2.7") -> Client:
        """Returns a new connection to the bootstrap address."""
        return Client(host, 40000, "PLAINTEXT", "192.0.2.1", 9092)

    async def ask(self, message: Message, version: int, *, client_id: bytes = b"app", client: Client | None = None) -> Any:
        """Sends a request, and waits for the framed response; returns None if there is none."""
        api = APIS[type(message)]
        is_flexible = api.is_flexible(version)
        body = b"\0" * is_flexible + encode(message, version, is_flexible)
        frame = memoryview(bytearray(framed(api.key, version, 1, body, client_id=client_id)))[4:]
        answer = self.dispatcher.handle(frame, client or self.connection, NOW_MS)
        return await wait_for(answer) if isinstance(answer, Pending) else answer

    async def create_topic(self, name: str = "orders", **configs: str) -> None:
        named = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=named)
        await self.ask(CreateTopicsRequest(topics=[topic]), 5)


def run(body: Callable[[Clients], Awaitable[None]], path: Path, **settings: str) -> list[dict[str, Any]]:
    """Runs clients under a clock that jumps; returns the lines of the log about them."""

    async def main() -> None:
        async with open_caller(path, **settings) as caller:
            await body(Clients(caller))

    with structlog.testing.capture_logs() as lines:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return [dict(line) for line in lines if line["event"] == "A client fails"]


def metadata(*topics: str, creates: bool = True) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=creates)


def produce(data: bytearray, **fields: Any) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=memoryview(data))
    return ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="orders", partition_data=[partition])], **fields
    )


@pytest.mark.parametrize(("creates", "level"), [(True, "warning"), (False, "info")])
def test_topic_that_nobody_creates_is_told(tmp_path: Path, creates: bool, level: str) -> None:
    async def body(clients: Clients) -> None:
        for _ in range(3):
            await clients.ask(metadata("orders", "refunds", creates=creates), 4)

    lines = run(body, tmp_path, auto_create_topics_enable="false")
    assert [line["reason"] for line in lines] == ["Topic orders does not exist", "Topic refunds does not exist"]
    assert {line["log_level"] for line in lines} == {level}
    assert "auto.create.topics.enable=true" in lines[0]["remedy"]
    assert (lines[0]["client"], lines[0]["client_id"]) == ("192.0.2.7:40000", "app")


def test_client_that_forbids_the_creation_of_a_topic_is_told_to_create_it(tmp_path: Path) -> None:
    [line] = run(lambda clients: clients.ask(metadata("orders", creates=False), 4), tmp_path)
    assert "this client does not ask for topics to be created" in line["remedy"]


def test_topic_that_is_created_is_no_trouble(tmp_path: Path) -> None:
    assert run(lambda clients: clients.ask(metadata("orders"), 4), tmp_path) == []


def test_offset_out_of_range_is_told_with_the_offsets_that_there_are(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        await clients.create_topic()
        for offset in (500, 501):
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
            topics = [FetchTopic(topic="orders", partitions=[partition])]
            await clients.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics), 4)

    [line] = run(body, tmp_path)
    assert line["reason"] == "Offset 500 of orders-0 is out of range: the partition has offsets 0 to 0"
    assert "auto.offset.reset" in line["remedy"]


def test_batch_that_is_too_large_is_told_from_the_handler_and_from_the_shortcut(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        await clients.create_topic(max_message_bytes="1000")
        await clients.ask(produce(batch(b"x" * 2000)), 9, client_id=b"first")
        await clients.ask(produce(batch(b"small")), 9, client_id=b"second")
        assert clients.connection.shortcuts
        await clients.ask(produce(batch(b"x" * 2000)), 9, client_id=b"second")

    lines = run(body, tmp_path)
    assert [line["client_id"] for line in lines] == ["first", "second"]
    assert "A batch for orders-0 is too large" in lines[0]["reason"]
    assert "max.message.bytes is 1000" in lines[0]["reason"]
    assert "Raise max.message.bytes" in lines[0]["remedy"]


def test_fenced_producer_is_told(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        await clients.create_topic()
        start = InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=1000)
        for _ in range(2):
            await clients.ask(start, 1)
        old = InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=1000, producer_id=0, producer_epoch=0)
        await clients.ask(old, 3)

    [line] = run(body, tmp_path, transaction_state_log_num_partitions="1")
    assert "same transactional.id" in line["reason"]
    assert line["remedy"] == "Give each running producer a transactional.id of its own"


def test_transaction_timeout_that_is_not_allowed_is_told(tmp_path: Path) -> None:
    request = InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=2_000_000_000)
    [line] = run(lambda clients: clients.ask(request, 1), tmp_path, transaction_state_log_num_partitions="1")
    assert "transaction.timeout.ms of 2000000000" in line["reason"]


def test_session_timeout_that_is_not_allowed_is_told(tmp_path: Path) -> None:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = JoinGroupRequest(group_id="readers", session_timeout_ms=1, protocol_type="consumer", protocols=protocols)
    [line] = run(lambda clients: clients.ask(join, 2), tmp_path, offsets_topic_num_partitions="1")
    assert line["reason"] == "The consumer's session.timeout.ms of 1 is not allowed in group readers"
    assert "group.min.session.timeout.ms" in line["remedy"]


def test_error_that_clients_handle_themselves_is_not_told(tmp_path: Path) -> None:
    heartbeat = HeartbeatRequest(group_id="readers", member_id="nobody", generation_id=1)
    assert run(lambda clients: clients.ask(heartbeat, 1), tmp_path, offsets_topic_num_partitions="1") == []


def test_zookeeper_client_is_told_once_and_its_connection_ends(tmp_path: Path) -> None:
    session = struct.pack(">iqiqi", 0, 0, 30_000, 0, 16) + bytes(17)

    async def body(clients: Clients) -> None:
        with pytest.raises(ProtocolError, match="ZooKeeper's protocol.* --bootstrap-server") as caught:
            clients.dispatcher.handle(memoryview(bytearray(session)), clients.connection, NOW_MS)
        assert not isinstance(caught.value, RepeatedError)
        with pytest.raises(RepeatedError):
            clients.dispatcher.handle(memoryview(bytearray(session)), clients.connection, NOW_MS)

    run(body, tmp_path)


def test_produce_without_topics_and_answer_is_no_zookeeper_client(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        assert await clients.ask(ProduceRequest(acks=0, timeout_ms=30_000), 3) is None

    run(body, tmp_path)


# Clients that do not come to the advertised address

ADVERTISED = {"listeners": "PLAINTEXT://:9092", "advertised_listeners": "PLAINTEXT://broker.internal:9092"}


async def ask_for_orders(clients: Clients, client: Client | None = None) -> None:
    await clients.ask(metadata("orders"), 4, client=client)


def test_client_that_does_not_come_to_the_advertised_address_is_told_once(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        for _ in range(3):
            await ask_for_orders(clients)
            await trio.sleep(RETURN_SECONDS + 1)

    [line] = run(body, tmp_path, **ADVERTISED)
    assert line["log_level"] == "info"
    assert line["reason"].startswith("The client was told by Metadata to connect to broker.internal:9092")
    assert "advertised.listeners" in line["remedy"]


def test_client_that_tries_the_bootstrap_address_again_and_again_is_told(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        for _ in range(2):
            connection = clients.connect()
            await ask_for_orders(clients, connection)
            connection.closed()
        await trio.sleep(RETURN_SECONDS + 1)

    assert len(run(body, tmp_path, **ADVERTISED)) == 1


def test_client_that_comes_back_is_not_told(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        await ask_for_orders(clients)
        await clients.ask(produce(batch(b"one")), 9, client=clients.connect())
        await ask_for_orders(clients)
        assert not clients.dispatcher._returns.by_name
        await trio.sleep(RETURN_SECONDS + 1)

    assert run(body, tmp_path, **ADVERTISED) == []


def test_client_that_was_at_work_before_the_broker_started_is_not_told(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        await clients.create_topic()
        worker = clients.connect()
        await clients.ask(produce(batch(b"one")), 9, client=worker)
        assert worker.shortcuts
        await ask_for_orders(clients)
        await clients.ask(produce(batch(b"two")), 9, client=worker)
        await trio.sleep(RETURN_SECONDS + 1)

    assert run(body, tmp_path, **ADVERTISED) == []


@pytest.mark.parametrize(
    "settings",
    [{"listeners": "PLAINTEXT://:9092"}, {**ADVERTISED, "advertised_listeners": "PLAINTEXT://192.0.2.1:9092"}],
    ids=["not advertised", "reached"],
)
def test_client_that_has_reached_the_advertised_address_is_not_awaited(tmp_path: Path, settings: dict[str, str]) -> None:
    async def body(clients: Clients) -> None:
        await ask_for_orders(clients)
        await trio.sleep(RETURN_SECONDS + 1)

    assert run(body, tmp_path, **settings) == []


def test_client_that_asks_for_no_topic_or_has_ended_is_not_told(tmp_path: Path) -> None:
    async def body(clients: Clients) -> None:
        await clients.ask(metadata(), 4, client_id=b"idle producer")
        await ask_for_orders(clients)
        clients.connection.closed()
        await trio.sleep(RETURN_SECONDS + 1)

    assert run(body, tmp_path, **ADVERTISED) == []
