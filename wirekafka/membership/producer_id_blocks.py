"""Producer ids of a cluster: each broker gets blocks of them, from the controller or from ZooKeeper.

How it works: the controller gives blocks since Kafka 3.0. In a cluster with an older `inter.broker.protocol.version`, each broker
takes its blocks by the znode /latest_producer_id_block, to which the controllers of newer clusters write too. When nine tenths of
a block are taken, the broker asks for the next block. While the broker has no block, producers get COORDINATOR_LOAD_IN_PROGRESS,
which all clients retry, and the broker asks for a block. No request waits for a block.

Rules of this file:
    Each id is given once. A block that is lost, because the broker stops or an answer does not arrive, is never given.
    Blocks increase: a block that begins before the end of the last one is refused, because its ids may be in use.

Source: kafka.coordinator.transaction.RPCProducerIdManager, ZkProducerIdManager; KIP-730.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.retrying_client import Hint, RetryingClient
from wirekafka.metadata.producer_ids import BLOCK_SIZE, MAX_PRODUCER_ID
from wirekafka.replication.replica_fetcher import Timers
from wirekafka.wire.messages.allocate_producer_ids import (
    ALLOCATE_PRODUCER_IDS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import ProducerIdBlock
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.session import GetData, SetData, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

RETRY_BACK_OFF_MS = 50
PREFETCH_SHARE = 0.9
"""When this part of a block is taken, the next one is asked for (ProducerIdManager.PidPrefetchThreshold)."""


class Send(Protocol):
    """Sends a request to the controller, as `Controller.send` does."""

    def __call__(
        self,
        kind: RequestType[AllocateProducerIdsRequest, AllocateProducerIdsResponse],
        build: Callable[[int], AllocateProducerIdsRequest],
        on_end: Callable[[AllocateProducerIdsResponse | None], object],
    ) -> None:
        """Calls back once, later, with the answer, or with None if there is none."""


OnBlock = Callable[["range | str"], object]
"""Called with the ids of a block, or with the reason why there is none."""


class ProducerIdBlocks:
    """Gives producer ids from blocks.

    Args:
        request_block: asks for a block, and calls back once, later.
    """

    def __init__(self, request_block: Callable[[OnBlock], object], timers: Timers) -> None:
        self._request_block = request_block
        self._timers = timers
        self._block = range(0)
        """The ids of the current block that are not taken yet."""
        self._next_block = range(0)
        self._prefetch_at = -1
        self._end = 0
        """One past the greatest id of all blocks so far."""
        self._is_asking = False
        self._retry_at_ms: int | None = None
        self._failure: str | None = None
        """Why there was no block the last time; it is logged once."""

    def take(self) -> int:
        """Returns a producer id that no other producer of the cluster has.

        Raises:
            KafkaError: COORDINATOR_LOAD_IN_PROGRESS if there is no block yet; one has been asked for.
        """
        if not self._block:
            self._block, self._next_block = self._next_block, range(0)
            self._prefetch_at = self._block.start + int(len(self._block) * PREFETCH_SHARE)
        if not self._block:
            self.prepare()
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "there is no block of producer ids yet")
        producer_id = self._block[0]
        self._block = self._block[1:]
        if producer_id == self._prefetch_at:
            self.prepare()
        return producer_id

    def prepare(self) -> None:
        """Asks for the next block, unless there is one, or the broker is asking or has just failed."""
        is_early = self._retry_at_ms is not None and self._timers.monotonic_ms() < self._retry_at_ms
        if self._next_block or self._is_asking or is_early:
            return
        self._is_asking, self._retry_at_ms = True, None
        self._request_block(self._take_block)

    def _take_block(self, block: range | str) -> None:
        self._is_asking = False
        failure = block if isinstance(block, str) else self._fault_of(block)
        if isinstance(block, range) and failure is None:
            self._next_block, self._failure = block, None
            self._end = block.stop
            return
        self._retry_at_ms = self._timers.monotonic_ms() + RETRY_BACK_OFF_MS
        if failure == self._failure:
            return
        self._failure = failure
        log.warning("The broker got no block of producer ids; it asks again when a producer needs an id", reason=failure)

    def _fault_of(self, block: range) -> str | None:
        if block.start < 0 or not block or block.stop > MAX_PRODUCER_ID:
            return f"the ids from {block.start} to {block.stop} are no block"
        if block.start < self._end:
            return f"ids from {block.start}, but those below {self._end} were given before"
        return None


class ControllerBlocks:
    """Asks the controller for blocks.

    Args:
        broker_epoch: returns the epoch of this broker's registration; -1 while it is not registered.
    """

    def __init__(self, send: Send, *, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._send = send
        self._node_id = node_id
        self._broker_epoch = broker_epoch

    def request(self, on_block: OnBlock) -> None:
        """Asks for a block, and calls back once, later."""
        self._send(ALLOCATE_PRODUCER_IDS, self._build, lambda response: on_block(_block_of(response)))

    def _build(self, version: int) -> AllocateProducerIdsRequest:
        return AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())


def _block_of(response: AllocateProducerIdsResponse | None) -> range | str:
    if response is None:
        return "the controller did not answer"
    if response.error_code != ErrorCode.NONE:
        return ErrorCode.of(response.error_code).name
    return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)


class ZooKeeperBlocks:
    """Takes blocks by the znode /latest_producer_id_block.

    Args:
        zookeeper: the session; all brokers of the cluster, and controllers of newer releases, compare and set the same znode.
    """

    def __init__(self, zookeeper: RetryingClient, *, node_id: int) -> None:
        self._zookeeper = zookeeper
        self._node_id = node_id
        self._wanted = Hint()
        self._waiting: deque[OnBlock] = deque()

    def request(self, on_block: OnBlock) -> None:
        """Asks for a block, and calls back once, later."""
        self._waiting.append(on_block)
        self._wanted.give()

    async def run(self) -> None:
        """Takes the blocks that are asked for, until it is cancelled.

        Cancellation: a block may be taken whose ids are never given.
        """
        while True:
            await self._wanted.wait()
            while self._waiting:
                self._waiting.popleft()(await self._take())

    async def _take(self) -> range | str:
        """Takes the next block. An answer that is lost costs a block."""
        while True:
            try:
                found = await self._zookeeper.ask(GetData(paths.PRODUCER_ID_BLOCK))
                last = ProducerIdBlock.read(found.data)
                first = 0 if last is None else last.last + 1
                if first > MAX_PRODUCER_ID - BLOCK_SIZE:
                    return "all producer ids are taken"
                taken = ProducerIdBlock(self._node_id, first, first + BLOCK_SIZE - 1, {} if last is None else last.unknown)
                await self._zookeeper.ask(SetData(paths.PRODUCER_ID_BLOCK, taken.write(), found.stat.version))
            except MalformedZnodeError as error:
                return str(error)
            except ZooKeeperError as error:
                if error.code is not ZooKeeperErrorCode.BAD_VERSION:
                    return f"ZooKeeper refuses it: {error}"
                continue
            return range(first, first + BLOCK_SIZE)
