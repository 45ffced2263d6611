"""Every reader of the log can read what the log has accepted: batches of each format and codec are changed at random, with right
checksums, and the accepted ones are compacted, expired, searched by time, converted, recovered, dumped and verified.

`WIREKAFKA_FUZZ_EXAMPLES=20000 pytest wirekafka/tests/log/test_fuzzed_batches.py` tries more examples than a usual run.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wirekafka.errors import KafkaError
from wirekafka.inspection.dump import Selection, dump_file, files_to_dump
from wirekafka.inspection.files import DamageError
from wirekafka.inspection.verification import verify
from wirekafka.log.log import Log
from wirekafka.log.validation import validate_batch, without_bounds
from wirekafka.tests.log.compaction.test_compaction import compact
from wirekafka.tests.log.logs import NOW_MS, World, close, config_with
from wirekafka.wire.batch import HEADER_SIZE, Record, build_batch, iterate_records
from wirekafka.wire.compression import Compression, compress
from wirekafka.wire.legacy import down_convert

EXAMPLES = int(os.environ.get("WIREKAFKA_FUZZ_EXAMPLES", "150"))

EXTREMES = [-(1 << 63), -1, 0, 1, NOW_MS, (1 << 63) - 1]
timestamps = st.one_of(st.just(NOW_MS), st.integers(NOW_MS - 100_000, NOW_MS), st.sampled_from(EXTREMES))
texts = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c" * 70]), st.binary(max_size=20))
records = st.builds(
    Record,
    key=texts,
    value=texts,
    headers=st.lists(st.tuples(st.binary(max_size=5), texts), max_size=2).map(tuple),
    timestamp=timestamps,
)
many_records = st.one_of(
    st.lists(records, min_size=1, max_size=12),
    st.builds(lambda one, count: [one] * count, records, st.integers(2, 80)),
    st.builds(
        lambda count, size: [Record(b"k%d" % number, bytes(size), (), NOW_MS + number) for number in range(count)],
        st.integers(2, 90),
        st.integers(0, 40),
    ),
)
changes = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 255), st.sampled_from(["set", "insert", "delete"])), max_size=2
)
HEADER_FIELDS = {
    "attributes": (">h", 21, st.integers(-(1 << 15), (1 << 15) - 1) | st.sampled_from([8, 16, 32, 64, 0x80])),
    "last_offset_delta": (">i", 23, st.sampled_from([-1, 0, 1, (1 << 31) - 1]) | st.integers(0, 100)),
    "base_timestamp": (">q", 27, st.sampled_from(EXTREMES) | st.integers(-(1 << 63), (1 << 63) - 1)),
    "max_timestamp": (">q", 35, st.sampled_from(EXTREMES) | st.integers(-(1 << 63), (1 << 63) - 1)),
    "producer_id": (">q", 43, st.sampled_from([-5, -1, 0, 7, (1 << 63) - 1])),
    "producer_epoch": (">h", 51, st.sampled_from([-1, 0, 3, 32767])),
    "base_sequence": (">i", 53, st.sampled_from([-1, 0, 5, (1 << 31) - 1])),
    "record_count": (">i", 57, st.sampled_from([-1, 0, 1, (1 << 31) - 1]) | st.integers(0, 100)),
}
header_changes = st.lists(
    st.sampled_from(sorted(HEADER_FIELDS)).flatmap(lambda name: st.tuples(st.just(name), HEADER_FIELDS[name][2])), max_size=2
)


def changed(data: bytes, what: list[tuple[int, int, str]]) -> bytes:
    found = bytearray(data)
    for at, byte, how in what:
        if not found:
            break
        at %= len(found)
        if how == "set":
            found[at] = byte
        elif how == "insert":
            found.insert(at, byte)
        else:
            del found[at]
    return bytes(found)


@st.composite
def batches(draw: st.DrawFn) -> bytearray:
    """Builds a batch of format 2 with valid lengths and CRC."""
    codec = draw(st.sampled_from(Compression))
    plain = build_batch(draw(many_records))
    body = compress(codec, changed(bytes(plain[HEADER_SIZE:]), draw(changes)))
    batch = plain[:HEADER_SIZE] + (changed(body, draw(changes)) if draw(st.integers(0, 9)) == 0 else body)
    struct.pack_into(">h", batch, 21, codec)
    for name, value in draw(header_changes):
        layout, at, _ = HEADER_FIELDS[name]
        struct.pack_into(layout, batch, at, value)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


@st.composite
def message_sets(draw: st.DrawFn) -> bytearray:
    """Builds messages of format 0 or 1; the first has a valid length and CRC."""
    codec = draw(st.sampled_from([Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]))
    messages = down_convert(build_batch(draw(many_records), compression=codec), draw(st.integers(0, 1)), 0)
    size = 12 + struct.unpack_from(">i", messages, 8)[0]
    first = bytearray(messages[:16] + changed(messages[16:size], draw(changes)))
    struct.pack_into(">iI", first, 8, len(first) - 12, zlib.crc32(first[16:]))
    return first + messages[size:]


def offer(log: Log, batch: bytearray) -> bool:
    """Appends the batch as a Produce does, on the loop or in a worker; returns False if the log refuses it."""
    try:
        found = validate_batch(memoryview(bytearray(batch)), config=log.reader.config, now_ms=NOW_MS, effort=without_bounds())
        log.append(found, leader_epoch=0, now_ms=NOW_MS)
    except KafkaError:
        return False
    log.reader.advance_high_watermark(log.reader.log_end_offset)
    return True


def read_all(log: Log, path: Path) -> None:
    """Reads the log in each way; raises if a reader raises another error than the one for corrupt data."""
    for timestamp in (None, -5, 0, NOW_MS - 50_000, NOW_MS, NOW_MS + 1, (1 << 63) - 1):
        found = log.reader.offset_for_timestamp(timestamp)
        assert found is None or log.reader.log_start_offset <= found.offset < log.reader.log_end_offset
    offsets = []
    for data in log.reader.batches():
        for magic in (0, 1):
            with suppress(KafkaError):  # an append does not look at the bytes after a record's key
                down_convert(data, magic, 0)
        with suppress(KafkaError):
            offsets += [record.offset for record in iterate_records(data)]
    assert offsets == sorted(set(offsets)), "offsets ascend"
    for file in files_to_dump(str(path)):
        with suppress(DamageError):
            for _ in dump_file(file, Selection(has_records=True), lambda size: None):
                pass
    assert list(verify(str(path), advance=lambda size: None).damages()) == []


@given(st.lists(batches() | message_sets(), min_size=1, max_size=4), st.sampled_from(["delete", "compact"]), st.booleans())
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.data_too_large])
def test_whatever_a_log_accepts_can_be_read_by_everything(offered: list[bytearray], policy: str, has_append_time: bool) -> None:
    config = config_with(cleanup_policy=frozenset({policy}), delete_retention_ms=(1 << 63) - 1, index_interval_bytes=100)
    if has_append_time:
        config = replace(config, message_timestamp_type="LogAppendTime")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "topic-0")
        log = World().open_log(path, config)
        if not sum(offer(log, batch) for batch in offered):
            log.reader.close()
            return
        end_offset = log.reader.log_end_offset
        read_all(log, path)
        log.roll()
        dirty_offset = 0
        for most_keys in (3, 1000):
            dirty_offset = compact(log, dirty_offset=dirty_offset, most_keys=most_keys).clean_offset
        compact(log, now_ms=NOW_MS + 10, dirty_offset=dirty_offset)
        read_all(log, path)
        log.reader.close()

        log = World().open_log(path, replace(config, retention_ms=1000, cleanup_policy=frozenset({"delete"})))
        assert log.reader.log_end_offset == end_offset
        read_all(log, path)
        log.retention.delete_old_segments(NOW_MS + 5_000)
        close(log)
