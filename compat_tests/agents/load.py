"""What the loads on a cluster whose brokers fail have in common: load_of_*.py here, franz_go/, and java/src/load.

Run as: LOAD HISTORY PARTITION_COUNT BOOTSTRAP... A load writes to all partitions of the topics `plain` (idempotent) and
`transacted` (in transactions), and reads both. After the line "stop" on stdin its writers end; then it prints "stopped". After
"end" it ends.

HISTORY gets one line for each request and response: fields that tabs separate, of which the first is the time in ns of
CLOCK_MONOTONIC, which all processes share. compat_tests/harness/recorded_load.py makes the events of the checker from the lines:

    sent PRODUCER TOPIC PARTITION PAYLOAD TRANSACTION   (TRANSACTION is - for a record without one)
    acked PAYLOAD OFFSET   (OFFSET is -1 if the broker has not said it, as for a duplicate)
    unknown PAYLOAD REASON
    begun TRANSACTION TRANSACTIONAL_ID VERSION
    end TRANSACTION commit|abort
    committed TRANSACTION
    aborted TRANSACTION
    gave-up TRANSACTION REASON
    read CONSUMER TOPIC PARTITION OFFSET PAYLOAD POSITION
    offsets-sent COMMIT GROUP TOPIC PARTITION OFFSET
    offsets-acked COMMIT
    offsets-unknown COMMIT REASON
    offsets-read GROUP TOPIC PARTITION OFFSET COMMIT ASKED_NS now|stale   (now: no deposed coordinator can have answered)
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

PLAIN, TRANSACTED = "plain", "transacted"
PAUSE_S = 0.05
ABORT_EACH = 4
"""Every fourth transaction is aborted."""


class Recorder:
    """Writes the lines of one history, from several threads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()
        self._last_ns = 0

    def add(self, *fields: object) -> int:
        """Writes a line; returns its time, which is that of no other line."""
        text = "\t".join(str(field).replace("\t", " ").replace("\n", " ") for field in fields)
        with self._lock:
            self._last_ns = max(self._last_ns + 1, time.monotonic_ns())
            self._file.write(f"{self._last_ns}\t{text}\n")
            return self._last_ns


class Load:
    """What the arguments say, and whether the writers have been told to stop.

    Attributes:
        bootstrap: the addresses of the brokers, with commas.
    """

    def __init__(self) -> None:
        self.recorder = Recorder(Path(sys.argv[1]))
        self.partition_count = int(sys.argv[2])
        self.bootstrap = ",".join(sys.argv[3:])
        self.is_stopped = threading.Event()
        self._positions: dict[tuple[str, int], int] = {}

    def note_read(self, consumer: str, topic: str, partition: int, offset: int, payload: str) -> None:
        """Records that the only consumer of this load got a record."""
        position = self._positions.get((topic, partition), 0)
        self.recorder.add("read", consumer, topic, partition, offset, payload, position)
        self._positions[topic, partition] = offset + 1
