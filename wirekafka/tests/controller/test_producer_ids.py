"""Blocks of producer ids that the controller gives."""

from __future__ import annotations

from typing import Any

import pytest

from wirekafka.controller.producer_ids import allocate
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import KafkaError
from wirekafka.tests.controller.stage import Stage
from wirekafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import ProducerIdBlock
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Delete, GetData, Multi, Operation, SetData, ZooKeeperError


def _stage() -> Stage:
    stage = Stage()
    stage.add_broker(2)
    return stage


def _allocate(stage: Stage, broker_id: int = 2, broker_epoch: int | None = None) -> range:
    epoch = stage.context.live[2].epoch if broker_epoch is None else broker_epoch
    response = stage.run(allocate(stage.context, AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)))
    return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)


def test_blocks_follow_each_other_and_are_stored_with_their_broker() -> None:
    stage = _stage()
    assert [_allocate(stage), _allocate(stage)] == [range(1000), range(1000, 2000)]
    assert ProducerIdBlock.read(stage.do(GetData(paths.PRODUCER_ID_BLOCK)).data) == ProducerIdBlock(2, 1000, 1999)


def test_block_that_another_broker_takes_meanwhile_is_not_given_again() -> None:
    stage = _stage()
    other = stage.connect()
    stage.turn()
    taken = [ProducerIdBlock(7, 0, 999)]

    def take(operation: Operation[Any]) -> None:
        if isinstance(operation, Multi) and taken:
            stage.do(SetData(paths.PRODUCER_ID_BLOCK, taken.pop().write()), other)

    stage.client.choose_fault = take
    assert _allocate(stage) == range(1000, 2000)


@pytest.mark.parametrize(
    ("broker_id", "broker_epoch", "code"), [(9, 0, "BROKER_ID_NOT_REGISTERED"), (2, 0, "STALE_BROKER_EPOCH")]
)
def test_only_registered_brokers_get_blocks(broker_id: int, broker_epoch: int, code: str) -> None:
    stage = _stage()
    with pytest.raises(KafkaError, match=code):
        _allocate(stage, broker_id, broker_epoch)
    assert stage.do(GetData(paths.PRODUCER_ID_BLOCK)).data == b""


def test_block_whose_reply_is_lost_is_never_given() -> None:
    stage = _stage()
    faults = [Fault.REPLY_LOST]
    stage.client.choose_fault = lambda operation: faults.pop() if isinstance(operation, Multi) and faults else None
    with pytest.raises(ZooKeeperError, match="CONNECTION_LOSS"):
        _allocate(stage)
    stage.turn()
    assert _allocate(stage) == range(1000, 2000)


def test_deposed_controller_gives_no_block() -> None:
    stage = _stage()
    stage.depose()
    with pytest.raises(DeposedError):
        _allocate(stage)


@pytest.mark.parametrize("content", [b"{", ProducerIdBlock(1, 0, (1 << 63) - 1).write()])
def test_no_block_is_given_if_none_is_left_or_the_last_one_is_malformed(content: bytes) -> None:
    stage = _stage()
    stage.do(SetData(paths.PRODUCER_ID_BLOCK, content))
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        _allocate(stage)


def test_no_block_is_given_after_the_last_one_was_deleted_until_it_is_restored() -> None:
    stage = _stage()
    _allocate(stage)
    other = stage.connect()
    stage.turn()
    deleted = [Delete(paths.PRODUCER_ID_BLOCK)]

    def delete(operation: Operation[Any]) -> None:
        if isinstance(operation, Multi) and deleted:
            stage.do(deleted.pop(), other)

    stage.client.choose_fault = delete
    for _ in range(2):
        with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
            _allocate(stage)

    stage.do(Create(paths.PRODUCER_ID_BLOCK, ProducerIdBlock(2, 0, 999).write()))
    assert _allocate(stage) == range(1000, 2000)
