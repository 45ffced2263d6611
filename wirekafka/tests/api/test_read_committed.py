"""Fetch and ListOffsets with isolation level read_committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, wait_for
from wirekafka.tests.api.fetching import append, at, partitions_of, request_of, values
from wirekafka.tests.api.transacting import V1, Transactor, run
from wirekafka.wire.batch import BatchHeader
from wirekafka.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

COMMITTED: dict[str, Any] = {"isolation_level": 1}


def fetch(caller: Caller, offset: int = 0, version: int = 17, **fields: Any) -> Any:
    request = request_of(caller, at(offset, max_bytes=fields.pop("max_bytes", 1 << 20)), **{**COMMITTED, **fields})
    return partitions_of(caller.ask(request, version))[0]


def aborted(data: Any) -> list[tuple[int, int]] | None:
    found = data.aborted_transactions
    return None if found is None else [(each.producer_id, each.first_offset) for each in found]


def offset_of(caller: Caller, timestamp: int, *, isolation_level: int = 1, version: int = 9) -> int:
    topics = [ListOffsetsTopic(name="flights", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
    return int(caller.ask(request, version).topics[0].partitions[0].offset)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_of_committed_records_ends_at_the_stable_offset_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        append(caller, batch(b"a"))
        producer.send(b"aborted")
        producer.end(is_commit=False)
        first = producer.producer_id, 1
        append(caller, batch(b"b"))
        producer.send(b"open")
        append(caller, batch(b"c"))

        found = fetch(caller, version=version)
        assert values(found)[:2] == [b"a", b"aborted"]
        assert (len(values(found)), values(found)[-1]) == (4, b"b")
        assert (found.high_watermark, found.last_stable_offset, aborted(found)) == (6, 4, [first])
        everything = fetch(caller, version=version, isolation_level=0)
        assert values(everything)[-2:] == [b"open", b"c"]
        assert (everything.last_stable_offset, aborted(everything)) == (4, None)

    run(body, tmp_path)


def test_fetch_at_the_stable_offset_finds_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a"))
        Transactor(caller).send(b"open", b"open")
        for offset in (1, 2, 3):
            found = fetch(caller, offset)
            assert (found.error_code, values(found), aborted(found), found.last_stable_offset) == (0, [], [], 1)

    run(body, tmp_path)


def test_fetch_is_told_of_the_aborted_transactions_within_what_it_gets(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1, {"index.interval.bytes": "0"})
        producer = Transactor(caller, version=V1)
        for number in range(10):
            producer.add(0)
            producer.send(b"%d" % number)
            producer.end(is_commit=bool(number % 2))
        size = len(producer.batch(b"0", sequence=0))
        found = fetch(caller, 8, max_bytes=size)
        assert values(found) == [b"4"]
        assert aborted(found)[0] == (producer.producer_id, 8)  # type: ignore[index]
        assert len(aborted(found) or ()) <= 2
        assert [first for _, first in aborted(fetch(caller, 0)) or ()] == [0, 4, 8, 12, 16]

    run(body, tmp_path)


def test_fetch_of_committed_records_waits_until_the_transaction_ends(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        pending = caller.ask(request_of(caller, at(0), max_wait_ms=60_000, **COMMITTED), 17)
        producer.send(b"a", b"b")
        append(caller, batch(b"c"))
        assert not pending.is_done
        producer.end()
        assert pending.is_done
        found = partitions_of(await wait_for(pending))[0]
        assert (values(found)[:3], found.last_stable_offset) == ([b"a", b"b", b"c"], 4)

    run(body, tmp_path)


def test_fetch_of_committed_records_that_was_behind_the_stable_offset_waits_for_it(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        producer.send(b"a" * 1000)
        pending = caller.ask(request_of(caller, at(0), max_wait_ms=60_000, min_bytes=1000, **COMMITTED), 17)
        producer.end(is_commit=False)
        assert pending.is_done

    run(body, tmp_path)


def test_fetch_of_committed_records_counts_what_is_stable_only(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        first, second = Transactor(caller), Transactor(caller, "other")
        size = len(batch(b"a" * 100))
        pending = caller.ask(request_of(caller, at(0), max_wait_ms=60_000, min_bytes=3 * size, **COMMITTED), 17)
        append(caller, batch(b"a" * 100))
        first.send(b"b" * 100)
        second.send(b"c" * 100)
        append(caller, batch(b"d" * 100))
        assert not pending.is_done
        first.end()
        assert not pending.is_done
        second.end()
        assert pending.is_done

    run(body, tmp_path)


def test_fetch_of_all_records_does_not_wait_for_a_transaction(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        pending = caller.ask(request_of(caller, at(0), max_wait_ms=60_000), 17)
        Transactor(caller).send(b"a")
        assert pending.is_done

    run(body, tmp_path)


def test_fetch_whose_time_is_up_says_where_the_stable_offset_is(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        Transactor(caller).send(b"a")
        pending = caller.ask(request_of(caller, at(0), max_wait_ms=500, **COMMITTED), 17)
        found = partitions_of(await wait_for(pending))[0]
        assert (values(found), found.high_watermark, found.last_stable_offset) == ([], 1, 0)

    run(body, tmp_path)


def test_session_of_committed_records_wakes_when_the_stable_offset_moves(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 2)
        producer = Transactor(caller)
        opened = caller.ask(request_of(caller, at(0), at(0, 1), session_epoch=0, **COMMITTED), 17)
        assert opened.session_id
        fields = {"session_id": opened.session_id, "max_wait_ms": 60_000, "topics": [], **COMMITTED}
        waiting = caller.ask(request_of(caller, session_epoch=1, **fields), 17)
        producer.send(b"a")
        producer.send(b"b", index=1)
        assert not waiting.is_done
        producer.end()
        assert waiting.is_done
        found = partitions_of(await wait_for(waiting))
        assert {index: values(data)[0] for index, data in found.items()} == {0: b"a", 1: b"b"}

    run(body, tmp_path)


def test_session_tells_what_became_stable_while_nobody_waited(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        opened = caller.ask(request_of(caller, at(0), session_epoch=0, **COMMITTED), 17)
        fields = {"session_id": opened.session_id, "topics": [], **COMMITTED}
        producer.send(b"a")
        news = partitions_of(caller.ask(request_of(caller, session_epoch=1, **fields), 17))
        assert (values(news[0]), news[0].high_watermark) == ([], 1)
        assert partitions_of(caller.ask(request_of(caller, session_epoch=2, **fields), 17)) == {}
        producer.end()
        news = partitions_of(caller.ask(request_of(caller, session_epoch=3, **fields), 17))
        assert values(news[0])[0] == b"a"

    run(body, tmp_path)


def test_one_answer_holds_a_transaction_of_many_partitions(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 3)
        producer = Transactor(caller)
        pending = caller.ask(request_of(caller, at(0), at(0, 1), at(0, 2), max_wait_ms=60_000, **COMMITTED), 17)
        producer.ask({index: producer.batch(b"a", sequence=0) for index in range(3)})
        producer.end()
        found = partitions_of(await wait_for(pending))
        assert [values(found[index])[:1] for index in range(3)] == [[b"a"]] * 3

    run(body, tmp_path)


def test_old_clients_get_no_markers(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        producer = Transactor(caller)
        producer.send(b"a")
        producer.end()
        producer.send(b"b")
        producer.end()
        found = fetch(caller, version=3, isolation_level=0)
        assert bytes(found.records).count(b"a") == 1
        assert BatchHeader(bytes(fetch(caller).records)).is_transactional
        assert len(found.records) < len(fetch(caller).records)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(2, 12))
def test_list_offsets_of_committed_records_ends_at_the_stable_offset(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        append(caller, batch(b"a", timestamp=NOW_MS - 10))
        Transactor(caller).send(b"open", timestamp=NOW_MS)
        append(caller, batch(b"b", timestamp=NOW_MS + 10))
        assert offset_of(caller, -1, version=version) == 1
        assert offset_of(caller, -1, version=version, isolation_level=0) == 3
        assert offset_of(caller, NOW_MS - 10, version=version) == 0
        assert offset_of(caller, NOW_MS, version=version) == -1
        assert offset_of(caller, NOW_MS, version=version, isolation_level=0) == 1
        if version >= 7:
            assert offset_of(caller, -3, version=version) == -1
            assert offset_of(caller, -3, version=version, isolation_level=0) == 2

    run(body, tmp_path)
