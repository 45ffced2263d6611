"""The metrics of a whole broker, asked for over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from wirekafka.api.metadata import MetadataRequest, MetadataRequestTopic
from wirekafka.pending import finish
from wirekafka.replication.leader_replica import IsrChanges
from wirekafka.server.drivers import EpollDriver
from wirekafka.server.loop_lag import LoopLag
from wirekafka.server.metrics.broker_metrics import BrokerMetrics
from wirekafka.server.metrics.request_meter import RequestMeter
from wirekafka.server.running import RunningBroker, open_broker
from wirekafka.tests.api.data_plane import NOW_MS, batch
from wirekafka.tests.api.data_plane import Caller as PlaneCaller
from wirekafka.tests.api.data_plane import run as run_plane
from wirekafka.tests.api.members import id_of, join, topic
from wirekafka.tests.server.frames import EchoDispatcher
from wirekafka.tests.server.test_running import CREATE_TOPICS, METADATA, Caller, config
from wirekafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

SAMPLE = re.compile(r'[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? -?[0-9.e+-]+')


def values_of(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines), lines
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def scrape(running: RunningBroker) -> dict[str, float]:
    assert running.metrics_address is not None
    stream = await trio.open_tcp_stream(running.metrics_address.host, running.metrics_address.port)
    async with stream:
        await stream.send_all(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b""
        async for part in stream:
            text += part
    return values_of(text.decode().partition("\r\n\r\n")[2])


def test_broker_tells_requests_errors_and_the_process(tmp_path: Path) -> None:

    async def main() -> None:
        settings = config(tmp_path, wirekafka_metrics_listener="127.0.0.1:0")
        async with open_broker(settings) as running:
            address = running.addresses[0]
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                caller = Caller(stream)
                topics = [CreatableTopic(name="orders", num_partitions=3, replication_factor=1)]
                await caller.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics))
                unknown = [MetadataRequestTopic(name="missing")]
                await caller.ask(METADATA, 8, MetadataRequest(topics=unknown, allow_auto_topic_creation=False))
                found = await scrape(running)
        assert found['wirekafka_requests_total{api="CreateTopics"}'] == 1
        assert found['wirekafka_requests_total{api="Metadata"}'] == 1
        assert found['wirekafka_request_errors_total{api="Metadata",error="UNKNOWN_TOPIC_OR_PARTITION"}'] == 1
        assert found['wirekafka_request_bytes_total{api="Metadata"}'] > 10
        assert found['wirekafka_response_bytes_total{api="Metadata"}'] > 10
        assert found['wirekafka_replicas{role="leader"}'] == 3
        assert found["wirekafka_connections"] == 1
        assert found["wirekafka_offline_partitions"] == found["wirekafka_failed_log_dirs"] == 0
        assert found["wirekafka_active_controller"] == 1
        assert found["wirekafka_loop_pass_seconds_count"] == found['wirekafka_loop_pass_seconds_bucket{le="+Inf"}'] > 0
        assert found["process_cpu_seconds_total"] > 0
        assert found["process_resident_memory_bytes"] > 10_000_000

    trio.run(main)


def test_broker_without_the_setting_serves_no_metrics_and_imports_nothing_of_them(tmp_path: Path) -> None:
    program = f"""
import sys, trio
from pathlib import Path
from wirekafka.config import BrokerConfig
from wirekafka.server.running import open_broker

async def main():
    settings = BrokerConfig.load(None, {{"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": {str(tmp_path)!r}}})
    async with open_broker(settings) as running:
        assert running.metrics_address is None

trio.run(main)
assert not [name for name in sys.modules if name.startswith("wirekafka.server.metrics")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def metrics_of(caller: PlaneCaller) -> BrokerMetrics:
    driver = EpollDriver(EchoDispatcher(), max_idle_ms=None, on_close=lambda client: None)
    return BrokerMetrics(caller.broker, driver, LoopLag(), RequestMeter())


def test_appended_records_are_counted_between_two_readings(tmp_path: Path) -> None:
    async def body(caller: PlaneCaller) -> None:
        partition = caller.broker.topics.create("flights", 1).partitions[0]
        partition.append(memoryview(batch(b"a")), now_ms=NOW_MS)
        metrics = metrics_of(caller)
        counts = []
        for _ in range(2):
            counts.append(values_of(finish(metrics.read()))['wirekafka_appended_records_total{role="leader"}'])
            partition.append(memoryview(batch(b"b", b"c")), now_ms=NOW_MS)
        assert counts == [0, 2]

    run_plane(body, tmp_path)


def test_member_tells_the_cluster_and_its_own_replicas(tmp_path: Path) -> None:
    async def body(caller: PlaneCaller) -> None:
        member: Any = join(caller)
        member.tell(topic("flights", 1, 2, -1))
        member.host(caller, id_of("flights"), "flights", 0)
        member.host(caller, id_of("flights"), "flights", 1, leader=2)
        member.local_controller = SimpleNamespace(is_active=True)
        member.replicas.isr_changes = changes = IsrChanges()
        changes.note(frozenset({1, 2}), frozenset({1}))
        leader = caller.broker.topics.find_partition("flights", 0)
        leadership = SimpleNamespace(committed_isr={1}, followers={2: None, 3: None}, is_under_min_isr=True)
        caller.broker.leader_replicas[leader] = SimpleNamespace(leadership=leadership)  # type: ignore[assignment]
        found = values_of(finish(metrics_of(caller).read()))
        assert found["wirekafka_offline_partitions"] == 1
        assert found['wirekafka_replicas{role="leader"}'] == found['wirekafka_replicas{role="follower"}'] == 1
        assert found["wirekafka_under_replicated_partitions"] == found["wirekafka_under_min_isr_partitions"] == 1
        assert (found["wirekafka_isr_shrinks_total"], found["wirekafka_isr_expands_total"]) == (1, 0)
        assert (found["wirekafka_active_controller"], found["wirekafka_live_brokers"]) == (1, 3)
        caller.broker.leader_replicas.clear()

    run_plane(body, tmp_path)
