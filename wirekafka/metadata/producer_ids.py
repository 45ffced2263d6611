"""Producer ids: each given once, also across restarts and crashes.

Theory of operation: ids are taken from a block of a thousand. A block is noted on disk before its first id is given, and a
broker that starts begins a new one, so a crash loses only ids that no producer has. The file's content is what Apache
Kafka kept in ZooKeeper's /latest_producer_id_block.

Source: org.apache.kafka.coordinator.transaction.ProducerIdManager, org.apache.kafka.server.common.ProducerIdsBlock; KIP-98.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage

log = structlog.get_logger(__name__)

FILE_NAME = "latest-producer-id-block"
VERSION = 1
"""Of the file. Apache Kafka's in ZooKeeper was never another."""
BLOCK_SIZE = 1000
"""ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""
MAX_PRODUCER_ID = 0x7FFF_FFFF_FFFF_FFFF


class ProducerIds:
    """Gives producer ids.

    Args:
        path: the file that holds the last block.
        storage: where the file is.
        node_id: the id of the broker that takes the blocks; noted in the file.
        greatest_known: the greatest id that the logs remember, -1 if none; asked only where there is no file, which is so
            for logs that come from another broker.
    """

    def __init__(self, path: str, storage: Storage, *, node_id: int, greatest_known: Callable[[], int]) -> None:
        self._path = path
        self._storage = storage
        self._node_id = node_id
        self._greatest_known = greatest_known
        self._next_id = 0
        self._block_end = -1

    def take(self) -> int:
        """Returns a producer id that no producer has.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, if a new block cannot be noted.

        Durability: the block that it is from is on disk.
        """
        if self._next_id > self._block_end:
            self._take_block()
        producer_id = self._next_id
        self._next_id += 1
        return producer_id

    def _take_block(self) -> None:
        try:
            start = max(self._next_id, self._first_free_id())
            end = start + BLOCK_SIZE - 1
            assert end <= MAX_PRODUCER_ID, "all producer ids are taken"
            self._storage.write_file(self._path, _block(self._node_id, start, end), sync=True)
        except OSError as error:
            log.error("Cannot take a block of producer ids", path=self._path, error=str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no block of producer ids can be taken") from error
        self._next_id, self._block_end = start, end

    def _first_free_id(self) -> int:
        """Returns one past the last block on disk; without a block that can be read, one past the ids that the logs remember.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, if a newer version of wirekafka has written the block.
        """
        try:
            block = json.loads(self._storage.read_file(self._path))
            version = int(block["version"])
            first_free = int(block["block_end"]) + 1
        except FileNotFoundError:
            return self._greatest_known() + 1
        except (ValueError, KeyError, TypeError) as error:
            log.warning("The block of producer ids is damaged, begins after those in the logs", path=self._path, error=str(error))
            return self._greatest_known() + 1
        if version > VERSION:
            message = (
                f"{self._path} has format {version}, written by a newer version of wirekafka; this version reads format {VERSION}"
            )
            log.error("No producer id can be given", path=self._path, error=message)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        return first_free


def write_block(storage: Storage, path: str, *, node_id: int, next_id: int) -> None:
    """Notes that all producer ids below `next_id` are taken.

    Durability: on disk when it returns.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR, if the file cannot be written.
    """
    try:
        storage.write_file(path, _block(node_id, max(0, next_id - BLOCK_SIZE), next_id - 1), sync=True)
    except OSError as error:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} cannot be written: {error}") from error


def _block(node_id: int, start: int, end: int) -> bytes:
    block = {"version": VERSION, "broker": node_id, "block_start": str(start), "block_end": str(end)}
    return json.dumps(block).encode()
