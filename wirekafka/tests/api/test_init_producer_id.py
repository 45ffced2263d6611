from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.api.init_producer_id import InitProducerIdRequest
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller, run


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


@pytest.mark.parametrize(
    ("transactional_id", "code"), [("t", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), ("", ErrorCode.INVALID_REQUEST)]
)
def test_init_producer_id_with_a_transactional_id_is_refused(tmp_path: Path, transactional_id: str, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        assert caller.ask(InitProducerIdRequest(transactional_id=transactional_id), 4).error_code == code

    run(body, tmp_path)
