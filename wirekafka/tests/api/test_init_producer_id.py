from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.replication.partition import Partition
from wirekafka.tests.api.data_plane import Caller, run
from wirekafka.tests.api.transactions import initialize


@pytest.mark.parametrize("version", range(7))
def test_init_producer_id_gives_a_new_id_in_every_version(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        found = [caller.ask(InitProducerIdRequest(transactional_id=None), version) for _ in range(3)]
        assert [(each.error_code, each.producer_id, each.producer_epoch) for each in found] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]

    run(body, tmp_path)


def test_init_producer_id_of_a_producer_that_has_one_gives_a_new_id(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        answer = caller.ask(InitProducerIdRequest(transactional_id=None, producer_id=7, producer_epoch=3), 4)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 0)

    run(body, tmp_path)


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(7, -1), (-1, 0)])
def test_init_producer_id_with_half_of_an_id_is_invalid(tmp_path: Path, producer_id: int, producer_epoch: int) -> None:
    async def body(caller: Caller) -> None:
        request = InitProducerIdRequest(transactional_id=None, producer_id=producer_id, producer_epoch=producer_epoch)
        answer = caller.ask(request, 4)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(7))
def test_init_producer_id_of_a_transactional_id_keeps_the_id_and_bumps_the_epoch(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        assert [initialize(caller, version=version) for _ in range(3)] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
        assert initialize(caller, "y", version) == (0, 1, 0)

    run(body, tmp_path)


def test_init_producer_id_logs_which_client_fences_a_producer(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        with structlog.testing.capture_logs() as lines:
            initialize(caller)
            assert [line for line in lines if "fenced" in line["event"]] == []
            initialize(caller, version=4, producer_id=0, producer_epoch=0)
            assert [line for line in lines if "fenced" in line["event"]] == []
            initialize(caller)
        (line,) = [line for line in lines if "fenced" in line["event"]]
        assert (line["transactional_id"], line["producer_id"], line["producer_epoch"]) == ("x", 0, 2)
        assert line["client"]

    run(body, tmp_path)


@pytest.mark.parametrize("version", [3, 4, 6])
def test_init_producer_id_of_a_fenced_producer_is_refused_in_words_that_it_knows(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        initialize(caller)
        initialize(caller)
        error = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert initialize(caller, version=version, producer_id=0, producer_epoch=0) == (error, -1, -1)
        assert initialize(caller, version=version, producer_id=0, producer_epoch=1) == (0, 0, 2)

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"enable2_pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared_txn": True}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_init_producer_id_refuses_what_cannot_be(tmp_path: Path, fields: dict[str, Any], error: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        assert initialize(caller, version=6, **fields) == (error, -1, -1)

    run(body, tmp_path)


def test_init_producer_id_of_two_phase_commit_has_no_timeout_where_that_is_allowed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert initialize(caller, version=6, enable2_pc=True) == (0, 0, 0)
        transaction, _ = caller.broker.transactions.describe("x")
        assert transaction.timeout_ms == 2**31 - 1

    run(body, tmp_path, transaction_two_phase_commit_enable="true")


def test_init_producer_id_gives_nothing_while_it_cannot_be_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(caller: Caller) -> None:
        initialize(caller)
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append", fail)
            assert initialize(caller) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        assert initialize(caller) == (0, 0, 1)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    run(body, tmp_path)
