"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

from importlib.metadata import entry_points
from textwrap import dedent

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "wirekafka.testing.pytest_plugin"
CLIENT = """
from confluent_kafka import Producer

def produce(broker, topic, *values):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
"""


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    pytester.makepyfile(CLIENT + dedent(source))
    # The package registers its plugin when it is installed; a checkout beside an older installation names it.
    plugins = () if any(each.value == PLUGIN for each in entry_points(group="pytest11")) else ("-p", PLUGIN)
    return pytester.runpytest_subprocess(*plugins, "-p", "no:randomly", "-p", "no:cacheprovider", *args)


def test_each_test_gets_an_empty_broker_and_its_own_topic(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("number", range(5))
        def test_orders(kafka_broker, kafka_topic, number):
            assert kafka_broker.records(kafka_topic) == []
            produce(kafka_broker, kafka_topic, b"one")
            produce(kafka_broker, "other", b"two")
            assert [each.value for each in kafka_broker.wait_for_records(kafka_topic, 1)] == [b"one"]
            assert len(kafka_broker.records("other")) == 1
            assert kafka_topic == f"test_orders-{number}"

        @pytest.mark.kafka_topic(partitions=3, retention_ms=5000)
        def test_topic(kafka_broker, kafka_topic):
            assert kafka_broker.records(kafka_topic, 2) == []
    """
    run(pytester, source).assert_outcomes(passed=6)


def test_marker_gives_a_test_a_broker_that_behaves_as_a_release(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.kafka_release("2.8")
        def test_old(kafka_broker, kafka_topic):
            produce(kafka_broker, kafka_topic, b"one")
            assert kafka_broker.on_loop(lambda broker: broker.config.items("wirekafka.api.release")) == ["2.8"]
            with kafka_broker.fork() as fork:
                assert fork.on_loop(lambda broker: broker.config.items("wirekafka.api.release")) == ["2.8"]
    """
    run(pytester, source).assert_outcomes(passed=1)


def test_markers_give_a_test_a_broker_with_other_settings(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        pytestmark = pytest.mark.kafka_settings(num_partitions=2, message_max_bytes=2000)

        @pytest.mark.kafka_settings(num_partitions=3)
        def test_own(kafka_broker):
            assert kafka_broker.on_loop(lambda broker: broker.config.integer("num.partitions")) == 3
            assert kafka_broker.on_loop(lambda broker: broker.config.integer("message.max.bytes")) == 2000
    """
    run(pytester, source).assert_outcomes(passed=1)


def test_marker_orders_a_fault_for_one_test(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.kafka_fault(api="Produce", error="INVALID_RECORD")
        def test_refused(kafka_broker, kafka_topic):
            produce(kafka_broker, kafka_topic, b"one")
            assert kafka_broker.records(kafka_topic) == []

        def test_taken(kafka_broker, kafka_topic):
            produce(kafka_broker, kafka_topic, b"one")
            assert len(kafka_broker.records(kafka_topic)) == 1
    """
    run(pytester, source).assert_outcomes(passed=2)


def test_broker_that_a_test_has_stopped_serves_the_next_test(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.kafka_fault(api="Produce", lose="reply")
        def test_stop(kafka_broker):
            kafka_broker.stop()

        def test_next(kafka_broker, kafka_topic):
            produce(kafka_broker, kafka_topic, b"one")
            assert [each.value for each in kafka_broker.records(kafka_topic)] == [b"one"]
    """
    run(pytester, source).assert_outcomes(passed=2)


def test_report_of_a_failed_test_has_the_log_and_the_state_of_the_broker(pytester: pytest.Pytester) -> None:
    source = """
        def test_orders(kafka_broker, kafka_topic):
            produce(kafka_broker, kafka_topic, b"one", b"two")
            assert False
    """
    result = run(pytester, source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*Created a topic topic=test_orders*"])
    result.stdout.fnmatch_lines(["*with the records of each partition: test_orders (2). It has no groups."])


def test_workers_of_xdist_have_a_broker_each(pytester: pytest.Pytester) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_orders(kafka_broker, kafka_topic, number):
            produce(kafka_broker, "shared-name", b"one")
            assert len(kafka_broker.records("shared-name")) == 1
    """
    run(pytester, source, "-n", "2").assert_outcomes(passed=8)


def test_cluster_has_three_brokers(pytester: pytest.Pytester) -> None:
    source = """
        def test_cluster(kafka_cluster):
            assert kafka_cluster.broker_ids == [1, 2, 3]
            produce(kafka_cluster, "orders", b"one")
            kafka_cluster.stop_broker(2)
            assert kafka_cluster.broker_ids == [1, 3]
            produce(kafka_cluster, "orders", b"two")
            kafka_cluster.start_broker(2)
            kafka_cluster.expire_session(3)
            produce(kafka_cluster, "orders", b"three")
    """
    run(pytester, source).assert_outcomes(passed=1)


def test_plugin_imports_nothing_of_the_broker_before_it_is_used(pytester: pytest.Pytester) -> None:
    source = """
        import sys

        def test_nothing():
            assert "trio" not in sys.modules and "wirekafka.broker" not in sys.modules
    """
    # The plugin of anyio, which FastStream installs, imports trio.
    run(pytester, source, "-p", "no:anyio").assert_outcomes(passed=1)
