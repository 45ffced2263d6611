"""The CPU time of the broker's hot paths, in this process and without sockets; `benchmarks.inprocess` compares commits by it.

`python benchmarks/hot_paths.py SECONDS` prints one JSON object: microseconds of CPU for each operation, by the name of the row.

Each row feeds frames to a `Connection`, as a driver does, and drops the answers. The frames are made beforehand, and the records
of a Fetch stay in their file. The script uses only those parts of the package that earlier commits have too: it finds messages by
the key of their API, because their modules have moved.
"""

from __future__ import annotations

import gc
import json
import logging
import random
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from typing import Any

import structlog
import trio

from wirekafka.api.registry import Client, find_api
from wirekafka.broker import Broker
from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig
from wirekafka.server import connection
from wirekafka.server.dispatch import Dispatcher
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.codec import decode, encode
from wirekafka.wire.compression import Compression

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 0, 1, 2, 3, 8, 11, 12, 14
CREATE_TOPICS, INIT_PRODUCER_ID, END_TXN, CONSUMER_GROUP_HEARTBEAT = 19, 22, 26, 68

TOPIC = "flights"
PARTITIONS = 10
WIDE_TOPIC = "flights-of-all-airports"
WIDE_PARTITIONS = 500
VALUE = b"x" * 100
FRAMES = 1000
"""The frames that are timed together, for about 10 ms."""
LARGE_FRAMES = 10
"""The frames of a large batch, or of many partitions, that are timed together."""
LEAST_LARGE_BYTES = 1 << 17
"""A larger frame may not fit into the loop's receive buffer."""

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}

Frames = Iterator[list[bytes]]
"""An endless iterator of lists of about `FRAMES` frames each, which are fed in order."""


def message(key: int, name: str = "Request", /, **fields: Any) -> Any:
    """Makes a message of an API: its request, or the class of that name beside the request."""
    api = find_api(key)
    assert api is not None
    found = api.request if name == "Request" else getattr(import_module(api.request.__module__), name)
    return found(**fields)


class LateAnswerError(Exception):
    """A request waits for its answer."""


class Link:
    """A client's connection to the broker, without a socket."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        client = Client("127.0.0.1", 50_000, "PLAINTEXT", "127.0.0.1", 9092)
        # Earlier commits define `ReceiveBuffers` in the module of connections.
        buffers = vars(connection)["ReceiveBuffers"]()
        self.connection = connection.Connection(client, dispatcher, buffers, lambda connection: None)

    def frame(self, key: int, version: int, request: Any) -> bytes:
        """Returns the request as a client sends it."""
        api = find_api(key)
        assert api is not None
        is_flexible = api.is_flexible(version)
        body = encode(request, version, is_flexible)
        payload = struct.pack(">hhih", key, version, 1, 4) + b"load" + b"\0" * is_flexible + body
        return struct.pack(">i", len(payload)) + payload

    def feed(self, frames: list[bytes]) -> float:
        """Lets the broker handle the frames; returns the seconds of CPU that this took.

        Raises:
            LateAnswerError: a request was not answered at once, for example because a thread validates the records of a Produce.
            AssertionError: the last request was answered with an error.
        """
        connection = self.connection
        output = connection.output
        began = time.thread_time()
        for frame in frames:
            size = len(frame)
            if size > LEAST_LARGE_BYTES:
                self._receive_large(memoryview(frame))
            else:
                connection.space()[:size] = frame
                connection.received(size)
                connection.handle_frames()
            if not output:
                raise LateAnswerError(f"no answer to {frame[:60]!r}")
            answer = tuple(output)
            output.clear()
        seconds = time.thread_time() - began
        key, version = struct.unpack_from(">hh", frames[-1], 4)
        expect_no_error(decode_answer(key, version, answer))
        return seconds

    def _receive_large(self, frame: memoryview) -> None:
        """Lets the broker receive a frame in pieces of the size that its buffers ask for."""
        connection = self.connection
        while frame:
            space = connection.space()
            size = min(len(space), len(frame))
            space[:size] = frame[:size]
            connection.received(size)
            connection.handle_frames()
            frame = frame[size:]

    async def ask(self, key: int, version: int, request: Any) -> Any:
        """Returns the decoded response.

        Raises:
            TooSlowError: there was none in ten seconds.
        """
        connection = self.connection
        frame = self.frame(key, version, request)
        connection.space()[: len(frame)] = frame
        connection.received(len(frame))
        connection.handle_frames()
        return decode_answer(key, version, await self.answer())

    async def answer(self) -> tuple[Any, ...]:
        """Returns the pieces of the answer that is outstanding.

        Raises:
            TooSlowError: there was none in ten seconds.
        """
        output = self.connection.output
        with trio.fail_after(10):
            while not output:  # noqa: ASYNC110 - the answer may come by a timer
                await trio.sleep(0.001)
        answer = tuple(output)
        output.clear()
        return answer


def decode_answer(key: int, version: int, pieces: tuple[Any, ...]) -> Any:
    """Returns the response in a frame that may hold regions of files."""
    api = find_api(key)
    assert api is not None
    answer = b"".join(piece.read() if hasattr(piece, "read") else piece for piece in pieces)
    return decode(api.response, version, api.is_flexible(version), answer[8 + api.has_flexible_response_header(version) :])


Prepare = Callable[[Link, bytes], Awaitable[Frames]]
"""Makes the frames of a row, from a link and the topic's id."""


def expect_no_error(response: Any) -> None:
    """Raises unless the response has no error code but 0."""
    for name in getattr(type(response), "__slots__", ()):
        value = getattr(response, name, None)
        assert not (name.endswith("error_code") and value), f"{type(response).__name__}: error {value}"
        for each in value if isinstance(value, list) else [value]:
            if hasattr(type(each), "__slots__") and not isinstance(each, (int, str, bytes)):
                expect_no_error(each)


def produce_request(
    topic_id: bytes,
    *indexes: int,
    topic_name: str = TOPIC,
    batch: bytearray | None = None,
    transactional_id: str | None = None,
) -> Any:
    batch = build_batch([Record(value=VALUE, timestamp=1_700_000_000_000)]) if batch is None else batch
    data = [message(PRODUCE, "PartitionProduceData", index=index, records=bytes(batch)) for index in indexes]
    topic = message(PRODUCE, "TopicProduceData", name=topic_name, topic_id=topic_id, partition_data=data)
    return message(PRODUCE, acks=-1, timeout_ms=1000, topic_data=[topic], transactional_id=transactional_id)


def fetch_request(topic_id: bytes, asked: dict[int, int], **fields: Any) -> Any:
    partitions = [
        message(FETCH, "FetchPartition", partition=index, fetch_offset=offset, partition_max_bytes=100)
        for index, offset in asked.items()
    ]
    topics = [message(FETCH, "FetchTopic", topic=TOPIC, topic_id=topic_id, partitions=partitions)] if asked else []
    return message(FETCH, max_wait_ms=500, min_bytes=1, topics=topics, **fields)


async def produce_one(link: Link, topic_id: bytes) -> Frames:
    """One producer sends one batch for one partition again and again."""
    return again(link.frame(PRODUCE, 12, produce_request(topic_id, 0)))


async def produce_three(link: Link, topic_id: bytes) -> Frames:
    """One batch for each of three partitions: a request that no shortcut takes."""
    return again(link.frame(PRODUCE, 12, produce_request(topic_id, 1, 2, 3)))


async def produce_wide(link: Link, topic_id: bytes) -> Frames:
    """One batch for each of 500 partitions in one request."""
    topic_id = await create_topic(link, WIDE_TOPIC, WIDE_PARTITIONS)
    request = produce_request(topic_id, *range(WIDE_PARTITIONS), topic_name=WIDE_TOPIC)
    return forever([link.frame(PRODUCE, 12, request)] * LARGE_FRAMES)


def produce_many(record_count: int, compression: Compression) -> Prepare:
    """One producer sends one batch of `record_count` records again and again."""

    async def prepare(link: Link, topic_id: bytes) -> Frames:
        frame = link.frame(PRODUCE, 12, produce_request(topic_id, 0, batch=large_batch(record_count, compression)))
        return forever([frame] * LARGE_FRAMES)

    return prepare


def large_batch(record_count: int, compression: Compression) -> bytearray:
    """Makes a batch of records of 100 bytes each, which compress to about half their size."""
    randbytes = random.Random(1).randbytes
    values = (randbytes(50) + VALUE[:50] for _ in range(record_count))
    return build_batch([Record(value=value, timestamp=1_700_000_000_000) for value in values], compression=compression)


async def fetch_one(link: Link, topic_id: bytes) -> Frames:
    """A consumer without a session reads one partition, batch by batch."""
    frames = [
        link.frame(FETCH, 17, fetch_request(topic_id, {0: offset}, session_id=0, session_epoch=-1)) for offset in range(FRAMES)
    ]
    return forever(frames)


async def fetch_ten(link: Link, topic_id: bytes) -> Frames:
    """A consumer without a session reads ten partitions; one of them has records."""
    others = dict.fromkeys(range(1, PARTITIONS), FRAMES)
    frames = [
        link.frame(FETCH, 17, fetch_request(topic_id, {0: offset, **others}, session_id=0, session_epoch=-1))
        for offset in range(FRAMES)
    ]
    return forever(frames)


def fetch_in_session(partitions: int) -> Prepare:
    """A consumer with a session over this many partitions reads one of them, batch by batch."""

    async def prepare(link: Link, topic_id: bytes) -> Frames:
        others = dict.fromkeys(range(1, partitions), FRAMES)
        begun = await link.ask(FETCH, 17, fetch_request(topic_id, {0: 0, **others}, session_id=0, session_epoch=0))
        expect_no_error(begun)

        def lists() -> Frames:
            epoch = 1
            while True:
                frames = []
                for offset in range(FRAMES):
                    asked = fetch_request(topic_id, {0: offset}, session_id=begun.session_id, session_epoch=epoch)
                    frames.append(link.frame(FETCH, 17, asked))
                    epoch += 1
                yield frames

        return lists()

    return prepare


async def fetch_in_session_nothing_new(link: Link, topic_id: bytes) -> Frames:
    """A consumer with a session over ten partitions fetches without waiting, and there are no new records."""
    ends = dict.fromkeys(range(1, PARTITIONS), FRAMES)
    begun = await link.ask(FETCH, 17, fetch_request(topic_id, ends, session_id=0, session_epoch=0))

    def lists() -> Frames:
        epoch = 1
        while True:
            frames = []
            for _ in range(FRAMES):
                asked = fetch_request(topic_id, {}, session_id=begun.session_id, session_epoch=epoch)
                asked.max_wait_ms = 0
                frames.append(link.frame(FETCH, 17, asked))
                epoch += 1
            yield frames

    return lists()


async def join(link: Link, group: str) -> tuple[str, int]:
    """Makes a stable classic group of one member; returns the member's id and the generation."""
    protocol = message(JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\1\0\7flights")
    request = message(
        JOIN_GROUP, group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="consumer"
    )
    request.protocols = [protocol]
    joined = await link.ask(JOIN_GROUP, 3, request)
    mine = message(SYNC_GROUP, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"mine")
    request = message(SYNC_GROUP, group_id=group, member_id=joined.member_id, generation_id=joined.generation_id)
    request.assignments = [mine]
    expect_no_error(await link.ask(SYNC_GROUP, 0, request))
    return joined.member_id, joined.generation_id


async def offset_commit(link: Link, topic_id: bytes) -> Frames:
    """The member of a classic group commits one offset."""
    member_id, generation_id = await join(link, "commits")
    partition = message(OFFSET_COMMIT, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5)
    topic = message(OFFSET_COMMIT, "OffsetCommitRequestTopic", name=TOPIC, topic_id=topic_id, partitions=[partition])
    request = message(OFFSET_COMMIT, group_id="commits", generation_id_or_member_epoch=generation_id, member_id=member_id)
    request.topics = [topic]
    expect_no_error(await link.ask(OFFSET_COMMIT, 9, request))
    return again(link.frame(OFFSET_COMMIT, 9, request))


async def heartbeat(link: Link, topic_id: bytes) -> Frames:
    """The member of a classic group sends heartbeats."""
    member_id, generation_id = await join(link, "beats")
    request = message(HEARTBEAT, group_id="beats", member_id=member_id, generation_id=generation_id)
    expect_no_error(await link.ask(HEARTBEAT, 4, request))
    return again(link.frame(HEARTBEAT, 4, request))


async def consumer_heartbeat(link: Link, topic_id: bytes) -> Frames:
    """The member of a consumer group sends heartbeats without changes."""
    joining = message(
        CONSUMER_GROUP_HEARTBEAT, group_id="modern", member_id="A" * 22, member_epoch=0, rebalance_timeout_ms=30_000
    )
    joining.subscribed_topic_names, joining.topic_partitions = [TOPIC], []
    joined = await link.ask(CONSUMER_GROUP_HEARTBEAT, 1, joining)
    expect_no_error(joined)
    owned = message(CONSUMER_GROUP_HEARTBEAT, "HeartbeatTopicPartitions", topic_id=topic_id, partitions=list(range(PARTITIONS)))
    fields = {"group_id": "modern", "member_id": joined.member_id, "member_epoch": joined.member_epoch}
    expect_no_error(
        await link.ask(CONSUMER_GROUP_HEARTBEAT, 1, message(CONSUMER_GROUP_HEARTBEAT, **fields, topic_partitions=[owned]))
    )
    return again(link.frame(CONSUMER_GROUP_HEARTBEAT, 1, message(CONSUMER_GROUP_HEARTBEAT, **fields)))


async def transaction(link: Link, topic_id: bytes) -> Frames:
    """A transaction (v2) of one batch, committed: two requests."""
    number = 0

    async def begin() -> tuple[str, int, int]:
        nonlocal number
        number += 1
        request = message(INIT_PRODUCER_ID, transactional_id=f"pilot-{number}", transaction_timeout_ms=60_000)
        answer = await link.ask(INIT_PRODUCER_ID, 5, request)
        expect_no_error(answer)
        return f"pilot-{number}", answer.producer_id, answer.producer_epoch

    transactional_id, producer_id, first_epoch = await begin()

    def pair(epoch: int) -> list[bytes]:
        fields: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "base_sequence": 0,
            "is_transactional": True,
        }
        batch = build_batch([Record(value=VALUE, timestamp=1_700_000_000_000)], **fields)
        produce = produce_request(topic_id, 4, batch=batch, transactional_id=transactional_id)
        end = message(END_TXN, transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True)
        return [link.frame(PRODUCE, 12, produce), link.frame(END_TXN, 5, end)]

    def lists() -> Frames:
        epoch = first_epoch
        while True:
            frames: list[bytes] = []
            for _ in range(FRAMES // 5):
                frames += pair(epoch)
                epoch += 1
            yield frames

    return lists()


async def metadata(link: Link, topic_id: bytes) -> Frames:
    """A client asks for one topic of ten partitions."""
    topic = message(METADATA, "MetadataRequestTopic", name=TOPIC)
    return again(link.frame(METADATA, 12, message(METADATA, topics=[topic])))


async def list_offsets(link: Link, topic_id: bytes) -> Frames:
    """A client asks for the end of one partition, as Spark's connector does twice for every 500 records."""
    partition = message(LIST_OFFSETS, "ListOffsetsPartition", partition_index=0, current_leader_epoch=0, timestamp=-1)
    topic = message(LIST_OFFSETS, "ListOffsetsTopic", name=TOPIC, partitions=[partition])
    return again(link.frame(LIST_OFFSETS, 10, message(LIST_OFFSETS, replica_id=-1, topics=[topic], timeout_ms=30_000)))


ROWS: dict[str, tuple[Prepare, int]] = {
    "Fetch, no session, one partition": (fetch_one, 1),
    "Fetch, no session, ten partitions": (fetch_ten, 1),
    "Fetch in a session, one partition": (fetch_in_session(1), 1),
    "Fetch in a session, one of ten": (fetch_in_session(PARTITIONS), 1),
    "Fetch in a session, nothing new": (fetch_in_session_nothing_new, 1),
    "ListOffsets, one partition": (list_offsets, 1),
    "Produce, one partition": (produce_one, 1),
    "Produce, three partitions": (produce_three, 1),
    "Produce, 500 partitions": (produce_wide, 1),
    "Produce, 9,000 records of 100 B": (produce_many(9000, Compression.NONE), 1),
    "Produce, 9,000 records in lz4": (produce_many(9000, Compression.LZ4), 1),
    "OffsetCommit": (offset_commit, 1),
    "Heartbeat, classic group": (heartbeat, 1),
    "Heartbeat, consumer group": (consumer_heartbeat, 1),
    "Transaction of one batch": (transaction, 2),
    "Metadata, one topic": (metadata, 1),
}
"""For each row: the function that makes its frames, and the frames of one operation. Rows that read come first."""


def again(frame: bytes) -> Frames:
    return forever([frame] * FRAMES)


def forever(frames: list[bytes]) -> Frames:
    while True:
        yield frames


async def create_topic(link: Link, name: str, partitions: int) -> bytes:
    """Creates a topic; returns its id."""
    created = message(CREATE_TOPICS, "CreatableTopic", name=name, num_partitions=partitions, replication_factor=1)
    answer = await link.ask(CREATE_TOPICS, 7, message(CREATE_TOPICS, topics=[created]))
    expect_no_error(answer)
    topic_id: bytes = answer.topics[0].topic_id
    return topic_id


async def fill_topic(link: Link, topic_id: bytes) -> None:
    """Appends `FRAMES` batches to each partition of the topic."""
    request = produce_request(topic_id, *range(PARTITIONS))
    for _ in range(FRAMES):  # on a slow machine a thread validates some of them
        expect_no_error(await link.ask(PRODUCE, 12, request))


async def measure(broker: Broker, seconds: float) -> dict[str, float]:
    """Returns the least microseconds of CPU for an operation of each row, measured for `seconds` per row."""
    link = Link(Dispatcher(broker))
    topic_id = await create_topic(link, TOPIC, PARTITIONS)
    await fill_topic(link, topic_id)
    figures: dict[str, float] = {}
    for name, (prepare, frames_each) in ROWS.items():
        lists = await prepare(link, topic_id)
        best = float("inf")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or best == float("inf"):
            frames = next(lists)
            gc.collect()
            await trio.lowlevel.checkpoint()
            try:
                best = min(best, link.feed(frames) / len(frames) * frames_each)
            except LateAnswerError:
                await link.answer()
                if frames_each > 1:
                    lists = await prepare(link, topic_id)  # the frames of an operation depend on those before them
        figures[name] = best * 1e6
    return figures


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="hot-paths-") as place:
        async with trio.open_nursery() as nursery:
            broker = await Broker.open(BrokerConfig({"log.dirs": place, **SETTINGS}), Clock())
            broker.start(nursery)
            figures = await measure(broker, seconds)
            nursery.cancel_scope.cancel()
        await broker.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    trio.run(main, float(sys.argv[1]))
