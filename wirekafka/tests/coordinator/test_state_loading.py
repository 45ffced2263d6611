"""The reader of the records for a load, beside the cleaner."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.coordinator.state_loading import StateReader
from wirekafka.tests.log.compaction.test_compaction import COMPACT, compact, put
from wirekafka.tests.log.logs import World


@pytest.mark.parametrize("pauses", range(9))
def test_load_goes_on_after_segments_were_compacted_in_a_pause(tmp_path: Path, pauses: int) -> None:
    world = World()
    log = world.open_log(tmp_path, COMPACT)
    for number in range(6):
        put(log, (f"key {number % 3}", str(number)), ("always", str(number)))
        if number % 2:
            log.roll()
    reader = StateReader(is_keyed=True)
    reading = reader.read(log.reader, 1)
    for _ in range(pauses):
        next(reading)

    compact(log)
    world.pass_delays()
    assert all(True for _ in reading)

    latest = {entry.key: entry.value for entry in reader.entries()}
    assert latest == {b"key 0": b"3", b"key 1": b"4", b"key 2": b"5", b"always": b"5"}
    assert log.reader.offline_reason is None
