"""The short way through Fetch answers as the ordinary one: every request goes both, and what comes is the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirekafka.api.fetch.messages import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic, ReplicaState
from wirekafka.api.fetch.shortcut import MOST_FRAME_BYTES
from wirekafka.api.registry import find_api
from wirekafka.broker import Broker
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.log.storage import FileRegion
from wirekafka.pending import Pending
from wirekafka.replication.partition import Partition
from wirekafka.server.dispatch import Dispatcher, Route
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.codec import decode, encode

FETCH = 1
VERSIONS = range(4, 19)
MIB = 1 << 20


class BothWays:
    """Two dispatchers of one broker, one of which knows no short way, and a client that asks both the same.

    Attributes:
        handled: how many requests came to the handler of the one that does.
        fields: what the requests are like, but for what a test asks.
        ending: what stands behind the body.
    """

    def __init__(self, broker: Broker, version: int) -> None:
        self.broker = broker
        self.version = version
        self.is_flexible = version >= 12
        self.handled = 0
        self.client = client()
        self.fields: dict[str, Any] = {"max_bytes": MIB, "max_wait_ms": 500, "min_bytes": 1}
        self.ending = b""
        self._correlation_id = 100
        self.short, self.ordinary = Dispatcher(broker), Dispatcher(broker)
        api = find_api(FETCH)
        assert api is not None
        self.route, ordinary = Route(api, version), Route(api, version)
        self.short._routes[FETCH << 16 | version] = self.route
        self.ordinary._routes[FETCH << 16 | version] = ordinary
        ordinary.make_shortcut = None
        handler = self.route.handler

        def count(broker: Broker, call: Any) -> Any:
            self.handled += 1
            return handler(broker, call)

        self.route.handler = count

    @property
    def partition(self) -> Partition:
        topic = self.broker.topics.find("flights")
        assert topic is not None
        return topic.partitions[0]

    def append(self, *values: bytes, index: int = 0, **settings: Any) -> None:
        partition = self.broker.topics.find("flights").partitions[index]  # type: ignore[union-attr]
        partition.append(memoryview(batch(*values, **settings)), now_ms=NOW_MS)

    def end_transaction(self, *, is_commit: bool) -> None:
        self.partition.write_marker(7, 0, coordinator_epoch=0, is_commit=is_commit, now_ms=NOW_MS, transaction_version=1)

    def topics(self, *asked: FetchPartition) -> list[FetchTopic]:
        found = self.broker.topics.find("flights")
        return [FetchTopic(topic="flights", topic_id=found.topic_id if found else b"?" * 16, partitions=list(asked))]

    def frame(
        self, offset: int, *, index: int = 0, partition_max_bytes: int = MIB, asked: dict[str, Any] | None = None, **fields: Any
    ) -> bytes:
        self._correlation_id += 1
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **(asked or {}))
        body = encode(FetchRequest(**{"topics": self.topics(wanted), **self.fields, **fields}), self.version, self.is_flexible)
        return request(FETCH, self.version, self._correlation_id, b"\0" * self.is_flexible + body + self.ending)

    def _joined(self, answer: Any) -> bytes:
        if isinstance(answer, bytes):
            return answer
        return b"".join(piece.read() if isinstance(piece, FileRegion) else piece for piece in answer)

    def ask_framed(self, framed: bytes) -> bytes | None:
        """The answer that both ways give; None if both wait, and then what they answer in the end is compared."""
        answers = [
            dispatcher.handle(memoryview(bytearray(framed))[4:], by, NOW_MS)
            for dispatcher, by in ((self.short, self.client), (self.ordinary, client()))
        ]
        if isinstance(answers[0], Pending):
            told: list[Any] = []
            for answer in answers:
                assert isinstance(answer, Pending)
                answer.then(told.append)
            self.pending = told
            return None
        short, ordinary = map(self._joined, answers)
        assert short == ordinary
        size, correlation_id = struct.unpack_from(">ii", short)
        assert (size, correlation_id) == (len(short) - 4, struct.unpack_from(">i", framed, 8)[0])
        return short

    def check_pending(self) -> None:
        """Both have waited, and both are answered now."""
        short, ordinary = map(self._joined, self.pending)
        assert short == ordinary

    def decoded(self, answer: bytes) -> Any:
        response = decode(FetchResponse, self.version, self.is_flexible, answer[8 + self.is_flexible :])
        return response.responses[0].partitions[0]

    def ask(self, offset: int, *, is_short: bool | None = None, **fields: Any) -> Any:
        """What both tell of the partition; None if both wait."""
        handled = self.handled
        answer = self.ask_framed(self.frame(offset, **fields))
        if is_short is not None:
            assert (self.handled == handled) == is_short
        return None if answer is None else self.decoded(answer)


def both_ways(path: Path, version: int, body: Callable[[BothWays], None], **settings: str) -> None:
    async def main(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2, {})
        body(BothWays(caller.broker, version))

    run(main, path, **settings)


every_version = pytest.mark.parametrize("version", VERSIONS)
some_versions = pytest.mark.parametrize("version", [4, 11, 12, 13, 18])


@every_version
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_records_of_any_size_take_the_short_way(tmp_path: Path, version: int, isolation_level: int) -> None:
    def body(ways: BothWays) -> None:
        ways.fields["isolation_level"] = isolation_level
        for size in (0, 1, 40, 55, 56, 57, 58, 59, 60, 900, 20_000):
            ways.append(b"x" * size)
        ways.append(b"a", b"b", b"c")
        for partition_max_bytes in (0, 100, 130, 1000, 16_382, 16_383, MIB):
            for offset in range(14):
                data = ways.ask(offset, is_short=offset > 0, partition_max_bytes=partition_max_bytes)
                assert (data.high_watermark, data.last_stable_offset) == (14, 14)
                assert data.records

    both_ways(tmp_path, version, body)


@every_version
def test_read_is_cut_by_whichever_limit_is_the_least(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        for _ in range(20):
            ways.append(b"x" * 300)
        size = len(batch(b"x" * 300))
        for max_bytes, partition_max_bytes, expected in [
            (MIB, 1000, 1000),
            (1000, MIB, 1000),
            (MIB, MIB, 2000),
            (10, MIB, size),
            (MIB, 10, size),
            (-1, MIB, size),
            (MIB, -1, size),
        ]:
            for offset in (3, 4, 5):
                data = ways.ask(offset, is_short=offset > 3, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
                assert len(data.records) == expected

    both_ways(tmp_path, version, body, fetch_max_bytes="2000")


@every_version
def test_each_partition_has_a_shortcut_of_its_own(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.append(b"b", index=1)
        for index, is_short in [(0, False), (1, False), (0, True), (1, True)]:
            assert ways.ask(0, is_short=is_short, index=index).partition_index == index

    both_ways(tmp_path, version, body)


@every_version
def test_another_tail_goes_the_ordinary_way_once(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        for _ in range(5):
            ways.append(b"x" * 300)
        tails: list[dict[str, Any]] = [{"partition_max_bytes": 1000}, {"partition_max_bytes": 10}]
        if version >= 5:
            tails.append({"asked": {"log_start_offset": 0}})
        if version >= 11:
            tails += [{"rack_id": "a"}, {"rack_id": "b"}]
        if version >= 12:
            tails.append({"cluster_id": "somewhere"})
        ways.ask(0)
        for tail in [*tails, *tails]:
            ways.ask(0, is_short=False, **tail)
            ways.ask(1, is_short=True, **tail)

    both_ways(tmp_path, version, body)


@every_version
def test_fetch_at_the_high_watermark_waits_and_is_not_remembered(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        assert ways.ask(1, is_short=False) is None
        assert not ways.route.shortcuts
        ways.append(b"b")
        ways.check_pending()
        ways.ask(0, is_short=False)
        [kept] = ways.route.shortcuts.values()
        assert ways.ask(2, is_short=False) is None
        assert [*ways.route.shortcuts.values()] == [kept]
        ways.append(b"c")
        ways.check_pending()
        assert ways.ask(2, is_short=True).high_watermark == 3

    both_ways(tmp_path, version, body)


@some_versions
def test_too_few_bytes_wait_unless_there_is_no_waiting(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        size = len(batch(b"a"))
        ways.fields["min_bytes"] = size
        ways.ask(0, is_short=False)
        assert ways.ask(0, is_short=True)
        ways.fields["min_bytes"] = size + 1
        assert ways.ask(0, is_short=False) is None
        ways.append(b"b")
        ways.check_pending()
        ways.ask(0, is_short=False)
        assert ways.ask(1, is_short=False) is None
        ways.fields["max_wait_ms"] = 0
        ways.ask(1, is_short=False)
        assert ways.ask(1, is_short=True)
        assert ways.ask(2, is_short=False).records == b""

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("min_bytes", [-1, 0, 5000])
def test_min_bytes_is_within_what_may_be_given(tmp_path: Path, min_bytes: int) -> None:
    def body(ways: BothWays) -> None:
        for _ in range(10):
            ways.append(b"x" * 300)
        ways.fields |= {"min_bytes": min_bytes, "max_bytes": 1000}
        ways.ask(0, is_short=False)
        assert len(ways.ask(1, is_short=True).records) == 1000

    both_ways(tmp_path, 11, body)


@every_version
@pytest.mark.parametrize("offset", [-1, 0, 3, 1 << 40])
def test_offset_out_of_range_is_told(tmp_path: Path, version: int, offset: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.append(b"b")
        ways.ask(1)
        assert ways.ask(0, is_short=True).log_start_offset in (0, -1)
        ways.partition.delete_records(1)
        assert ways.ask(1, is_short=True).log_start_offset == (1 if version >= 5 else -1)
        assert ways.ask(offset, is_short=False).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", range(9, 19))
def test_leader_epoch_must_be_the_leaders(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.partition.leader_epoch = 5
        for epoch, code in [(5, 0), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)]:
            asked = {"current_leader_epoch": epoch}
            ways.ask(0, is_short=False, asked=asked)
            assert ways.ask(0, is_short=not code, asked=asked).error_code == code
        ways.partition.leader_epoch = 6
        for epoch, code in [(5, ErrorCode.FENCED_LEADER_EPOCH), (6, 0), (-1, 0)]:
            assert ways.ask(0, is_short=not code, asked={"current_leader_epoch": epoch}).error_code == code

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", range(12, 19))
def test_epoch_that_was_fetched_last_may_diverge(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.partition.leader_epoch = 5
        ways.append(b"b")
        short, ordinary = [(-1, 5), (5, 5)], [(5, 0), (-1, 0), (-1, 4), (-1, 9), (5, 6), (5, 7)]
        for epochs in short + ordinary:
            asked = dict(zip(("current_leader_epoch", "last_fetched_epoch"), epochs, strict=True))
            ways.ask(0, is_short=False, asked=asked)
            for offset in (0, 1):
                ways.ask(offset, is_short=epochs in short, asked=asked)
            ways.ask(3, is_short=False, asked=asked)
        ways.partition.leader_epoch = 6
        assert ways.ask(1, is_short=False, asked={"last_fetched_epoch": 5}) is not None

    both_ways(tmp_path, version, body)


@every_version
def test_open_transaction_ends_what_is_stable(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.fields["isolation_level"] = 1
        ways.append(b"a")
        ways.append(b"b")
        ways.ask(0, is_short=False)
        ways.append(b"c", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        ways.append(b"d")
        data = ways.ask(0, is_short=True)
        assert (data.high_watermark, data.last_stable_offset, data.aborted_transactions) == (4, 2, [])
        for is_short in (False, True):
            assert ways.ask(2, is_short=is_short, isolation_level=0).records
        assert ways.ask(2, is_short=False) is None
        ways.end_transaction(is_commit=True)
        ways.check_pending()
        assert ways.ask(2, is_short=True).last_stable_offset == 5

    both_ways(tmp_path, version, body)


@every_version
def test_aborted_transactions_are_told(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.fields["isolation_level"] = 1
        ways.append(b"a")
        ways.ask(0, is_short=False)
        ways.append(b"b", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        ways.end_transaction(is_commit=False)
        ways.append(b"c")
        kept = dict(ways.route.shortcuts)
        [aborted] = ways.ask(0, is_short=False).aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (7, 1)
        assert ways.ask(1, is_short=False).aborted_transactions == [aborted]
        assert ways.route.shortcuts == kept, "making them again and again would take longer than they save"
        assert ways.ask(3, is_short=True).aborted_transactions == []
        ways.fields["isolation_level"] = 0
        ways.ask(0, is_short=False)
        assert ways.ask(1, is_short=True).aborted_transactions is None

    both_ways(tmp_path, version, body)


@every_version
def test_topic_that_is_gone_or_made_anew_is_looked_up(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.append(b"b", index=1)
        for index in (0, 1):
            ways.ask(0, is_short=False, index=index)
        topic = ways.broker.topics.find("flights")
        assert topic is not None
        old = ways.frame(0)
        ways.broker.topics.delete(topic)
        gone = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert ways.decoded(ways.ask_framed(old) or b"").error_code == gone
        ways.broker.topics.create("flights", 1, {})
        ways.append(b"c")
        ways.append(b"d")
        assert ways.ask(0, is_short=version < 13).high_watermark == 2
        assert ways.ask(0, is_short=True).high_watermark == 2
        assert ways.ask(0, is_short=False, index=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 13:
            assert ways.decoded(ways.ask_framed(old) or b"").error_code == gone

    both_ways(tmp_path, version, body)


@every_version
def test_log_that_is_offline_is_told(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.ask(0)
        ways.partition.log.take_offline("it burns")
        code = ErrorCode.KAFKA_STORAGE_ERROR if version >= 6 else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ways.ask(0, is_short=False).error_code == code

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [9, 10, 12])
def test_zstd_is_refused_to_who_does_not_know_it(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.ask(0)
        log = ways.partition.log
        log.update_config(type(log.config).of(ways.broker.config, {"compression.type": "zstd"}))
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 10 else 0
        assert ways.ask(0, is_short=version >= 10).error_code == code

    both_ways(tmp_path, version, body)


@some_versions
def test_what_is_not_a_consumer_of_one_partition_has_no_shortcut(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        [topic] = ways.topics(FetchPartition(partition_max_bytes=MIB))
        [both] = ways.topics(FetchPartition(partition_max_bytes=MIB), FetchPartition(partition=1, partition_max_bytes=MIB))
        asked: list[dict[str, Any]] = [{"topics": [both]}, {"topics": [topic, topic]}]
        asked.append({"replica_state": ReplicaState(replica_id=1)} if version >= 15 else {"replica_id": 1})
        if version >= 7:
            asked.append({"forgotten_topics_data": [ForgottenTopic(topic="flights", topic_id=topic.topic_id, partitions=[1])]})
            asked.append({"session_id": 7})
        for fields in asked:
            ways.ask_framed(ways.frame(0, **fields))
            assert not ways.route.shortcuts, fields

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize(("version", "session_epoch"), [(0, -1), (2, -1), (3, -1), (7, 0), (12, 0), (18, 0)])
def test_fetch_of_message_sets_or_with_a_session_has_no_shortcut(tmp_path: Path, version: int, session_epoch: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        framed = ways.frame(0, session_epoch=session_epoch)
        assert ways.short.handle(memoryview(bytearray(framed))[4:], ways.client, NOW_MS)
        assert not ways.route.shortcuts

    both_ways(tmp_path, version, body)


@every_version
def test_bytes_behind_the_body_and_torn_frames_go_the_ordinary_way(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.ending = b"more"
        ways.ask(0, is_short=False)
        ways.ask(0, is_short=False)
        assert not ways.route.shortcuts
        ways.ending = b""
        ways.ask(0, is_short=False)
        ways.ending = b"m"
        ways.ask(0, is_short=False)
        ways.ending = b""
        whole = ways.frame(0)
        for missing in range(1, 30):
            with pytest.raises(ProtocolError, match=f"a broken Fetch {version} request"):
                ways.short.handle(memoryview(bytearray(whole[:-missing]))[4:], ways.client, NOW_MS)
        ways.ask(0, is_short=True)

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [12, 18])
def test_tagged_field_that_is_not_known_goes_the_ordinary_way(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        framed = ways.frame(0)[:-1] + b"\x01\x63\x01?"
        framed = struct.pack(">i", len(framed) - 4) + framed[4:]
        for _ in range(2):
            assert ways.ask_framed(framed) is not None
            assert not ways.route.shortcuts

    both_ways(tmp_path, version, body)


@pytest.mark.parametrize("version", [11, 13])
def test_what_a_stranger_makes_up_is_not_kept(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        unknown = [FetchTopic(topic="no-such-topic", topic_id=b"!" * 16, partitions=[FetchPartition(partition_max_bytes=MIB)])]
        for framed in (ways.frame(0, topics=unknown), ways.frame(0, index=2), ways.frame(0, index=-1)):
            assert ways.ask_framed(framed) is not None
        assert not ways.route.shortcuts
        ways.ask(0, rack_id="r" * MOST_FRAME_BYTES)
        assert not ways.route.shortcuts
        ways.ask(0, rack_id="r" * (MOST_FRAME_BYTES // 2))
        assert ways.route.shortcuts

    both_ways(tmp_path, version, body)


@some_versions
def test_answer_is_a_few_pieces_of_its_own(tmp_path: Path, version: int) -> None:
    def body(ways: BothWays) -> None:
        ways.append(b"a")
        ways.ask(0)
        first, second = (ways.short.handle(memoryview(bytearray(ways.frame(0)))[4:], ways.client, NOW_MS) for _ in range(2))
        assert isinstance(first, list) and isinstance(second, list)  # noqa: PT018
        assert [type(piece) for piece in first] == [bytes, FileRegion] + [bytes] * ways.is_flexible
        assert all(map(len, first))
        assert first[1] is not second[1], "a driver changes what it has sent a part of"

    both_ways(tmp_path, version, body)
