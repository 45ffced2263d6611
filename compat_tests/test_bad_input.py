"""Invalid input gets Kafka's error code; if there is none, the broker closes the connection and no other one."""

from __future__ import annotations

import gzip
import random
import struct
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
import zstandard
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from compat_tests.harness.broker import WIREKAFKA, Broker
from compat_tests.harness.raw import KEYS, ConnectionEndedError, RawConnection, batch, frame_of, framed, reseal
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.api.produce.messages import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from wirekafka.api.registry import APIS
from wirekafka.errors import ErrorCode
from wirekafka.wire.batch import Record, build_batch
from wirekafka.wire.codec import encode
from wirekafka.wire.compression import Compression
from wirekafka.wire.messages.api_versions import ApiVersionsRequest
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

MAX_REQUEST_BYTES = 104_857_600
"""The default of socket.request.max.bytes."""


class Bystander:
    """A well-behaved client that writes and reads records all the time.

    Attributes:
        rounds: the number of records that the client has written and read.
        failure: the first error; None if there was none.
    """

    def __init__(self, bootstrap: str) -> None:
        self.topic = f"bystander-{uuid.uuid4().hex[:8]}"
        create_topic(bootstrap, self.topic)
        self.rounds = 0
        self.failure: str | None = None
        self._is_told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), daemon=True)
        self._thread.start()

    def _run(self, bootstrap: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "message.timeout.ms": 15_000})
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": self.topic, "fetch.wait.max.ms": 50})
        consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
        try:
            while not self._is_told_to_stop.wait(0.01):
                value = str(self.rounds).encode()
                producer.produce(self.topic, value, on_delivery=self._note)
                if producer.flush(20):
                    self.failure = "a record was not acknowledged in 20 s"
                message = consumer.poll(20)
                if message is None or message.error() is not None or message.value() != value:
                    found = None if message is None else message.error() or message.value()
                    self.failure = self.failure or f"read {found!r} instead of {value!r}"
                if self.failure is not None:
                    return
                self.rounds += 1
        finally:
            consumer.close()

    def _note(self, error: object, message: object) -> None:
        if error is not None:
            self.failure = f"a record was refused: {error}"

    def check_goes_on(self) -> None:
        """Waits until the client has written and read more records."""
        before = self.rounds
        wait_until(lambda: self.failure or self.rounds >= before + 3, timeout_s=60, what="the other client goes on")
        assert self.failure is None

    def close(self) -> None:
        self._is_told_to_stop.set()
        self._thread.join(30)


@pytest.fixture(scope="module")
def shared_bystander(broker: Broker) -> Iterator[Bystander]:
    running = Bystander(broker.bootstrap)
    yield running
    running.close()


@pytest.fixture
def bystander(shared_bystander: Bystander) -> Iterator[Bystander]:
    """Returns a client that the test must not disturb."""
    shared_bystander.check_goes_on()
    yield shared_bystander
    shared_bystander.check_goes_on()


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(broker.address) as connection:
        yield connection


METADATA = KEYS["Metadata"]

BROKEN_FRAMES = {
    "larger than socket.request.max.bytes": struct.pack(">i", MAX_REQUEST_BYTES + 1),
    "of two gibibytes": struct.pack(">i", 2**31 - 1),
    "of negative length": struct.pack(">i", -1),
    "of the most negative length": struct.pack(">i", -(2**31)),
    "empty": struct.pack(">i", 0),
    "too short for a header": struct.pack(">i", 4) + b"\0\3\0\0",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(range(200)),
    "an API that Kafka does not have": frame_of(999, 0, b""),
    "an API that only Kafka's controllers have": frame_of(4, 0, b"\0" * 40),
    "a version that there is not": frame_of(METADATA, 99, b"\0" * 40),
    "a negative version": frame_of(METADATA, -1, b"\0" * 40),
    "a body that ends early": frame_of(METADATA, 1, struct.pack(">ih", 2, 10) + b"abc"),
    "no body": frame_of(METADATA, 1, b""),
    "an array of two billion": frame_of(METADATA, 1, struct.pack(">i", 2**31 - 1)),
    "a compact array of four billion": frame_of(METADATA, 9, b"\xff\xff\xff\xff\x0f", tagged=True),
    "a varint without end": frame_of(METADATA, 9, b"\xff" * 20, tagged=True),
    "a client id longer than the frame": struct.pack(">ihhih", 10, METADATA, 1, 1, 30_000),
    "a string that is not UTF-8": frame_of(METADATA, 1, struct.pack(">ih", 1, 4) + b"\xff\xfe\xfd\xfc"),
    "garbage of sound length": struct.pack(">i", 64) + random.Random(7).randbytes(64),
}
TAKEN_BY_KAFKA = {"a string that is not UTF-8"}
"""Java replaces bytes that are not UTF-8; the resulting topic name is invalid."""


@pytest.mark.parametrize("what", BROKEN_FRAMES)
def test_a_connection_with_a_broken_frame_is_closed_and_only_that(
    broker: Broker, broker_kind: str, connection: RawConnection, bystander: Bystander, what: str
) -> None:
    if what in TAKEN_BY_KAFKA and broker_kind != WIREKAFKA:
        pytest.skip("Apache Kafka answers this with INVALID_TOPIC_EXCEPTION")
    with RawConnection(broker.address) as neighbour:
        assert neighbour.ask(ApiVersionsRequest(), 0).error_code == 0
        connection.send(BROKEN_FRAMES[what])
        assert connection.is_closed_by_broker()
        assert neighbour.ask(ApiVersionsRequest(), 0).error_code == 0


def wait_until_start_is_logged(broker: Broker) -> None:
    """Waits for the last line of the start, which comes after the broker is ready."""
    wait_until(lambda: "Started" in broker.log_text(), timeout_s=60, what="the start is logged")


@pytest.mark.wirekafka_only("logs one line for each refusal")
def test_each_refusal_is_told_in_one_line_of_the_log(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    wait_until_start_is_logged(broker)
    for what, frame in BROKEN_FRAMES.items():
        before = broker.log_text().count("\n")
        with RawConnection(broker.address) as stranger:
            stranger.send(frame)
            assert stranger.is_closed_by_broker()
        wait_until(lambda before=before: broker.log_text().count("\n") > before, timeout_s=60, what=f"{what} is logged")
        new_lines = broker.log_text().splitlines()[before:]
        assert len(new_lines) == 1, what
        assert "127.0.0.1" in new_lines[0]


@pytest.mark.wirekafka_only("answers HTTP")
def test_http_request_is_answered_in_http_and_told_in_one_line_of_the_log(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    wait_until_start_is_logged(broker)
    before = broker.log_text().count("\n")
    with RawConnection(broker.address) as browser:
        browser.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert browser.receive(13) == b"HTTP/1.1 400 "
        with pytest.raises(ConnectionEndedError):
            browser.receive(1 << 20)
    wait_until(lambda: broker.log_text().count("\n") > before, timeout_s=60, what="the request is logged")
    [line] = broker.log_text().splitlines()[before:]
    assert "HTTP" in line


def test_every_request_cut_short_anywhere_is_survived(broker: Broker, topic: str, bystander: Bystander) -> None:
    create_topic(broker.bootstrap, topic)
    topic_data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch(b"v" * 20))])
    requests = [
        (ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic_data]), 9),
        (FetchRequest(topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition_max_bytes=1000)])]), 11),
        (CreateTopicsRequest(topics=[CreatableTopic(name="no/thing", num_partitions=1, replication_factor=1)]), 7),
    ]
    for request, version in requests:
        api = APIS[KEYS[type(request).__name__.removesuffix("Request")]]
        body = encode(request, version, api.is_flexible(version))
        for length in range(len(body)):
            with RawConnection(broker.address) as cut:
                cut.send(framed(api, version, body[:length]))
                assert cut.is_closed_by_broker(), f"{api.name} {version} cut to {length} bytes"


def test_a_frame_that_never_ends_holds_up_nobody(broker: Broker, bystander: Bystander) -> None:
    with RawConnection(broker.address) as slow:
        slow.send(struct.pack(">i", 1000) + b"\0")
        bystander.check_goes_on()
        with RawConnection(broker.address) as quick:
            assert quick.ask(ApiVersionsRequest(), 0).error_code == 0


@pytest.mark.wirekafka_only("does not take what is announced for memory that is needed")
def test_memory_does_not_grow_with_what_strangers_announce(broker: Broker, bystander: Bystander) -> None:
    before = broker.resident_kib()
    strangers = [RawConnection(broker.address) for _ in range(100)]
    try:
        for stranger in strangers:
            stranger.send(struct.pack(">i", MAX_REQUEST_BYTES) + frame_of(METADATA, 1, b"")[4:])
        bystander.check_goes_on()
        assert broker.resident_kib() - before < 20 * 1024
    finally:
        for stranger in strangers:
            stranger.socket.close()


def test_memory_does_not_grow_with_the_number_of_refusals(broker: Broker, bystander: Bystander) -> None:
    client_id = b"x" * 30_000

    def refuse_all(version: int) -> None:
        """Sends frames that are each refused for a different reason, because the client id is part of the reason."""
        frames = [struct.pack(">hhih", key, version, 1, len(client_id)) + client_id for key in range(200, 300)]
        for frame in [*BROKEN_FRAMES.values(), *(struct.pack(">i", len(frame)) + frame for frame in frames)]:
            with RawConnection(broker.address) as stranger:
                stranger.send(frame)
                assert stranger.is_closed_by_broker()

    refuse_all(0)
    before = broker.resident_kib()
    for version in range(1, 21):
        refuse_all(version)
    assert broker.resident_kib() - before < 16 * 1024


def produce(connection: RawConnection, topic: str, records: bytes | bytearray, version: int = 9) -> PartitionProduceResponse:
    """Sends a Produce request with these records; returns the response of its partition."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=bytes(records))])
    response = connection.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), version)
    return response.responses[0].partition_responses[0]


def wrong_crc() -> bytearray:
    data = batch(b"one", b"two")
    data[-1] ^= 1
    return data


def with_count(count: int, last_offset_delta: int, compression: Compression = Compression.NONE) -> bytearray:
    data = batch(b"one", b"two", b"three", compression=compression)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">i", data, 23, last_offset_delta)
    return reseal(data)


def broken_block(compression: Compression) -> bytearray:
    data = batch(*(b"%d is the number " % n * 20 for n in range(200)), compression=compression)
    middle = 61 + (len(data) - 61) // 2
    data[middle : middle + 40] = b"\xa5" * 40
    return reseal(data)


def wrong_magic() -> bytearray:
    data = batch(b"one")
    data[16] = 7
    return reseal(data)


def record_longer_than_its_batch() -> bytearray:
    data = batch(b"one")
    data[61] = 0x7E
    return reseal(data)


def cut_in_the_middle() -> bytearray:
    return batch(b"one" * 50)[:-20]


def two_batches() -> bytearray:
    return batch(b"one") + batch(b"two")


INVALID, CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE

BROKEN_RECORDS: dict[str, tuple[Callable[[], bytearray], set[ErrorCode]]] = {
    "a wrong CRC": (wrong_crc, {CORRUPT}),
    "a count too high": (lambda: with_count(4, 3), {INVALID}),
    "a count too low": (lambda: with_count(2, 1), {INVALID}),
    "a count too high in a compressed batch": (lambda: with_count(4, 3, Compression.LZ4), {INVALID}),
    "a count too low in a compressed batch": (lambda: with_count(2, 1, Compression.ZSTD), {INVALID}),
    "a count that is not that of the offsets": (lambda: with_count(3, 5), {INVALID}),
    "a negative count": (lambda: with_count(-1, 2), {INVALID}),
    "a broken block of gzip": (lambda: broken_block(Compression.GZIP), {INVALID, CORRUPT}),
    "a broken block of snappy": (lambda: broken_block(Compression.SNAPPY), {INVALID, CORRUPT}),
    "a broken block of lz4": (lambda: broken_block(Compression.LZ4), {INVALID, CORRUPT}),
    "a broken block of zstd": (lambda: broken_block(Compression.ZSTD), {INVALID, CORRUPT}),
    "an unknown magic": (wrong_magic, {INVALID, CORRUPT}),
    "a record longer than its batch": (record_longer_than_its_batch, {INVALID, CORRUPT}),
    "a batch cut in the middle": (cut_in_the_middle, {INVALID, CORRUPT}),
    "two batches": (two_batches, {INVALID}),
    "no batch": (bytearray, {INVALID, CORRUPT}),
}


@pytest.mark.parametrize("what", BROKEN_RECORDS)
def test_broken_records_are_refused_and_the_next_ones_taken(
    broker: Broker, broker_kind: str, connection: RawConnection, topic: str, bystander: Bystander, what: str
) -> None:
    create_topic(broker.bootstrap, topic)
    make, codes = BROKEN_RECORDS[what]
    if broker_kind != WIREKAFKA:
        # Kafka has no better error code for the exceptions of a decompressor.
        codes = codes | {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert produce(connection, topic, make()).error_code in codes
    taken = produce(connection, topic, batch(b"sound"))
    assert (taken.error_code, taken.base_offset) == (0, 0)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD], ids=["gzip", "zstd"])
def test_a_decompression_bomb_takes_no_memory(
    broker: Broker, broker_kind: str, connection: RawConnection, topic: str, bystander: Bystander, compression: Compression
) -> None:
    """One record of 256 MiB of zeros in a batch of less than 1 MiB."""
    create_topic(broker.bootstrap, topic)
    sound = build_batch([Record(value=b"\0" * 100, timestamp=1_700_000_000_000)])
    content = b"\0" * (256 << 20)
    packed = gzip.compress(content, 1) if compression is Compression.GZIP else zstandard.compress(content, 1)
    assert len(packed) < 1_300_000
    data = bytearray(sound[:61]) + packed[: 1 << 20]
    struct.pack_into(">h", data, 21, compression)
    before = broker.resident_kib()
    assert produce(connection, topic, reseal(data)).error_code != 0
    bystander.check_goes_on()
    if broker_kind == WIREKAFKA:
        assert broker.resident_kib() - before < 48 * 1024


@pytest.mark.parametrize("name", ["with/slash", "..", ".", "", "a" * 250, "späße", "with space", "null\0byte"])
def test_a_topic_name_that_cannot_be_is_an_invalid_topic(connection: RawConnection, bystander: Bystander, name: str) -> None:
    created = connection.ask(
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1)], timeout_ms=5000), 5
    )
    assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True), 8)
    assert asked.topics[0].error_code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refused = produce(connection, name, batch(b"v"))
    assert refused.error_code in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_strangers_who_come_and_go_are_survived(broker: Broker, bystander: Bystander) -> None:
    """Random bytes, random lengths, connections reset in the middle."""
    chance = random.Random(20_26)
    for _ in range(300):
        with RawConnection(broker.address) as stranger:
            data = chance.randbytes(chance.randrange(1, 300))
            if chance.random() < 0.7:
                data = struct.pack(">ihh", len(data) + 4, chance.randrange(80), chance.randrange(16)) + data
            try:
                stranger.send(data)
            except ConnectionEndedError:
                continue
            if chance.random() < 0.5:
                stranger.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: closing resets the connection
    assert broker.is_running()
