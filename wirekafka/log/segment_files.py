"""The names of a segment's files.

Source: org.apache.kafka.storage.internals.log.LogFileUtils.
"""

from __future__ import annotations

from wirekafka.log.transaction_index import SUFFIX as TRANSACTION_INDEX_SUFFIX

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""The suffix of a compacted segment that is incomplete."""
SWAP_SUFFIX = ".swap"
"""The suffix of a compacted segment that is complete and on the disk, and replaces the segments it was made from."""
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    """Returns the name of a segment's file: the base offset in 20 digits, so that names sort in offset order."""
    return f"{base_offset:020d}{suffix}"
