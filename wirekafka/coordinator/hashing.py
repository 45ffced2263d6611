"""The partition of an internal topic for a key."""

from __future__ import annotations

from functools import lru_cache

from wirekafka.hashing import java_string_hash, spread


@lru_cache(maxsize=1024)
def partition_for(key: str, partition_count: int) -> int:
    """Returns the partition that holds the state of a key.

    Source: GroupCoordinatorService.partitionFor, TransactionStateManager.partitionFor.
    """
    return spread(java_string_hash(key), partition_count)
