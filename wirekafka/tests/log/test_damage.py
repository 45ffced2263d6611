"""Damaged logs: recovery truncates damage that a crash explains; other damage takes the partition offline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.log import Log
from wirekafka.log.manager import LogManager
from wirekafka.log.opening import Opened
from wirekafka.log.positions import BadBatchError
from wirekafka.names import TopicPartition
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    fill,
    read,
    records_of,
)

BAD, GOOD = TopicPartition("bad", 0), TopicPartition("good", 0)
SMALL_SEGMENTS = config_with(segment_bytes=2000, index_interval_bytes=200)


def damage(path: Path, position: int, data: bytes = b"\xff\xfe\xfd") -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def log_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def positions(log: Log, number: int = 0) -> list[int]:
    return [place.position for place in log.reader.segments.items[number].places()]


# One log


def test_batch_damaged_before_sound_ones_is_refused_with_its_place(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    at = positions(log)[4]
    log.reader.close()
    [file] = log_files(tmp_path)
    damage(file, at + 80)
    before = file.read_bytes()

    with pytest.raises(
        BadBatchError, match=rf"{file} is damaged at byte {at}, .* sound batches follow it.*truncate\.corrupt=true"
    ):
        World().open_log(tmp_path)

    assert file.read_bytes() == before


def test_batch_whose_length_is_damaged_is_refused_for_those_behind_it(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    at = positions(log)[4]
    log.reader.close()
    damage(log_files(tmp_path)[0], at + 8)

    with pytest.raises(BadBatchError, match=f"byte {at}"):
        World().open_log(tmp_path)


def test_damage_with_sound_batches_in_the_next_segment_only_is_refused(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 30)
    at = positions(log)[-1]
    log.reader.close()
    damage(log_files(tmp_path)[0], at + 80)

    with pytest.raises(BadBatchError):
        World().open_log(tmp_path, SMALL_SEGMENTS)


def test_damage_is_cut_if_the_operator_says_so(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 30)
    at = positions(log)[4]
    log.reader.close()
    damage(log_files(tmp_path)[0], at + 80)

    log = World().open_log(tmp_path, SMALL_SEGMENTS, truncates_damage=True)

    assert [record.offset for record in all_records(log)] == [0, 1, 2, 3]
    check_indexes(log)
    append(log, b"goes on")


def test_damage_behind_which_nothing_is_sound_is_cut_as_a_torn_write(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    at = positions(log)[-1]
    log.reader.close()
    damage(log_files(tmp_path)[0], at + 80)

    assert World().open_log(tmp_path).reader.log_end_offset == 9


def test_writes_lost_in_the_midst_are_cut_after_the_machine_has_ended(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    at = positions(log)[4]
    log.reader.close()
    damage(log_files(tmp_path)[0], at, bytes(100))

    assert World().open_log(tmp_path, has_lost_power=True).reader.log_end_offset == 4


@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_of_what_was_synced_is_not_the_work_of_the_machines_end(tmp_path: Path, is_clean: bool) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    at = positions(log)[4]
    end_offset = log.reader.log_end_offset
    close(log)
    file = log_files(tmp_path)[0]
    damage(file, at + 8)
    before = file.read_bytes()

    with pytest.raises(BadBatchError, match=f"byte {at}"):
        World().open_log(tmp_path, recovery_point=end_offset, is_clean=is_clean, has_lost_power=True)

    assert file.read_bytes() == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_before_the_recovery_point_is_found_when_an_index_is_made_anew(tmp_path: Path, is_clean: bool) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 30)
    at = positions(log)[4]
    end_offset = log.reader.log_end_offset
    close(log)
    first = log_files(tmp_path)[0]
    damage(first, at + 80)
    first.with_suffix(".index").unlink()

    with pytest.raises(BadBatchError, match=f"{first} is damaged at byte {at}"):
        World().open_log(tmp_path, SMALL_SEGMENTS, recovery_point=end_offset, is_clean=is_clean, has_lost_power=True)
    log = World().open_log(tmp_path, SMALL_SEGMENTS, recovery_point=end_offset, is_clean=is_clean, truncates_damage=True)
    assert (log.reader.log_end_offset, len(log_files(tmp_path))) == (4, 1)
    append(log, b"goes on")
    check_indexes(log)


def test_damaged_framing_that_a_read_meets_takes_the_log_offline(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 30)
    at = positions(log)[4]
    damage(log_files(tmp_path)[0], at + 8, b"\xff\xff\xff\xff")

    with pytest.raises(KafkaError) as caught:
        read(log, 4)

    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.reader.offline_reason is not None
    assert str(log_files(tmp_path)[0]) in log.reader.offline_reason
    for use in (
        lambda: append(log, b"more"),
        lambda: read(log, 20),
        lambda: log.reader.offset_for_timestamp(NOW_MS),
        lambda: log.retention.delete_records(3),
        lambda: log.retention.delete_old_segments(NOW_MS),
        log.flusher.flush,
    ):
        with pytest.raises(KafkaError) as caught:
            use()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


# Indexes


@pytest.mark.parametrize(
    ("suffix", "harm"),
    [(suffix, harm) for suffix in (".index", ".timeindex") for harm in ("missing", "cut", "garbage", "beyond")]
    + [(".timeindex", "empty")],
)
def test_indexes_before_the_recovery_point_are_rebuilt_after_a_crash(tmp_path: Path, suffix: str, harm: str) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 60)
    log.flusher.flush()
    point = log.flusher.recovery_point
    expected = [file.read_bytes() for file in sorted(tmp_path.glob(f"*{suffix}"))][0]
    log.reader.close()
    file = log_files(tmp_path)[0].with_suffix(suffix)
    match harm:
        case "missing":
            file.unlink()
        case "cut":
            file.write_bytes(expected[:-3])
        case "empty":
            file.write_bytes(b"")
        case "garbage":
            file.write_bytes(b"\xff" * len(expected))
        case "beyond":
            file.write_bytes(expected[:-4] + b"\x7f\xff\xff\xff")

    log = World().open_log(tmp_path, SMALL_SEGMENTS, recovery_point=point)

    assert file.read_bytes() == expected
    check_indexes(log)
    assert len(all_records(log)) == 60


def test_index_that_misleads_a_read_is_made_anew(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 60)
    close(log)
    file = log_files(tmp_path)[0].with_suffix(".index")
    good = file.read_bytes()
    entries = [good[at : at + 8] for at in range(0, len(good), 8)]
    # Each entry leads to the position of the next entry.
    file.write_bytes(b"".join(first[:4] + second[4:] for first, second in zip(entries, [*entries[1:], entries[-1]], strict=True)))

    log = World().open_log(tmp_path, SMALL_SEGMENTS, is_clean=True, recovery_point=60)
    expected = [(offset, offset) for offset in range(60)]
    found = [(offset, log.reader.segments.find(offset)) for offset in range(60)]
    assert [(offset, place[1].base_offset) for offset, place in found if place is not None] == expected
    assert log.reader.offline_reason is None


def test_index_that_was_cut_while_in_use_is_made_anew(tmp_path: Path) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 60)
    file = log_files(tmp_path)[0].with_suffix(".index")
    file.write_bytes(b"")

    assert log.reader.segments.find(7) is not None
    assert log.reader.segments.items[0].offset_index.size_bytes == file.stat().st_size
    log_files(tmp_path)[1].with_suffix(".index").unlink()
    assert log.reader.segments.find(log.reader.segments.items[1].base_offset + 7) is not None
    assert log.reader.offline_reason is None


@pytest.mark.parametrize("harm", ["garbage", "empty", "future", "other batch", "middle"])
@pytest.mark.parametrize("number", [0, -1])
def test_damaged_time_index_is_made_anew_after_a_clean_stop(tmp_path: Path, harm: str, number: int) -> None:
    log = World().open_log(tmp_path, SMALL_SEGMENTS)
    fill(log, 66)
    close(log)
    file = log_files(tmp_path)[number].with_suffix(".timeindex")
    good = file.read_bytes()
    entry = Struct(">qi")
    entries = list(entry.iter_unpack(good))
    assert len(entries) > 2
    timestamp, relative_offset = entries[-1]
    match harm:
        case "garbage":
            file.write_bytes(b"\xff" * len(good))
        case "empty":
            file.write_bytes(b"")
        case "future":
            file.write_bytes(good[:-12] + entry.pack(timestamp + 1_000_000, relative_offset))
        case "other batch":
            file.write_bytes(good[:-12] + entry.pack(timestamp, relative_offset - 1))
        case "middle":
            file.write_bytes(good[:12] + entry.pack(entries[1][0], relative_offset) + good[24:])

    log = World().open_log(tmp_path, SMALL_SEGMENTS, is_clean=True, recovery_point=66)

    assert [log.reader.offset_for_timestamp(NOW_MS + offset) for offset in range(66)] == [
        (offset, NOW_MS + offset, 0) for offset in range(66)
    ]
    assert log.reader.offset_for_timestamp(None) == (66 - 1, NOW_MS + 66 - 1, 0)
    assert log.reader.segments.items[number].max_timestamp == timestamp
    check_indexes(log)


# All logs of a broker


class Setting:
    def __init__(self, path: Path, **settings: str) -> None:
        self.path = path
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig({"log.dirs": str(path)} | given)

    async def open(self) -> LogManager:
        return await LogManager.open(self.config, Clock(wall=lambda: NOW_MS / 1000))


def run(main: Callable[[], Awaitable[Any]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def kill(logs: LogManager) -> None:
    """Releases the directories, as the end of the process does."""
    for directory in logs.directories:
        announced = Path(f"{directory.path}/.lock").read_bytes()
        directory.unlock()
        Path(f"{directory.path}/.lock").write_bytes(announced)


async def killed_with_damage(setting: Setting) -> Path:
    logs = await setting.open()
    for name in (BAD, GOOD):
        fill(logs.create(name, bytes(range(16)), LogConfig.of(setting.config, {})), 10)
    log = logs.get(BAD)
    assert log is not None
    at = positions(log)[4]
    kill(logs)
    file = setting.path / "bad-0" / log.reader.segments.active.log_name
    shutil.copy(file, setting.path.parent / "copy")
    damage(file, at + 80)
    return file


def test_damaged_partition_is_offline_and_the_others_run(tmp_path: Path) -> None:
    async def main() -> None:
        setting = Setting(tmp_path / "data")
        file = await killed_with_damage(setting)

        logs = await setting.open()

        bad, good = logs.get(BAD), logs.get(GOOD)
        assert bad is not None and good is not None
        assert bad.reader.offline_reason is not None and str(file) in bad.reader.offline_reason
        assert bad.reader.topic_id == bytes(range(16))
        assert len(all_records(good)) == 10
        assert list(logs) == [good]
        assert logs.directories[0].offline_reason is None
        await logs.close()

        # The partition stays offline until the file is restored, even if the directory was closed meanwhile.
        logs = await setting.open()
        assert [log.topic_partition for log in logs] == [GOOD]
        await logs.close()
        shutil.copy(tmp_path / "copy", file)
        logs = await setting.open()
        assert [len(all_records(log)) for log in logs] == [10, 10]
        await logs.close()

    run(main)


def test_damaged_partition_is_cut_where_the_setting_asks_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        await killed_with_damage(Setting(tmp_path / "data"))
        logs = await Setting(tmp_path / "data", wirekafka_log_recovery_truncate_corrupt="true").open()
        assert {log.topic_partition: log.reader.log_end_offset for log in logs} == {BAD: 4, GOOD: 10}
        await logs.close()

    run(main)


def test_damage_is_cut_if_the_machine_was_started_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        setting = Setting(tmp_path / "data")
        await killed_with_damage(setting)
        monkeypatch.setattr("wirekafka.log.directory.read_boot_id", lambda: "another run")
        logs = await setting.open()
        assert {log.topic_partition: log.reader.log_end_offset for log in logs} == {BAD: 4, GOOD: 10}
        await logs.close()

    run(main)


def test_recovery_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        setting = Setting(tmp_path / "data")
        logs = await setting.open()
        append(logs.create(GOOD, bytes(range(16)), LogConfig.of(setting.config, {})), batch(b"x" * 1000))
        kill(logs)
        original = Opened.load

        def slow(self: Opened) -> None:
            trio.from_thread.run(trio.sleep, 6)
            original(self)

        monkeypatch.setattr(Opened, "load", slow)
        logs = await setting.open()
        await logs.close()

    run(main)
    assert "Recovering the logs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (8, b"\x7f\xff\xff\xff"),
        (8, b"\x00\x00\x00\x01"),
        (8, b"\xff\xff\xff\xff"),
        (16, b"\x09"),
        (23, b"\xff"),
    ],
)
def test_batch_that_is_damaged_where_a_reader_goes_on_takes_the_log_offline(tmp_path: Path, at: int, data: bytes) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    assert read(log, 3, 10)
    damage(log_files(tmp_path)[0], positions(log)[4] + at, data)

    with pytest.raises(KafkaError) as caught:
        read(log, 4, 10)

    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.reader.offline_reason is not None


def test_batch_of_other_offsets_where_a_reader_goes_on_is_not_given(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    assert read(log, 3, 10)
    damage(log_files(tmp_path)[0], positions(log)[4], bytes(8))

    assert records_of(read(log, 4, 10))[0].offset == 5


def test_file_that_ends_where_a_reader_goes_on_takes_the_log_offline(tmp_path: Path) -> None:
    log = World().open_log(tmp_path)
    fill(log, 10)
    assert read(log, 8, 10)
    os.truncate(log_files(tmp_path)[0], positions(log)[9] + 5)

    with pytest.raises(KafkaError):
        read(log, 9, 10)
    assert log.reader.offline_reason is not None
