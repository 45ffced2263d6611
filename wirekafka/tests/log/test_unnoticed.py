"""Steps of the log whose omission no other test would notice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from wirekafka.clock import Clock
from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.log.checkpoint import CLEAN_SHUTDOWN
from wirekafka.log.manager import LogManager
from wirekafka.testing.remembering_storage import Fate, RememberingStorage
from wirekafka.tests.log.compaction.test_compaction import compact, put
from wirekafka.tests.log.logs import NOW_MS, World, append, batch, config_with, end_transaction
from wirekafka.tests.log.test_manager import NAME, TOPIC_ID, Setting, run
from wirekafka.wire.batch import BatchHeader

COMPACT = config_with(cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000)


def test_mark_of_a_clean_shutdown_does_not_come_back_with_lost_power(tmp_path: Path) -> None:
    storage = RememberingStorage(tmp_path / "data")

    async def main() -> None:
        config = BrokerConfig({"log.dirs": str(tmp_path / "data")})
        logs = await LogManager.open(config, Clock(), storage=storage)
        log = logs.create(NAME, TOPIC_ID, LogConfig.of(config, {}))
        append(log, b"a")
        await logs.close()
        assert (tmp_path / "data" / CLEAN_SHUTDOWN).exists()

        again = await LogManager.open(config, Clock(), storage=storage)
        image = storage.lose_power(len(storage.operations), contents=Fate.LOST, names=Fate.LOST)
        image.put(tmp_path / "disk")
        await again.close()

    trio.run(main)
    assert CLEAN_SHUTDOWN not in os.listdir(tmp_path / "disk")


def test_compaction_of_a_log_that_was_deleted_says_nothing_of_the_one_that_has_its_name_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        setting = Setting(tmp_path)
        logs = await setting.open()
        log = setting.create(logs, cleanup_policy="compact")
        for number in range(4):
            put(log, ("k", f"{number}"))
        log.roll()
        chosen = logs._cleaner._choose()
        assert chosen is not None

        def work(*arguments: Any) -> int:
            def replace() -> None:
                logs.delete(NAME)
                setting.create(logs, cleanup_policy="compact")

            trio.from_thread.run_sync(replace)
            return 4

        monkeypatch.setattr(logs._cleaner, "_work", work)
        assert not await logs._cleaner._clean(*chosen)

        assert logs.catalog.cleaner_offsets == {}
        await logs.close()

    run(main)


def test_compaction_drops_the_emptied_marker_of_a_producers_older_epoch(tmp_path: Path) -> None:
    """The last marker of a producer without records stays as an empty batch, because its epoch fences older producers."""
    log = World().open_log(tmp_path, COMPACT)
    for epoch in (0, 1):
        end_transaction(log, epoch=epoch)
    append(log, batch(b"x"))
    log.roll()
    append(log, batch(b"active"))

    for passed_ms in (0, 2000, 4000):
        compact(log, now_ms=NOW_MS + passed_ms)

    headers = [BatchHeader(data) for data in log.reader.batches()]
    assert [(header.producer_epoch, header.record_count) for header in headers if header.is_control] == [(1, 0)]
