from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import Caller, run, wait_for
from wirekafka.tests.api.transactions import add, end, initialize
from wirekafka.wire.batch import BatchHeader
from wirekafka.wire.control import EndMarker, read_end_marker
from wirekafka.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


def markers_in(partition: Partition) -> list[tuple[int, int, bool]]:
    """Returns the producer id and epoch of each marker, and whether it commits."""
    found = []
    for batch in partition.log.batches(0):
        header, marker = BatchHeader(batch), read_end_marker(batch)
        if header.is_control and marker is not None:
            found.append((header.producer_id, header.producer_epoch, marker.is_commit))
    return found


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_a_transaction_ends_with_a_marker_in_every_version(tmp_path: Path, version: int, commit: bool) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("t", 1).partitions[0]
        initialize(caller)
        add(caller, (0, 0), ("t", 0))
        is_v2 = version >= 5
        assert end(caller, (0, 0), commit=commit, version=version) == ((0, 0, 1) if is_v2 else (0, -1, -1))
        assert markers_in(partition) == [(0, 1 if is_v2 else 0, commit)]
        assert caller.broker.transactions.describe("x")[0].state.title == ("CompleteCommit" if commit else "CompleteAbort")
        assert end(caller, (0, 0), commit=commit, version=version)[0] == 0
        assert end(caller, (0, 0), commit=not commit, version=version)[0] == ErrorCode.INVALID_TXN_STATE

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "error"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_a_fenced_producer_is_told_in_words_that_it_knows(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        initialize(caller)
        initialize(caller)
        assert end(caller, (0, 0), version=version)[0] == error

    run(body, tmp_path)


def test_a_marker_that_fails_is_tried_again_and_clients_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("t", 1).partitions[0]
        initialize(caller)
        add(caller, (0, 0), ("t", 0))
        write_marker = Partition.write_marker
        is_broken = True

        def fails(self: Partition, *args: Any, **kwargs: Any) -> Any:
            if is_broken:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a test")
            return write_marker(self, *args, **kwargs)

        monkeypatch.setattr(Partition, "write_marker", fails)
        assert end(caller, (0, 0), version=5) == (0, 0, 1)
        assert end(caller, (0, 0), version=5)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
        assert add(caller, (0, 1), ("t", 0)) == {("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}
        assert initialize(caller)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
        await trio.sleep(3)
        is_broken = False
        await trio.sleep(1)
        assert markers_in(partition) == [(0, 1, True)]
        assert add(caller, (0, 1), ("t", 0)) == {("t", 0): ErrorCode.NONE}

    run(body, tmp_path)


def test_a_transaction_of_a_deleted_topic_ends_too(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("t", 1)
        initialize(caller)
        add(caller, (0, 0), ("t", 0))
        caller.broker.topics.delete(topic)
        assert end(caller, (0, 0), version=5) == (0, 0, 1)
        assert caller.broker.transactions.describe("x")[0].state.title == "CompleteCommit"

    run(body, tmp_path)


def test_the_marker_has_the_epoch_of_the_coordinator(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("t", 1).partitions[0]
        initialize(caller)
        add(caller, (0, 0), ("t", 0))
        state = caller.broker.topics.find("__transaction_state")
        assert state is not None
        state.partitions[caller.broker.transactions.partition_of("x")].leader_epoch = 7
        end(caller, (0, 0))
        (batch,) = partition.log.batches(0)
        assert read_end_marker(batch) == EndMarker(True, 7)

    run(body, tmp_path)


def test_who_waits_for_all_partitions_of_a_transaction_gets_them_in_one_answer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("t", 2)
        initialize(caller)
        add(caller, (0, 0), ("t", 0), ("t", 1))
        partitions = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(2)]
        fetch = FetchRequest(
            max_wait_ms=1000, min_bytes=1, isolation_level=1, topics=[FetchTopic(topic="t", partitions=partitions)]
        )
        pending = caller.ask(fetch, 11)
        end(caller, (0, 0))
        (topic,) = (await wait_for(pending)).responses
        assert [answer.high_watermark for answer in topic.partitions] == [1, 1]
        assert all(len(answer.records) for answer in topic.partitions)

    run(body, tmp_path)
