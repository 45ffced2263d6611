"""What the files of a segment are called.

Source: org.apache.kafka.storage.internals.log.LogFileUtils.
"""

from __future__ import annotations

from wirekafka.log.transaction_index import SUFFIX as TRANSACTION_INDEX_SUFFIX

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
"""A compacted segment that is not complete."""
SWAP_SUFFIX = ".swap"
"""A compacted segment that is complete and on the disk, in the place of those it was made from."""
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's file: its base offset in 20 digits, so that names sort as offsets do."""
    return f"{base_offset:020d}{suffix}"
