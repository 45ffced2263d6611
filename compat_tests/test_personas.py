"""Clients at a broker that behaves as Redpanda, or as a service in a cloud."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from compat_tests.harness import tools
from compat_tests.harness.clients import (
    CLIENTS,
    TRANSACTIONAL_CLIENTS,
    Client,
    Record,
)
from compat_tests.harness.tools import Tools
from compat_tests.test_clients import Agents, client_param
from wirekafka.testing import EmbeddedBroker

pytestmark = pytest.mark.wirekafka_only("wirekafka.api.release")

TOPIC = "orders"


@pytest.fixture
def persona(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A broker that behaves as the parameter says."""
    with EmbeddedBroker(storage="memory", release=request.param) as broker:
        broker.create_topic(TOPIC)
        yield broker


as_redpanda = pytest.mark.parametrize("persona", ["redpanda-24.3"], indirect=True)
as_any = pytest.mark.parametrize("persona", ["redpanda-22.3", "redpanda-24.3", "warpstream"], indirect=True)
any_client = pytest.mark.parametrize("client", [client_param(each) for each in CLIENTS])
any_transactional_client = pytest.mark.parametrize("client", [client_param(each) for each in TRANSACTIONAL_CLIENTS])


@as_any
@any_client
def test_client_produces_and_consumes(persona: EmbeddedBroker, client: Client, agent: Agents) -> None:
    values = [b"value %d" % number for number in range(20)]
    agent(client).produce(persona.bootstrap, TOPIC, [Record(None, value) for value in values])
    assert [each.value for each in agent(client).read(persona.bootstrap, TOPIC, len(values))] == values


@as_redpanda
@any_transactional_client
def test_client_commits_and_aborts_transactions(persona: EmbeddedBroker, client: Client, agent: Agents) -> None:
    transactions = agent(client).open_transactions(persona.bootstrap, "payments")
    for value, end in (("committed", transactions.commit), ("aborted", transactions.abort)):
        transactions.begin()
        transactions.send(TOPIC, value)
        transactions.flush()
        end()
    transactions.close()
    assert [each.value for each in persona.wait_for_records(TOPIC, 1)] == [b"committed"]


@pytest.mark.java
@pytest.mark.xdist_group("java")
@as_redpanda
def test_tools_of_apache_kafka_find_the_apis_of_redpanda(persona: EmbeddedBroker, tools_jvm: Tools) -> None:
    server = ("--bootstrap-server", persona.bootstrap)
    shown = tools_jvm.check(tools.API_VERSIONS, *server).out
    assert re.search(r"Produce\(0\): 0 to 7 \[usable: \d\]", shown)
    assert re.search(r"Fetch\(1\): 4 to 11 \[usable: 11\]", shown)
    assert re.search(r"Metadata\(3\): 0 to 8 \[usable: 8\]", shown)
    for name in ("ConsumerGroupHeartbeat", "DescribeCluster", "ElectLeaders", "AlterReplicaLogDirs", "UpdateFeatures"):
        assert re.search(rf"{name}\(\d+\): UNSUPPORTED", shown)
    tools_jvm.check(tools.TOPICS, *server, "--create", "--topic", "invoices", "--partitions", "2")
    assert "PartitionCount: 2" in tools_jvm.check(tools.TOPICS, *server, "--describe", "--topic", "invoices").out
