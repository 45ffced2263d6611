"""The pytest plugin, which is installed with the package: a broker in each test that asks for one.

    def test_orders(kafka_broker, kafka_topic):
        producer = Producer({"bootstrap.servers": kafka_broker.bootstrap})

Fixtures:
    kafka_broker    an `EmbeddedBroker`, empty at the beginning of each test. One runs for all tests of a session.
    kafka_topic     the name of a new topic in `kafka_broker`, after the name of the test.
    kafka_cluster   an `EmbeddedCluster` of three brokers, for one test.

Markers:
    kafka_settings(**settings)               the broker or the cluster of this test has these settings, and is its own.
    kafka_topic(partitions=1, **settings)    the topic of this test.
    kafka_release("2.8")                     the broker of this test behaves as this release, and is its own.
    kafka_fault(**fields)                    a fault from the beginning of the test, as `EmbeddedBroker.fault` takes it.

The report of a failed test has the topics and groups of its broker. pytest adds the broker's log since the beginning of the test.

Rules of this file: without a test that uses the fixtures, nothing of the broker is imported.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from wirekafka.testing.embedded import EmbeddedBroker
    from wirekafka.testing.embedded_cluster import EmbeddedCluster

SETTINGS_MARKER = "kafka_settings"
TOPIC_MARKER = "kafka_topic"
FAULT_MARKER = "kafka_fault"
RELEASE_MARKER = "kafka_release"

LEAST_MEMORY_BYTES = 1 << 30
"""With less, as in a container, where 64 MiB are usual, the data is on the disk."""

_BROKER = pytest.StashKey["EmbeddedBroker"]()
_WAS_USED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers, and lets pytest capture the log of brokers."""
    config.addinivalue_line("markers", f"{SETTINGS_MARKER}(**settings): the Kafka broker of the test has these settings")
    config.addinivalue_line("markers", f"{TOPIC_MARKER}(partitions=1, **settings): the topic of the fixture kafka_topic")
    config.addinivalue_line("markers", f"{FAULT_MARKER}(**fields): a fault of the Kafka broker, from the beginning of the test")
    config.addinivalue_line("markers", f"{RELEASE_MARKER}(release): the Kafka broker of the test behaves as this release")
    broker_log = logging.getLogger("wirekafka")
    if broker_log.level == logging.NOTSET:
        broker_log.setLevel(logging.INFO)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the topics and groups of the broker to the report of a failed test."""
    report = yield
    broker = item.stash.get(_BROKER, None)
    if report.when == "call" and report.failed and broker is not None:
        try:
            state = broker.describe()
        except Exception as error:  # noqa: BLE001 - the report of the test is more important
            state = f"it cannot be asked: {error!r}"
        report.sections.append(("Kafka broker", state))
    return report


@pytest.fixture(scope="session")
def _kafka_session_broker() -> Iterator[EmbeddedBroker]:
    """The broker of all tests without settings of their own; with xdist, each worker has one."""
    from wirekafka.testing.embedded import EmbeddedBroker

    with EmbeddedBroker(storage=_storage()) as broker:
        yield broker


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """An empty broker, whose address is `kafka_broker.bootstrap`."""
    from wirekafka.testing.embedded import EmbeddedBroker

    settings = _settings(request)
    if settings:
        with EmbeddedBroker(storage=_storage(), **settings) as broker:
            yield from _serve(request, broker)
        return
    shared: EmbeddedBroker = request.getfixturevalue("_kafka_session_broker")
    if request.config.stash.get(_WAS_USED, False):
        _empty(shared)
    request.config.stash[_WAS_USED] = True
    yield from _serve(request, shared)


def _empty(broker: EmbeddedBroker) -> None:
    """Empties the broker of the session; starts it again if a test has stopped it, or has made it fail."""
    try:
        broker.reset()
    except Exception:  # noqa: BLE001 - the test that broke it has failed or wanted it; the other tests need a broker
        with suppress(Exception):
            broker.stop()
        broker.start()


def _serve(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """Gives a broker to a test, with the faults of its markers."""
    request.node.stash[_BROKER] = broker
    with ExitStack() as faults:
        for marker in request.node.iter_markers(FAULT_MARKER):
            faults.enter_context(broker.fault(**marker.kwargs))
        yield broker


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_broker: EmbeddedBroker) -> str:
    """The name of a new topic."""
    marker = request.node.get_closest_marker(TOPIC_MARKER)
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:200]
    kafka_broker.create_topic(name, *(marker.args if marker else ()), **(marker.kwargs if marker else {}))
    return name


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """Three brokers; the addresses are `kafka_cluster.bootstrap`."""
    from wirekafka.testing.embedded_cluster import EmbeddedCluster

    with EmbeddedCluster(3, storage=_storage(), **_settings(request)) as cluster:
        yield cluster


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Returns the settings of the markers; those nearest to the test win."""
    found: dict[str, Any] = {}
    for marker in request.node.iter_markers(SETTINGS_MARKER):
        found = marker.kwargs | found
    release = request.node.get_closest_marker(RELEASE_MARKER)
    return found if release is None else found | {"wirekafka_api_release": release.args[0]}


def _storage() -> str:
    from wirekafka.testing.async_broker import has_memory

    return "memory" if has_memory(LEAST_MEMORY_BYTES) else "disk"
