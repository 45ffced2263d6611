"""The control port of a cluster, by real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from wirekafka.testing import EmbeddedCluster
from wirekafka.testing.control.cluster_routes import CLUSTER_ROUTES
from wirekafka.testing.control.openapi import document
from wirekafka.tests.testing.control.http_client import ask


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2, control_port=0) as running:
        yield running


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "retry.backoff.ms": 10, "retry.backoff.max.ms": 20})
    producer.produce("orders", b"one")
    assert producer.flush(60) == 0


def test_broker_is_stopped_and_started_on_its_former_port(cluster: EmbeddedCluster) -> None:
    url, bootstrap = cluster.control_url, cluster.bootstrap
    status, stopped = ask("POST", f"{url}/brokers/2/stop")
    assert (status, [each["is_running"] for each in stopped["brokers"]]) == (200, [True, False])
    assert cluster.broker_ids == [1]
    assert ask("GET", f"{url}/brokers/2/topics")[0] == 409
    status, started = ask("POST", f"{url}/brokers/2/start")
    assert (status, started["bootstrap"]) == (200, bootstrap)
    assert ask("POST", f"{url}/brokers/3/start")[0] == 404


def test_fault_hits_one_broker(cluster: EmbeddedCluster) -> None:
    url = cluster.control_url
    faults = [
        ask("POST", f"{url}/brokers/{each}/faults", {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "times": 1})[1]["id"]
        for each in (1, 2)
    ]
    produce(cluster.bootstrap)
    hits = [
        len(ask("DELETE", f"{url}/brokers/{each}/faults/{fault}")[1]["hits"]) for each, fault in zip((1, 2), faults, strict=True)
    ]
    assert sorted(hits) == [0, 1]


def test_fault_in_python_ends_with_its_broker(cluster: EmbeddedCluster) -> None:
    with cluster.fault(1, api="Produce", lose="reply"):
        assert len(ask("GET", f"{cluster.control_url}/brokers/1/faults")[1]) == 0
        cluster.stop_broker(1)
    with pytest.raises(KeyError), cluster.fault(1, api="Produce", lose="reply"):
        pass


def test_session_expires_over_http(cluster: EmbeddedCluster) -> None:
    assert ask("POST", f"{cluster.control_url}/brokers/2/expire-session")[0] == 200
    assert ask("POST", f"{cluster.control_url}/brokers/9/expire-session")[0] == 404


def test_requests_of_a_cluster_are_described_without_time_and_copies() -> None:
    described = document(CLUSTER_ROUTES)
    json.dumps(described)
    names = [found["operationId"] for path in described["paths"].values() for found in path.values()]
    assert len(names) == len(set(names)) == len(CLUSTER_ROUTES)
    assert "/brokers/{broker}/faults" in described["paths"]
    assert not [path for path in described["paths"] if path.startswith(("/brokers/{broker}/clock", "/brokers/{broker}/reset"))]
