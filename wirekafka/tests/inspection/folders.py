"""Directories of partitions for tests of inspection, and functions that damage them."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crc32c import crc32c

from wirekafka.inspection.dump import Row, Selection, dump_file
from wirekafka.inspection.files import DamageError
from wirekafka.inspection.verification import Verification, verify
from wirekafka.log.checkpoint import PARTITION_METADATA, RECOVERY_POINTS, write_offsets, write_partition_metadata
from wirekafka.log.segment_files import file_name
from wirekafka.names import TopicPartition
from wirekafka.tests.log.logs import NOW_MS, World, append, batch, close, config_with, idempotent
from wirekafka.wire.batch import BatchHeader, Record, build_batch
from wirekafka.wire.compression import Compression

PARTITION = TopicPartition("topic", 0)
TOPIC_ID = bytes(range(16))
BATCHES = 120
SEGMENTS = (0, 103)
"""The base offsets of the segments that `make_data` writes."""


def make_data(root: Path) -> Path:
    """Makes a closed data directory with one partition of two segments; returns the partition's directory.

    120 batches of one record, of every codec, every third one idempotent, one timestamp each.
    """
    folder = root / str(PARTITION)
    log = World().open_log(folder, config_with(segment_bytes=10_000, index_interval_bytes=1000))
    for number in range(BATCHES):
        if number % 3 == 0:
            append(log, idempotent(number // 3, timestamp=NOW_MS + number))
        else:
            value = b"value %d " % number + bytes(60)
            append(log, batch(value, timestamp=NOW_MS + number, compression=Compression(number % 5)))
    close(log)
    (folder / PARTITION_METADATA).write_bytes(write_partition_metadata(TOPIC_ID))
    (root / RECOVERY_POINTS).write_bytes(write_offsets({PARTITION: BATCHES}))
    return folder


def segment_file(folder: Path, base_offset: int, suffix: str) -> Path:
    """Returns one of a segment's files."""
    return folder / file_name(base_offset, suffix)


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Overwrites bytes of a file."""
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def headers_of(path: Path) -> list[tuple[int, BatchHeader]]:
    """Returns the positions and headers of a log's batches of format 2."""
    content = path.read_bytes()
    found = []
    position = 0
    while position < len(content):
        header = BatchHeader(content, position)
        found.append((position, header))
        position += header.size_bytes
    return found


def look(root: Path, *, reads_records: bool = False) -> tuple[Verification, list[DamageError]]:
    """Returns the findings of `wirekafka log verify`."""
    verification = verify(str(root), advance=lambda size: None, reads_records=reads_records)
    return verification, list(verification.damages())


def only_damage(root: Path, *, reads_records: bool = False) -> DamageError:
    """Returns the only finding."""
    _, damages = look(root, reads_records=reads_records)
    assert len(damages) == 1, [str(damage) for damage in damages]
    return damages[0]


def rows_of(path: Path, selection: Selection | None = None) -> list[Row]:
    """Returns the rows of `wirekafka log dump`."""
    return list(dump_file(str(path), selection or Selection(), lambda size: None))


def write_log(root: Path, *batches: bytes | bytearray, base_offset: int = 0, topic: str = "other") -> Path:
    """Makes a partition's directory with one segment of these batches and no index; returns the log file."""
    path = segment_file(root / f"{topic}-0", base_offset, ".log")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(bytes(batch) for batch in batches))
    return path


def batch_at(offset: int, count: int = 2, **fields: Any) -> bytearray:
    """Builds a batch of some records from this offset on."""
    records = [Record(b"k", b"v%d" % number, timestamp=NOW_MS) for number in range(count)]
    return build_batch(records, base_offset=offset, **fields)


def sealed_again(data: bytearray) -> bytearray:
    """Returns the batch with the CRC of its present bytes."""
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


@contextmanager
def held_by_a_broker(root: Path) -> Iterator[None]:
    """Holds the data directory's lock in another process, as a broker does."""
    source = (
        "import sys; from wirekafka.log.directory import DataDirectory; from wirekafka.log.storage import Storage;"
        f"DataDirectory({str(root)!r}, Storage()).lock('a test'); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()
