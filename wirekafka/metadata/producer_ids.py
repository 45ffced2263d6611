"""Producer ids: each is given to one producer only, also across restarts and crashes.

How it works: ids are taken from a block of 1,000. A block is written to disk before its first id is given. A broker takes a new
block when it starts, so a crash loses only ids that no producer has. The content of the file is the one that Apache Kafka kept in
ZooKeeper's /latest_producer_id_block.

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
"""The version of the file's content; Apache Kafka never wrote another version to ZooKeeper."""
BLOCK_SIZE = 1000
"""ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""
MAX_PRODUCER_ID = 0x7FFF_FFFF_FFFF_FFFF


class ProducerIds:
    """Gives producer ids.

    Args:
        path: the file that holds the last block.
        storage: the storage of the file.
        node_id: the id of the broker that takes the blocks; it is stored in the file.
        greatest_known: returns the greatest producer id in the logs, -1 if none. It is called only if the file does not exist or
            is damaged, for example because the logs come from another broker.
    """

    def __init__(self, path: str, storage: Storage, *, node_id: int, greatest_known: Callable[[], int]) -> None:
        self._path = path
        self._storage = storage
        self._node_id = node_id
        self._greatest_known = greatest_known
        self._next_id = 0
        self._block_end = -1

    def take(self) -> int:
        """Returns a producer id that no other producer has.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if a new block cannot be written.

        Durability: the block of the id is on disk.
        """
        if self._next_id > self._block_end:
            self._take_block()
        producer_id = self._next_id
        self._next_id += 1
        return producer_id

    def _take_block(self) -> None:
        try:
            start = max(self._next_id, self.first_free_id())
            end = start + BLOCK_SIZE - 1
            assert end <= MAX_PRODUCER_ID, "all producer ids are taken"
            self._storage.write_file(self._path, _block(self._node_id, start, end), sync=True)
        except OSError as error:
            log.error("Cannot write a block of producer ids; check the disk", path=self._path, error=str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no block of producer ids can be taken") from error
        self._next_id, self._block_end = start, end

    def first_free_id(self) -> int:
        """Returns one past the last block on disk; if no block can be read, one past the greatest producer id in the logs.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR if a newer version of wirekafka wrote the block.
        """
        try:
            block = json.loads(self._storage.read_file(self._path))
            version = int(block["version"])
            first_free = int(block["block_end"]) + 1
        except FileNotFoundError:
            return self._greatest_known() + 1
        except (ValueError, KeyError, TypeError) as error:
            log.warning(
                "The block of producer ids is damaged; continuing after the ids in the logs", path=self._path, error=str(error)
            )
            return self._greatest_known() + 1
        if version > VERSION:
            message = (
                f"{self._path} has format {version}, written by a newer version of wirekafka; this version reads format {VERSION}"
            )
            log.error("Cannot give producer ids", path=self._path, error=message)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, message)
        return first_free


def write_block(storage: Storage, path: str, *, node_id: int, next_id: int) -> None:
    """Records on disk that all producer ids below `next_id` are taken.

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
