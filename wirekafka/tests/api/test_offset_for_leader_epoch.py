from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import NOW_MS, Caller, batch, run
from wirekafka.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


def ask(caller: Caller, epoch: int, version: int = 4, *, index: int = 0, current_leader_epoch: int = -1) -> Any:
    asked = OffsetForLeaderPartition(partition=index, leader_epoch=epoch, current_leader_epoch=current_leader_epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="flights", partitions=[asked])])
    return caller.ask(request, version).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(5))
def test_offset_for_leader_epoch_finds_where_epochs_end_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        partition.append(memoryview(batch(b"a", b"b")), now_ms=NOW_MS)
        partition.leader_epoch = 3
        partition.append(memoryview(batch(b"c")), now_ms=NOW_MS)
        found = [ask(caller, epoch, version) for epoch in (0, 2, 3, 4)]
        assert [each.end_offset for each in found] == [2, 2, 3, -1]
        if version >= 1:
            assert [each.leader_epoch for each in found] == [0, 0, 3, -1]

    run(body, tmp_path)


def test_offset_for_leader_epoch_of_an_empty_partition_is_its_end(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1)
        found = ask(caller, 0)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 0)

    run(body, tmp_path)


def test_offset_for_leader_epoch_refuses_other_epochs_and_partitions(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("flights", 1).partitions[0].leader_epoch = 3
        assert ask(caller, 0, current_leader_epoch=2).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert ask(caller, 0, current_leader_epoch=4).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert ask(caller, 0, index=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(body, tmp_path)
