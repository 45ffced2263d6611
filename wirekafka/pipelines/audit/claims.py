"""Claims: records in which a producer says how many records it has sent, by topic, partition and minute.

A claim is a Kafka record in a topic of its own. Its key is the id of the claim, so the topic can be compacted. Its value is a
JSON object:

    id            string   names the claim; the same as the key
    sequence      integer  grows when the claim with this id is written again; the greatest counts
    producer      string   a name for people
    topic         string   where the records were sent
    partition     integer  where they were sent; null if the producer does not know
    minute_ms     integer  ms since 1970 UTC of the beginning of the minute of the records' timestamps
    count         integer  how many records
    size_bytes    integer  how many bytes in their keys and values

The claims with different ids add up. Of the claims with the same id, one counts: a claim that was sent twice, or again after a
restart, changes nothing.

This module imports nothing but the standard library, so a producer with any client library can use it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

MINUTE_MS = 60_000
DEFAULT_GRACE_MS = 60_000


@dataclass(slots=True, frozen=True)
class Claim:
    """What a producer says about one minute of one partition; the fields are those of the module's docstring."""

    id: str
    sequence: int
    producer: str
    topic: str
    partition: int | None
    minute_ms: int
    count: int
    size_bytes: int

    def key(self) -> bytes:
        """Returns the key of the claim's record."""
        return self.id.encode()

    def value(self) -> bytes:
        """Returns the value of the claim's record."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(slots=True)
class _Window:
    """What was counted for one minute of one partition.

    Attributes:
        sequence: that of the last claim that was returned for it.
        is_claimed: whether that claim has all that was counted.
    """

    id: str
    sequence: int = 0
    count: int = 0
    size_bytes: int = 0
    is_claimed: bool = False


class ClaimCounter:
    """Counts the records that a producer has sent, and returns the claims to send.

    Count a record after the broker has acknowledged it, and a record of a transaction after the commit. Use the partition and the
    timestamp of the acknowledgement: in a topic with LogAppendTime, the timestamp is the broker's.

    Its methods are not thread-safe. No method reads a clock: a minute closes when a record comes whose timestamp is `grace_ms`
    after the end of the minute. A later record of a closed minute gets a claim of its own, which adds up.
    """

    def __init__(self, producer: str, *, run: str | None = None, grace_ms: int = DEFAULT_GRACE_MS) -> None:
        """Begins to count from zero.

        Args:
            producer: a name for people.
            run: begins the ids of the claims; it must never be used again for other records. A random one by default.
            grace_ms: how long a minute stays open after its end, in the time of the records.

        Raises:
            ValueError: `grace_ms` is negative.
        """
        if grace_ms < 0:
            raise ValueError(f"grace_ms is {grace_ms}, and it must be 0 or more")
        self._producer = producer
        self._run = run or uuid.uuid4().hex
        self._grace_ms = grace_ms
        self._windows: dict[tuple[str, int | None, int], _Window] = {}
        self._window_count = 0
        self._last_closed_ms: int | None = None

    def count(self, topic: str, partition: int | None, timestamp_ms: int, size_bytes: int) -> list[Claim]:
        """Counts a record; returns the claims of the minutes that it closes.

        Args:
            topic: the topic of the record.
            partition: the partition of the record; None if it is unknown.
            timestamp_ms: the timestamp of the record.
            size_bytes: the bytes of its key and its value.
        """
        minute_ms = _minute_of(timestamp_ms)
        window = self._windows.get((topic, partition, minute_ms)) or self._open(topic, partition, minute_ms)
        window.count += 1
        window.size_bytes += size_bytes
        window.is_claimed = False
        last_closed_ms = _minute_of(timestamp_ms - self._grace_ms) - MINUTE_MS
        if self._last_closed_ms is not None and last_closed_ms <= self._last_closed_ms:
            return []
        self._last_closed_ms = last_closed_ms
        return self._close_until(last_closed_ms)

    def snapshot(self) -> list[Claim]:
        """Returns the claims of the open minutes that have changed since their last claim; the minutes stay open.

        A producer that sends a snapshot now and then leaves less unclaimed when it is killed.
        """
        return [self._claim(*item) for item in self._windows.items() if not item[1].is_claimed]

    def close(self) -> list[Claim]:
        """Closes all minutes; returns the claims of those that have changed since their last claim."""
        claims = self.snapshot()
        self._windows.clear()
        return claims

    def _open(self, topic: str, partition: int | None, minute_ms: int) -> _Window:
        self._window_count += 1
        window = self._windows[topic, partition, minute_ms] = _Window(f"{self._run}-{self._window_count}")
        return window

    def _close_until(self, minute_ms: int) -> list[Claim]:
        """Closes the minutes that begin at a time or before it."""
        closed = {place: window for place, window in self._windows.items() if place[2] <= minute_ms}
        for place in closed:
            del self._windows[place]
        return [self._claim(place, window) for place, window in closed.items() if not window.is_claimed]

    def _claim(self, place: tuple[str, int | None, int], window: _Window) -> Claim:
        window.sequence += 1
        window.is_claimed = True
        topic, partition, minute_ms = place
        return Claim(window.id, window.sequence, self._producer, topic, partition, minute_ms, window.count, window.size_bytes)


def _minute_of(timestamp_ms: int) -> int:
    """Returns the beginning of the minute of a timestamp."""
    return timestamp_ms - timestamp_ms % MINUTE_MS
