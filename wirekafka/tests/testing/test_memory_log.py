"""The log in memory behaves as the real one, with one record in each append."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.validation import Origin
from wirekafka.testing.memory_log import MemoryLog
from wirekafka.tests.log.logs import NOW_MS, World, batch

MakeLog = Callable[[Path], Any]

every_log = pytest.mark.parametrize("make", [lambda path: World().open_log(path), lambda _: MemoryLog()], ids=["real", "memory"])


def append(log: Any, value: bytes, leader_epoch: int = 0) -> Any:
    return log.append(batch(value), leader_epoch=leader_epoch, now_ms=NOW_MS, origin=Origin.CLIENT)


def size_of(
    log: Any, offset: int, *, max_bytes: int = 1 << 20, end_offset: int | None = None, min_one_batch: bool = False
) -> int:
    end_offset = log.reader.log_end_offset if end_offset is None else end_offset
    return len(log.reader.read(offset, max_bytes=max_bytes, end_offset=end_offset, min_one_batch=min_one_batch))


@every_log
def test_log_append_gives_one_offset_after_the_other(tmp_path: Path, make: MakeLog) -> None:
    log = make(tmp_path)
    answers = [append(log, b"a") for _ in range(3)]
    assert [(each.base_offset, each.last_offset, each.is_duplicate) for each in answers] == [(n, n, False) for n in range(3)]
    assert (log.reader.log_start_offset, log.reader.high_watermark, log.reader.log_end_offset) == (0, 0, 3)


@every_log
def test_log_read_gives_whole_batches_up_to_its_limits(tmp_path: Path, make: MakeLog) -> None:
    log = make(tmp_path)
    for _ in range(3):
        append(log, b"abc")
    one = len(batch(b"abc"))
    assert size_of(log, 1) == 2 * one
    assert size_of(log, 0, end_offset=2) == 2 * one
    assert size_of(log, 3) == 0
    assert size_of(log, 0, max_bytes=one - 1, min_one_batch=True) == one
    assert log.reader.size_between(1, 3) == 2 * one


@every_log
def test_log_read_before_the_start_or_after_the_end_is_out_of_range(tmp_path: Path, make: MakeLog) -> None:
    log = make(tmp_path)
    for _ in range(3):
        append(log, b"a")
    log.reader.advance_high_watermark(3)
    log.retention.delete_records(2)
    assert log.reader.log_start_offset == 2
    for offset in (1, 4):
        with pytest.raises(KafkaError) as caught:
            size_of(log, offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@every_log
def test_log_high_watermark_is_the_last_stable_offset_without_transactions(tmp_path: Path, make: MakeLog) -> None:
    log = make(tmp_path)
    for _ in range(3):
        append(log, b"a")
    log.reader.advance_high_watermark(2)
    assert (log.reader.high_watermark, log.reader.last_stable_offset, log.reader.log_end_offset) == (2, 2, 3)


@every_log
def test_log_knows_where_each_epoch_ends(tmp_path: Path, make: MakeLog) -> None:
    log = make(tmp_path)
    for epoch in (0, 0, 2):
        append(log, b"a", epoch)
    assert [log.reader.end_offset_for_epoch(epoch) for epoch in (0, 1, 2, 3)] == [(0, 2), (0, 2), (2, 3), None]
