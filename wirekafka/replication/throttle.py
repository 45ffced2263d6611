"""Throttles of replication (KIP-73): the operator limits the bytes per second of followers that catch up.

How it works: a topic lists the replicas that are throttled, and a broker has a rate for them as a leader and another one as a
follower. What a throttled partition sends or receives counts for the rate. While the rate is exceeded, a leader leaves the
throttled partitions of followers that are not in sync out of its answers, and a follower leaves them out of its fetches.

Rules of this file: pure. The traffic of in-sync replicas counts too, and is never held back.

Differs from Apache Kafka: only the records of a partition count, not the other fields of a response. The records count as soon as
the leader reads them, so one response exceeds the rate by one partition at most.

Source: KIP-73; kafka.server.ReplicationQuotaManager, ReplicaManager.shouldLeaderThrottle,
AbstractFetcherThread.shouldFollowerThrottle; org.apache.kafka.common.metrics.stats.{Rate, SimpleRate, SampledStat}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

ALL_REPLICAS = "*"


def lists_replica(replicas: frozenset[str], index: int, broker_id: int) -> bool:
    """Whether a list of throttled replicas, such as `0:1` for broker 1 of partition 0, has the replica of a broker.

    Source: kafka.server.TopicConfigHandler.parseThrottledPartitions.
    """
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{index}:{broker_id}" in replicas)


@dataclass(slots=True)
class _Sample:
    began_ms: int
    size_bytes: int = 0


class Rate:
    """The bytes per second of the last windows of time.

    Args:
        sample_count: the number of windows, `replication.quota.window.num`.
        window_ms: the length of a window; a shorter time counts as one window.
    """

    def __init__(self, sample_count: int, window_ms: int) -> None:
        self._sample_count = sample_count
        self._window_ms = window_ms
        self._samples: deque[_Sample] = deque()

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Counts bytes."""
        samples = self._samples
        if not samples or now_ms - samples[-1].began_ms >= self._window_ms:
            samples.append(_Sample(now_ms))
            if len(samples) > self._sample_count:
                samples.popleft()
        samples[-1].size_bytes += size_bytes

    def per_second(self, now_ms: int) -> float:
        """Returns the rate in bytes per second."""
        samples = self._samples
        while samples and now_ms - samples[0].began_ms >= self._sample_count * self._window_ms:
            samples.popleft()
        if not samples:
            return 0.0
        elapsed_ms = max(now_ms - samples[0].began_ms, self._window_ms)
        return sum(sample.size_bytes for sample in samples) * 1000 / elapsed_ms


class ReplicationThrottle:
    """The throttle of a broker, as a leader or as a follower.

    Args:
        limit: returns the most bytes per second.
        lists: whether the replica of this broker of a partition, by topic and index, is throttled.
        rate: measures what the throttled partitions send or receive.
    """

    def __init__(self, limit: Callable[[], int], lists: Callable[[str, int], bool], rate: Rate) -> None:
        self._limit = limit
        self.lists = lists
        self._rate = rate

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the throttled partitions have more traffic than is allowed."""
        return self._rate.per_second(now_ms) > self._limit()

    def holds_back(self, topic: str, index: int, now_ms: int, *, is_in_sync: bool) -> bool:
        """Whether a partition must not be fetched now.

        Args:
            is_in_sync: whether the follower is in sync.
        """
        return not is_in_sync and self.lists(topic, index) and self.is_exceeded(now_ms)

    def record(self, topic: str, index: int, size_bytes: int, now_ms: int) -> None:
        """Counts bytes of a partition if it is throttled. A negative number takes bytes back that were not sent."""
        if size_bytes and self.lists(topic, index):
            self._rate.record(size_bytes, now_ms)
