"""Shared by the tests of share groups: members that join, fetch and acknowledge through the codec."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from wirekafka.api import share_acknowledge as acknowledging
from wirekafka.api import share_fetch as fetching
from wirekafka.api.registry import Client
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.pending import Pending
from wirekafka.tests.api import data_plane
from wirekafka.tests.api.data_plane import Caller, batch, wait_for

MIB = 1 << 20
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4

Said = tuple[int, int, int, list[int]]
"""Partition, first and last offset, types."""


def run(body: Callable[[Caller], Awaitable[None]], path: Path, **settings: str) -> None:
    """Runs a test over a broker with a topic `flights` of two partitions, where groups begin at the earliest record."""

    async def with_topic(caller: Caller) -> None:
        if caller.broker.topics.find("flights") is None:
            caller.broker.topics.create("flights", 2)
            caller.broker.topics.group_configs.alter("g", {"share.auto.offset.reset": "earliest"})
        await body(caller)

    few = {"offsets_topic_num_partitions": "2", "share_coordinator_state_topic_num_partitions": "2"}
    data_plane.run(with_topic, path, **few, **settings)


def topic_id(caller: Caller) -> bytes:
    topic = caller.broker.topics.find("flights")
    assert topic is not None
    return topic.topic_id


def append(caller: Caller, *values: bytes, partition: int = 0, **settings: Any) -> None:
    """Builds one batch of these values."""
    topic = caller.broker.topics.find("flights")
    assert topic is not None
    topic.partitions[partition].append(memoryview(batch(*values, **settings)), now_ms=caller.now_ms)


class Member:
    """A member of the share group `g` on a connection of its own."""

    def __init__(self, caller: Caller, member_id: str = "m", *, joins: bool = True) -> None:
        self.caller = caller
        self.member_id = member_id
        self.client = Client("127.0.0.1", 50_001, "PLAINTEXT", "127.0.0.1", 9092)
        self.session_epoch = 0
        self.member_epoch = 0
        if joins:
            self.heartbeat(subscribed_topic_names=["flights"])

    def ask(self, request: Any, version: int) -> Any:
        self.caller.client, former = self.client, self.caller.client
        try:
            return self.caller.ask(request, version)
        finally:
            self.caller.client = former

    def heartbeat(self, **fields: Any) -> Any:
        request = ShareGroupHeartbeatRequest(group_id="g", member_id=self.member_id, member_epoch=self.member_epoch, **fields)
        response = self.ask(request, 1)
        self.member_epoch = response.member_epoch
        return response

    def fetch_request(
        self, *partitions: int, said: tuple[Said, ...] = (), forget: tuple[int, ...] = (), **fields: Any
    ) -> fetching.ShareFetchRequest:
        topics = [self.topic(*partitions, said=said)] if partitions or said else []
        forgotten = [fetching.ForgottenTopic(topic_id=topic_id(self.caller), partitions=list(forget))] if forget else []
        settings = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": MIB, "max_records": 500, "batch_size": 500} | fields
        epoch = settings.pop("epoch", self.session_epoch)
        return fetching.ShareFetchRequest(
            group_id=settings.pop("group_id", "g"),
            member_id=settings.pop("member_id", self.member_id),
            share_session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            **settings,
        )

    async def fetch(self, *partitions: int, version: int = 2, **fields: Any) -> Any:
        """Returns the response to the next fetch of the member's session."""
        response = self.ask(self.fetch_request(*partitions, **fields), version)
        self.session_epoch += 1
        return await wait_for(response) if isinstance(response, Pending) else response

    def topic(self, *partitions: int, said: tuple[Said, ...] = ()) -> acknowledging.AcknowledgeTopic:
        """Returns the topic of a request, with partitions that have acknowledgements and partitions that have none."""
        by_partition: dict[int, list[acknowledging.AcknowledgementBatch]] = {index: [] for index in partitions}
        for index, first, last, types in said:
            ranges = acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            by_partition.setdefault(index, []).append(ranges)
        named = [
            acknowledging.AcknowledgePartition(partition_index=index, acknowledgement_batches=ranges)
            for index, ranges in by_partition.items()
        ]
        return acknowledging.AcknowledgeTopic(topic_id=topic_id(self.caller), partitions=named)

    def acknowledge(self, *said: Said, beside: tuple[int, ...] = (), version: int = 2, **fields: Any) -> Any:
        """Returns the response to the session's next acknowledgements; the request also names the partitions in `beside`."""
        topic = self.topic(*beside, said=said)
        topic.topic_id = fields.pop("id", topic.topic_id)
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=fields.pop("group_id", "g"),
            member_id=fields.pop("member_id", self.member_id),
            share_session_epoch=fields.pop("epoch", self.session_epoch),
            topics=fields.pop("topics", [topic]),
            **fields,
        )
        response = self.ask(request, version)
        self.session_epoch += 1
        return response

    def disconnect(self) -> None:
        self.client.closed()


def partitions_of(response: Any) -> dict[int, Any]:
    """Returns the partitions of the only topic in a response."""
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


def acquired(response: Any) -> dict[int, list[tuple[int, int, int]]]:
    """Returns, by partition, the acquired records: first and last offset, delivery count."""
    return {
        index: [(each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records]
        for index, data in partitions_of(response).items()
        if data.acquired_records
    }


def errors(response: Any) -> dict[int, int]:
    """Returns the error of each partition in a response to ShareAcknowledge."""
    return {index: data.error_code for index, data in partitions_of(response).items()}
