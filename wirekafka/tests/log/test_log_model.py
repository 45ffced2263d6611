"""A log compared with a list: after any operations in any order, the log has the records of the list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wirekafka.log.log import Log
from wirekafka.testing.faulty_storage import Crash, FaultyStorage
from wirekafka.tests.log.logs import (
    NOW_MS,
    World,
    all_records,
    append,
    batch,
    check_indexes,
    close,
    config_with,
    idempotent,
    read,
    records_of,
)

PRODUCER = 7


class LogMachine(RuleBasedStateMachine):
    """The model: the records as (offset, timestamp, value), and the base offset of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="wirekafka-log-"))
        self.storage = FaultyStorage()
        self.world = World(storage=self.storage)
        self.records: list[tuple[int, int, bytes]] = []
        self.batch_starts: list[int] = []
        self.start_offset = 0
        self.end_offset = 0
        self.sequences: list[tuple[int, int]] = []

    @initialize(
        segment_bytes=st.sampled_from([300, 700, 5000]),
        interval=st.sampled_from([0, 150, 4096]),
        index=st.sampled_from([64, 4096]),
    )
    def open_new(self, segment_bytes: int, interval: int, index: int) -> None:
        self.config = config_with(
            segment_bytes=segment_bytes, index_interval_bytes=interval, segment_index_bytes=index, retention_ms=500
        )
        self.log: Log = self.world.open_log(self.path, self.config)

    def teardown(self) -> None:
        self.log.reader.close()
        shutil.rmtree(self.path)

    def _note(self, base_offset: int, values: list[bytes], times: list[int]) -> None:
        self.batch_starts.append(base_offset)
        self.records += [(base_offset + n, time, value) for n, (value, time) in enumerate(zip(values, times, strict=True))]
        self.end_offset = base_offset + len(values)

    @rule(values=st.lists(st.binary(max_size=40), min_size=1, max_size=4), delta=st.integers(0, 300))
    def append_batch(self, values: list[bytes], delta: int) -> None:
        times = [self.world.now_ms + (delta * (n + 1)) % 97 for n in range(len(values))]
        info = append(self.log, batch(*values, timestamps=times), now_ms=self.world.now_ms)
        assert info.base_offset == self.end_offset
        self._note(info.base_offset, values, times)

    @rule(count=st.integers(1, 3))
    def append_idempotent(self, count: int) -> None:
        known = self.log.reader.producers.find(PRODUCER)
        sequence = known.last_sequence + 1 if known else 0
        now = self.world.now_ms
        info = append(self.log, idempotent(sequence, count, timestamp=now), now_ms=now)
        assert not info.is_duplicate
        self.sequences.append((sequence, info.base_offset))
        self._note(info.base_offset, [b"%d" % (sequence + n) for n in range(count)], [now] * count)
        again = append(self.log, idempotent(sequence, count, timestamp=now), now_ms=now)
        assert (again.is_duplicate, again.base_offset) == (True, info.base_offset)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        before = self.start_offset + int(share * (self.end_offset - self.start_offset))
        self.log.retention.delete_records(before)
        self.start_offset = max(self.start_offset, before)

    @rule(passed_ms=st.integers(1, 400))
    def retain(self, passed_ms: int) -> None:
        self.world.now_ms += passed_ms
        self.log.retention.delete_old_segments(self.world.now_ms)
        gone = [record for record in self.records if self.start_offset <= record[0] < self.log.reader.log_start_offset]
        assert all(time < self.world.now_ms - 500 for _, time, _ in gone)
        self.start_offset = self.log.reader.log_start_offset
        self.world.pass_delays()

    @precondition(lambda self: self.end_offset > self.start_offset)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start_offset + int(share * (self.end_offset - self.start_offset))
        self.log.truncate_to(offset)
        if offset < self.end_offset:
            starts = [start for start in self.batch_starts if start <= offset]
            # The log start offset stays, even if it is within the dropped batch.
            self._end_at(max(starts[-1], self.log.reader.segments.items[0].base_offset, self.start_offset))

    def _end_at(self, offset: int) -> None:
        self.end_offset = offset
        self.batch_starts = [start for start in self.batch_starts if start < offset]
        self.records = [record for record in self.records if record[0] < offset]

    @rule()
    def restart(self) -> None:
        close(self.log)
        self.log = self.world.open_log(self.path, self.config, is_clean=True, log_start_offset=self.start_offset)
        self.log.reader.high_watermark = self.end_offset

    @rule()
    def flush(self) -> None:
        self.log.flusher.flush()
        assert self.log.flusher.recovery_point == self.end_offset

    @rule(garbage=st.binary(max_size=80))
    def be_killed(self, garbage: bytes) -> None:
        """Kill -9 in the middle of an append that was not answered."""
        name = self.log.reader.segments.active.log_name
        point = self.log.flusher.recovery_point
        self.log.reader.close()
        with (self.path / name).open("ab") as file:
            file.write(garbage)
        self.log = self.world.open_log(self.path, self.config, recovery_point=point, log_start_offset=self.start_offset)

    @rule(calls=st.integers(1, 6), torn_bytes=st.integers(0, 100))
    def crash_while_appending(self, calls: int, torn_bytes: int) -> None:
        self.storage.crash_at = self.storage.calls + calls
        self.storage.torn_bytes = torn_bytes
        point = self.log.flusher.recovery_point
        try:
            while True:
                self.append_batch([b"c" * 20], 1)
                point = self.log.flusher.recovery_point
        except Crash:
            pass
        self.storage.crash_at = None
        self.log.reader.close()
        self.log = self.world.open_log(self.path, self.config, recovery_point=point, log_start_offset=self.start_offset)
        if self.log.reader.log_end_offset == self.end_offset + 1:
            # The batch was written completely; the crash came before the answer.
            found = records_of(read(self.log, self.end_offset))[-1]
            self._note(self.end_offset, [found.value or b""], [found.timestamp])

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.reader.log_start_offset, log.reader.log_end_offset) == (self.start_offset, self.end_offset)
        expected = [record for record in self.records if record[0] >= self.start_offset]
        assert [(record.offset, record.timestamp, record.value) for record in all_records(log)] == expected
        check_indexes(log)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        readable = [record for record in self.records if record[0] >= self.start_offset]
        target = data.draw(st.integers(NOW_MS - 5, self.world.now_ms + 110))
        expected = next(((offset, time) for offset, time, _ in readable if time >= target), None)
        found = self.log.reader.offset_for_timestamp(target)
        assert (found[:2] if found else None) == expected
        latest = max(readable, key=lambda record: record[1], default=None)
        found = self.log.reader.offset_for_timestamp(None)
        assert (found[:2] if found else None) == (latest[:2] if latest else None)

    @precondition(lambda self: self.end_offset > self.start_offset)
    @rule(share=st.floats(0, 0.99), max_bytes=st.integers(0, 500))
    def fetch(self, share: float, max_bytes: int) -> None:
        offset = self.start_offset + int(share * (self.end_offset - self.start_offset))
        found = records_of(read(self.log, offset, max_bytes))
        assert found
        assert found[0].offset <= offset
        assert [record.offset for record in found] == list(range(found[0].offset, found[-1].offset + 1))
        next_offset = found[-1].offset + 1
        if next_offset < self.end_offset:
            assert records_of(read(self.log, next_offset, max_bytes))[0].offset == next_offset


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(max_examples=60, stateful_step_count=25, derandomize=True)
