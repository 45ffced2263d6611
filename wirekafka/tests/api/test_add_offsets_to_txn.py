from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from wirekafka.errors import ErrorCode
from wirekafka.names import TopicPartition
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.tests.api.transactions import initialize


@pytest.mark.parametrize("version", range(5))
def test_the_partition_of_the_group_is_added_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        initialize(caller)
        request = AddOffsetsToTxnRequest(transactional_id="x", producer_id=0, producer_epoch=0, group_id="g")
        assert caller.ask(request, version).error_code == 0
        index = caller.broker.groups.partition_of("g")
        assert caller.broker.transactions.describe("x")[1] == [TopicPartition("__consumer_offsets", index)]

    run(body, tmp_path)


@pytest.mark.parametrize(("version", "error"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_a_fenced_producer_is_told_in_words_that_it_knows(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        initialize(caller)
        initialize(caller)
        request = AddOffsetsToTxnRequest(transactional_id="x", producer_id=0, producer_epoch=0, group_id="g")
        assert caller.ask(request, version).error_code == error

    run(body, tmp_path)
