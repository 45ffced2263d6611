"""Fixtures of the compatibility tests.

`--broker=kafka-4.3.1` (or `kafka-3.9.1`) runs the same tests against Apache Kafka, which shows that the tests are right. Tests of
functions that only wirekafka has are marked `wirekafka_only`; tests of formats that Kafka 4 has removed, `old_formats`.

In CI (environment variable CI) a missing program fails the tests that need it; elsewhere they are skipped with the reason.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness import jars
from compat_tests.harness.broker import CLASSES, KINDS, RUNNING, STARTED, WIREKAFKA, Broker
from compat_tests.harness.clients import KAFKA_PYTHON, Agent, Client, Member
from compat_tests.harness.proxy import CuttingProxy, cutting_proxy
from compat_tests.harness.spark import spark_session
from compat_tests.harness.tools import Tools

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BrokerFactory = Callable[..., Broker]

UNCLOSED = "ignore::ResourceWarning"
"""The filter of all compatibility tests: PySpark leaves sockets open, and kafka-python each socket whose connection was refused.

The garbage collector may find such a socket in any later test of the same process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=KINDS, default=WIREKAFKA, help="the broker that the compatibility tests run against")
    parser.addoption(
        "--chaos-seconds",
        type=float,
        help="how long each test that kills at random goes on killing; without it as long as CI has time for",
    )
    parser.addoption("--faults", type=int, help="how many random faults a cluster gets; without it as many as CI has time for")
    parser.addoption("--fault-seed", type=int, help="chooses the random faults; without it each run with --faults has other ones")
    parser.addoption("--fault-brokers", type=int, default=3, help="how many brokers the cluster with random faults has")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "java: needs a JVM and Maven")
    config.addinivalue_line("markers", "wirekafka_only(reason): says something of wirekafka that Apache Kafka does not do")
    config.addinivalue_line("markers", "old_formats: needs the message formats 0 and 1, which Kafka 4 has dropped")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind = config.getoption("--broker")
    for item in items:
        if not Path(item.path).is_relative_to(Path(__file__).parent):
            continue
        item.add_marker(pytest.mark.filterwarnings(UNCLOSED))
        mark = item.get_closest_marker("wirekafka_only")
        if mark is not None and kind != WIREKAFKA:
            item.add_marker(pytest.mark.skip(reason=f"of wirekafka: {mark.args[0]}"))
        if item.get_closest_marker("old_formats") is not None and kind == jars.KAFKA:
            item.add_marker(pytest.mark.skip(reason="Kafka 4 has dropped the message formats 0 and 1"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ends a run in which xdist could run tests of one group in parallel; xdist knows a group by the end of the test names."""
    if getattr(session.config.option, "loadgroup", False):
        marked = [item for item in session.items if item.get_closest_marker("xdist_group") is not None]
        lost = [item.nodeid for item in marked if "@" not in item.nodeid]
        assert not lost, (
            f"pytest {pytest.__version__} and this pytest-xdist keep no groups together, see pyproject.toml: {lost[0]}"
        )


def skip_or_fail(reason: str) -> None:
    """Skips the test; in CI it fails the test, because all programs must be installed there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def _collect_sockets_of_clients() -> Iterator[None]:
    """Collects what the clients of a module have left, because the warnings would fail whatever unit test comes next."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def _java(request: pytest.FixtureRequest) -> None:
    needs_java = request.node.get_closest_marker("java") is not None or request.config.getoption("--broker") != WIREKAFKA
    reason = jars.missing_program() if needs_java else None
    if reason is not None:
        skip_or_fail(reason)


@pytest.fixture(autouse=True)
def _refuse_logged_faults(broker_kind: str) -> Iterator[None]:
    """Fails a test in which a wirekafka broker logged a fault of its own: a traceback, a failed request, a failed timer.

    The broker survives such a fault, so clients may not notice it.
    """
    yield
    faults = {broker.log_path: broker.new_faults() for broker in STARTED}
    STARTED.intersection_update(RUNNING)
    assert broker_kind != WIREKAFKA or not any(faults.values()), f"a broker logged a fault: {faults}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for broker in RUNNING:
            report.sections.append((f"log of the broker at {broker.bootstrap}", broker.log_text()[-6000:]))


@pytest.fixture(scope="session")
def broker_kind(request: pytest.FixtureRequest) -> str:
    """Returns the kind of broker that the tests use."""
    return request.config.getoption("--broker")


@pytest.fixture(scope="session")
def chaos_seconds(request: pytest.FixtureRequest, is_long: bool) -> float:
    """Returns the seconds for which a test of exactly-once kills processes at random."""
    return request.config.getoption("--chaos-seconds") or (60 if is_long else 15)


@pytest.fixture(scope="session")
def broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Returns the broker that most tests share; no test stops it or fills its disk."""
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("shared-broker"))) as running:
        yield running


@pytest.fixture
def make_broker(broker_kind: str, tmp_path: Path) -> Iterator[BrokerFactory]:
    """Starts brokers for one test, and kills those that still run at its end."""
    count = itertools.count()
    with ExitStack() as stack:

        def make(
            settings: Mapping[str, str] = {}, *, directory: Path | None = None, kind: str = broker_kind, **more: Any
        ) -> Broker:
            place = directory or tmp_path / f"broker-{next(count)}"
            return stack.enter_context(brokers.running(CLASSES[kind](place, settings, **more)))

        yield make


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Returns a unique topic name that contains the name of the test."""
    return re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:120] + f"-{os.urandom(3).hex()}"


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Client], Agent]]:
    """Returns the agent of a client, which starts at its first use."""
    agents: dict[str, Agent] = {}
    directory = tmp_path_factory.mktemp("agents")

    def find(client: Client) -> Agent:
        running = agents.get(client.name)
        if running is None or running.process.poll() is not None:
            agents[client.name] = running = Agent(client, directory / f"{client}.log")
        return running

    yield find
    for running in agents.values():
        running.close()


@pytest.fixture
def join(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    """Starts members of a group at the shared broker, or at `bootstrap`, and kills them at the end."""
    members: list[Member] = []

    def start(client: Client, group: str, topic: str, *, bootstrap: str | None = None, **options: object) -> Member:
        log = tmp_path / f"member-{len(members)}-{client}.log"
        members.append(Member(client, log, bootstrap or broker.bootstrap, group, topic, **options))
        return members[-1]

    yield start
    for member in members:
        member.close()


@pytest.fixture(scope="session")
def tools_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Kafka's command line tools in one JVM."""
    running = Tools(tmp_path_factory.mktemp("tools") / "tools.log")
    yield running
    running.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Returns the session that all tests share; its start takes as long as several tests."""
    with spark_session(tmp_path_factory.mktemp("spark"), jars.spark_options()) as session:
        yield session


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    """Returns a proxy that cuts connections; the test sets its upstream."""
    with cutting_proxy() as running:
        yield running


@pytest.fixture
def writer(agent: Callable[[Client], Agent]) -> Agent:
    """Returns a client for the parts of a test that do not test clients."""
    return agent(KAFKA_PYTHON)
