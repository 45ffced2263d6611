"""Reads the metrics of a broker when they are asked for.

How it works: nothing is counted on the way of a record. The records of a partition are counted by how far its log end offset has
moved since the last reading.

Rules of this file: readings run in slices, because a broker may have 10,000 partitions.

Differs from Apache Kafka: records are counted from the first reading that finds their partition; records that consumers fetch are
not counted, as in Apache Kafka. There are no metrics by topic.

Source: kafka.server.ReplicaManager, kafka.controller.KafkaController (metrics of the same meaning).
"""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

from wirekafka import __version__
from wirekafka.pending import Work
from wirekafka.server.loop_lag import BOUNDS_MS
from wirekafka.server.metrics.text import Kind, Metric, counter, gauge, histogram, render

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.replication.leader_replica import LeaderReplica
    from wirekafka.replication.partition import Partition
    from wirekafka.server.drivers import EpollDriver
    from wirekafka.server.loop_lag import LoopLag
    from wirekafka.server.metrics.request_meter import RequestMeter

LEADER, FOLLOWER = "leader", "follower"
PARTITIONS_A_STEP = 64

_START_SECONDS = time.time()


class BrokerMetrics:
    """The metrics of one broker."""

    def __init__(self, broker: Broker, driver: EpollDriver, lag: LoopLag, meter: RequestMeter) -> None:
        self._broker = broker
        self._driver = driver
        self._lag = lag
        self._meter = meter
        self._end_offsets: dict[Partition, int] = {}
        self._appended: Counter[str] = Counter()

    def read(self) -> Work[str]:
        """Returns the metrics in the text format of Prometheus."""
        metrics = yield from self._partition_metrics()
        offline = yield from self._offline_partitions()
        metrics.append(offline)
        return render([*metrics, *self._cluster_metrics(), *self._meter.metrics(), *self._process_metrics()])

    def _partition_metrics(self) -> Work[list[Metric]]:
        """Counts the replicas of this broker, and what has been appended to them."""
        counts: Counter[str] = Counter()
        end_offsets: dict[Partition, int] = {}
        seen, log_bytes = 0, 0
        for topic in [*self._broker.topics]:
            for partition in topic.partitions:
                seen += 1
                if seen % PARTITIONS_A_STEP == 0:
                    yield
                if partition.is_gone or not partition.is_hosted:
                    continue
                role = LEADER if partition.leader == self._broker.node_id else FOLLOWER
                counts[role] += 1
                if partition.is_offline:
                    counts["offline"] += 1
                    continue
                log_bytes += partition.log.size_bytes
                end_offsets[partition] = end = partition.log.log_end_offset
                self._appended[role] += max(end - self._end_offsets.get(partition, end), 0)
                leader = self._broker.leader_replicas.get(partition)
                if leader is not None and role == LEADER:
                    _count_in_sync(leader, counts)
        self._end_offsets = end_offsets
        appended = Metric(
            "wirekafka_appended_records_total", Kind.COUNTER, "Records that were appended, by the role of the replica."
        )
        replicas = Metric("wirekafka_replicas", Kind.GAUGE, "Replicas of this broker, by their roles.")
        for role in (LEADER, FOLLOWER):
            appended.samples.append(("", {"role": role}, self._appended[role]))
            replicas.samples.append(("", {"role": role}, counts[role]))
        return [
            appended,
            replicas,
            gauge("wirekafka_log_bytes", "Bytes of the records of all replicas of this broker.", log_bytes),
            gauge("wirekafka_offline_replicas", "Replicas of this broker whose data cannot be used.", counts["offline"]),
            gauge(
                "wirekafka_under_replicated_partitions",
                "Partitions that this broker leads, and of which a replica is not in sync.",
                counts["under_replicated"],
            ),
            gauge(
                "wirekafka_under_min_isr_partitions",
                "Partitions that this broker leads, with fewer replicas in sync than min.insync.replicas.",
                counts["under_min_isr"],
            ),
        ]

    def _offline_partitions(self) -> Work[Metric]:
        """Counts the partitions of the cluster without a leader; those of this broker if it is the whole cluster."""
        member, count, seen = self._broker.member, 0, 0
        if member is None:
            for topic in [*self._broker.topics]:
                count += sum(partition.is_offline for partition in topic.partitions)
                yield
        else:
            for image in [*member.image.topics.values()]:
                for partition in [*image.partitions.values()]:
                    seen += 1
                    if seen % PARTITIONS_A_STEP == 0:
                        yield
                    count += partition.leader < 0
        return gauge("wirekafka_offline_partitions", "Partitions of the cluster without a leader, as this broker knows.", count)

    def _cluster_metrics(self) -> list[Metric]:
        broker, member = self._broker, self._broker.member
        metrics = [
            gauge(
                "wirekafka_failed_log_dirs",
                "Data directories that have failed.",
                sum(each.offline_reason is not None for each in broker.logs.directories),
            ),
        ]
        is_controller = member is None or (member.local_controller is not None and member.local_controller.is_active)
        metrics.append(
            gauge("wirekafka_active_controller", "1 if this broker is the controller, otherwise 0.", int(is_controller))
        )
        if member is not None:
            changes = member.replicas.isr_changes
            brokers = len(member.image.brokers)
            metrics += [
                counter("wirekafka_isr_shrinks_total", "Changes that removed replicas from the in-sync ones.", changes.shrinks),
                counter("wirekafka_isr_expands_total", "Changes that added replicas to the in-sync ones.", changes.expands),
                gauge("wirekafka_live_brokers", "Brokers of the cluster that are live, as this broker knows.", brokers),
            ]
        return metrics

    def _process_metrics(self) -> list[Metric]:
        lag, times = self._lag, os.times()
        return [
            gauge("wirekafka_connections", "Open connections of clients and other brokers.", len(self._driver)),
            histogram(
                "wirekafka_loop_pass_seconds",
                "How long the loop was held at once; all clients wait meanwhile.",
                [bound / 1000 for bound in BOUNDS_MS],
                lag.counts,
                round(lag.total_seconds, 6),
            ),
            gauge("wirekafka_loop_longest_pass_seconds", "The longest pass of the loop so far.", round(lag.longest_seconds, 6)),
            counter(
                "wirekafka_collections_seconds_total",
                "The time that Python's collections of garbage have taken.",
                round(lag.collections.seconds, 6),
            ),
            counter("process_cpu_seconds_total", "CPU time of the process.", round(times.user + times.system, 3)),
            gauge("process_resident_memory_bytes", "Resident memory of the process.", _resident_bytes()),
            gauge("process_start_time_seconds", "When the process has started, in seconds since 1970.", round(_START_SECONDS, 3)),
            Metric("wirekafka_build_info", Kind.GAUGE, "The version of wirekafka.", [("", {"version": __version__}, 1)]),
        ]


def _count_in_sync(leader: LeaderReplica, counts: Counter[str]) -> None:
    leadership = leader.leadership
    counts["under_replicated"] += len(leadership.committed_isr) < 1 + len(leadership.followers)
    counts["under_min_isr"] += leadership.is_under_min_isr


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
