"""Gives blocks of producer ids to brokers (AllocateProducerIds).

Rules of this file: each block is given once. It is in ZooKeeper before a broker gets it, so an answer that is lost costs a block.

Source: kafka.coordinator.transaction.ZkProducerIdManager, kafka.controller.KafkaController.processAllocateProducerIds; KIP-730.
"""

from __future__ import annotations

import structlog

from wirekafka.controller.context import ControllerContext
from wirekafka.controller.scripts import Script
from wirekafka.controller.writes import multi
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.producer_ids import BLOCK_SIZE, MAX_PRODUCER_ID
from wirekafka.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import ProducerIdBlock
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.session import Data, GetData, SetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)


def allocate(context: ControllerContext, request: AllocateProducerIdsRequest) -> Script[AllocateProducerIdsResponse]:
    """Gives a broker the next block of 1,000 ids.

    Raises:
        KafkaError: BROKER_ID_NOT_REGISTERED; STALE_BROKER_EPOCH; UNKNOWN_SERVER_ERROR if no id is left, or the znode is malformed
            or was deleted.
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the outcome is unknown; the block is lost.
    """
    live = context.live.get(request.broker_id)
    if live is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if live.epoch != request.broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {request.broker_id} has epoch {live.epoch}")
    first: int | None = None
    while first is None:
        first = yield from _take(context, request.broker_id)
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)


def _take(context: ControllerContext, broker_id: int) -> Script[int | None]:
    """Takes the next block, and returns its first id; None if the znode was written or deleted meanwhile."""
    try:
        found: Data = yield GetData(paths.PRODUCER_ID_BLOCK)
        last = ProducerIdBlock.read(found.data)
    except (MalformedZnodeError, ZooKeeperError) as error:
        if isinstance(error, ZooKeeperError) and error.code is not ZooKeeperErrorCode.NO_NODE:
            raise
        remedy = f"correct or create {paths.PRODUCER_ID_BLOCK}; its last id must not be below an id that was given"
        log.error("No broker gets producer ids, because the last block cannot be read", reason=str(error), remedy=remedy)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    first = 0 if last is None else last.last + 1
    if first > MAX_PRODUCER_ID - BLOCK_SIZE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are taken")
    block = ProducerIdBlock(broker_id, first, first + BLOCK_SIZE - 1, {} if last is None else last.unknown)
    try:
        yield from multi(context, [SetData(paths.PRODUCER_ID_BLOCK, block.write(), found.stat.version)])
    except ZooKeeperError as error:
        if error.code not in (ZooKeeperErrorCode.BAD_VERSION, ZooKeeperErrorCode.NO_NODE):
            raise
        return None
    return first
