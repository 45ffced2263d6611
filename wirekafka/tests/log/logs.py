"""Logs without a broker: a directory, a clock that the test sets, and batches to append."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.context import AppendInfo, HasPartition, LogContext
from wirekafka.log.log import Log
from wirekafka.log.producer_state import Ending
from wirekafka.log.recovery import Loader
from wirekafka.log.segment import Segment
from wirekafka.log.storage import FileRegion, Folder, HandlePool, Storage
from wirekafka.names import TopicPartition
from wirekafka.wire.batch import Record, build_batch, iterate_records
from wirekafka.wire.control import EndMarker

NOW_MS = 1_700_000_000_000
NAME = TopicPartition("topic", 0)
DEFAULTS = LogConfig.of(BrokerConfig(), {})


def config_with(**changes: Any) -> LogConfig:
    """Kafka's defaults, with changes for the tests."""
    return replace(DEFAULTS, **changes)


@dataclass
class World:
    """The surroundings of a log.

    Attributes:
        now_ms: the time; a test sets it.
        later: delayed calls, with their delays; `pass_delays` calls them.
        flushes: the logs that asked for a flush.
        moved_starts: when checkpoints of the log start offset were requested.
    """

    storage: Storage = field(default_factory=Storage)
    pool: HandlePool = field(default_factory=lambda: HandlePool(100))
    now_ms: int = NOW_MS
    later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    flushes: list[HasPartition] = field(default_factory=list)
    moved_starts: list[int] = field(default_factory=list)

    def services(self) -> LogContext:
        return LogContext(
            pool=self.pool,
            now_ms=lambda: self.now_ms,
            call_later=lambda delay_ms, callback: self.later.append((delay_ms, callback)),
            random_below=lambda bound: bound // 2,
            request_flush=self.flushes.append,
            note_start_moved=lambda: self.moved_starts.append(self.now_ms),
        )

    def pass_delays(self) -> None:
        later, self.later = self.later, []
        for _, callback in later:
            callback()

    def open_log(
        self,
        path: Path,
        config: LogConfig = DEFAULTS,
        *,
        is_clean: bool = False,
        is_on_disk: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int | None = None,
        has_lost_power: bool = False,
        truncates_damage: bool = False,
    ) -> Log:
        self.storage.make_folder(str(path))
        folder = Folder(str(path), self.storage)
        loader = Loader(
            folder,
            self.pool,
            str(NAME),
            config.index_interval_bytes,
            self.now_ms,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            is_clean=is_clean,
            is_on_disk=is_on_disk,
            has_lost_power=has_lost_power,
            truncates_damage=truncates_damage,
        )
        return Log(NAME, folder, config, self.services(), loader.load())


def close(log: Log) -> None:
    """Closes the log as a broker with a clean shutdown does."""
    log.end_appends()
    flush = log.write_for_restart()
    flush.run()
    log.flusher.complete(flush)
    log.reader.close()


def batch(*values: bytes | None, timestamp: int = NOW_MS, timestamps: Sequence[int] | None = None, **fields: Any) -> memoryview:
    """Builds a producer's batch: one record of each value, key `k`."""
    times = timestamps if timestamps is not None else [timestamp] * len(values)
    records = [Record(key=b"k", value=value, timestamp=time) for value, time in zip(values, times, strict=True)]
    return memoryview(build_batch(records, **fields))


def idempotent(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, timestamp: int = NOW_MS) -> memoryview:
    """Builds a batch of an idempotent producer."""
    values = [b"%d" % (sequence + number) for number in range(count)]
    return batch(*values, timestamp=timestamp, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def transactional(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, timestamp: int = NOW_MS) -> memoryview:
    """Builds a batch of a transaction."""
    values = [b"%d" % (sequence + number) for number in range(count)]
    return batch(
        *values,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def end_transaction(
    log: Log,
    producer_id: int = 7,
    epoch: int = 0,
    *,
    is_commit: bool = True,
    coordinator_epoch: int = 0,
    transaction_version: int = 1,
    now_ms: int = NOW_MS,
) -> AppendInfo:
    """Writes a marker and commits it."""
    ending = Ending(EndMarker(is_commit, coordinator_epoch), transaction_version)
    info = log.append_marker(producer_id, epoch, ending, leader_epoch=0, now_ms=now_ms)
    log.reader.advance_high_watermark(log.reader.log_end_offset)
    return info


def append(log: Log, records: memoryview | bytes, *, leader_epoch: int = 0, now_ms: int = NOW_MS) -> AppendInfo:
    """Appends and commits."""
    data = records if isinstance(records, memoryview) else batch(records)
    info = log.append(data, leader_epoch=leader_epoch, now_ms=now_ms)
    log.reader.advance_high_watermark(log.reader.log_end_offset)
    return info


def fill(log: Log, count: int, *, size: int = 100, timestamp: int = NOW_MS) -> None:
    """Appends this many batches of one record each; timestamps ascend by one."""
    for number in range(count):
        append(log, batch(b"%d " % number + bytes(size), timestamp=timestamp + number))


def read(log: Log, offset: int, max_bytes: int = 1 << 20, *, end_offset: int | None = None, min_one_batch: bool = True) -> bytes:
    """Returns the bytes that a fetch from `offset` gets."""
    end = log.reader.log_end_offset if end_offset is None else end_offset
    found = log.reader.read(offset, max_bytes=max_bytes, end_offset=end, min_one_batch=min_one_batch)
    return found.read() if isinstance(found, FileRegion) else found


def records_of(data: bytes) -> list[Record]:
    """Returns the records of the whole batches in `data`."""
    records: list[Record] = []
    position = 0
    while len(data) - position >= 61:
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if position + size > len(data):
            break
        records += iterate_records(memoryview(data)[position : position + size])
        position += size
    return records


def all_records(log: Log) -> list[Record]:
    """Returns every record from the log start offset on, as a consumer with small fetches gets them."""
    records: list[Record] = []
    offset = log.reader.log_start_offset
    while offset < log.reader.log_end_offset:
        found = [record for record in records_of(read(log, offset, 300)) if record.offset >= offset]
        assert found, f"nothing to read at {offset} of {log}"
        records += found
        offset = found[-1].offset + 1
    return records


def check_indexes(log: Log) -> None:
    """Raises unless every index entry leads to a batch, as Kafka's DumpLogSegments verifies."""
    for segment in log.reader.segments:
        places = {place.position: place for place in segment.places()}
        by_last_offset = {place.last_offset: place for place in places.values()}
        entries = list(_entries(segment, "offset_index"))
        assert entries == sorted(set(entries))
        for relative_offset, position in entries:
            assert places[position].last_offset == segment.base_offset + relative_offset
        times = list(_entries(segment, "time_index"))
        assert times == sorted(set(times))
        for timestamp, relative_offset in times:
            assert by_last_offset[segment.base_offset + relative_offset].max_timestamp == timestamp
        is_sealed = segment is not log.reader.segments.active
        if is_sealed and segment.size:
            assert times[-1][0] == max(place.max_timestamp for place in places.values())


def _entries(segment: Segment, name: str) -> list[tuple[int, int]]:
    index = getattr(segment, name)
    if index.keys is not None:
        return list(zip(index.keys, index.values, strict=True))
    data = segment.folder.read_file(index.name) or b""
    return list(index.entry.iter_unpack(data))


def marker_refusal(log: Log, epoch: int, *, producer_id: int = 7, **fields: Any) -> ErrorCode:
    """Returns why the end of a transaction is refused; raises if the log has changed."""
    end_offset = log.reader.log_end_offset
    with pytest.raises(KafkaError) as caught:
        end_transaction(log, producer_id, epoch, **fields)
    assert log.reader.log_end_offset == end_offset
    return caught.value.code
