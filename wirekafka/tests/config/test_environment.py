"""Settings as environment variables."""

from __future__ import annotations

import pytest

from wirekafka.config.environment import listeners_for, read_environment


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("KAFKA_LOG_RETENTION_HOURS", "log.retention.hours"),
        ("KAFKA_ABC__DEF", "abc_def"),
        ("KAFKA_ABC___DEF", "abc-def"),
        ("KAFKA_ABC____DEF", "abc-.def"),
        ("KAFKA_ABC_____DEF", "abc-_def"),
        ("KAFKA_WIREKAFKA_METRICS_LISTENER", "wirekafka.metrics.listener"),
    ],
)
def test_variable_stands_for_a_setting_as_in_kafkas_image(variable: str, setting: str) -> None:
    read = read_environment({variable: "1"})
    assert read.values == {setting: "1"}
    assert read.variables == {setting: variable}


@pytest.mark.parametrize("variable", ["WIREKAFKA_PUBLISHED", "CLUSTER_ID", "KAFKA", "MY_KAFKA_BROKER_ID", "kafka_broker_id"])
def test_variable_without_the_prefix_is_no_setting(variable: str) -> None:
    read = read_environment({variable: "1"})
    assert (read.values, read.ignored) == ({}, [])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KAFKA_HEAP_OPTS", "-Xmx1g"),
        ("KAFKA_LOG4J_ROOT_LOGLEVEL", "DEBUG"),
        ("KAFKA_SERVICE_HOST", "10.0.0.1"),
        ("KAFKA_SERVICE_PORT", "9092"),
        ("KAFKA_SERVICE_PORT_CLIENTS", "9092"),
        ("KAFKA_PORT", "tcp://10.0.0.1:9092"),
        ("KAFKA_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("KAFKA_UI_PORT", "tcp://10.0.0.1:80"),
        ("KAFKA_UI_PORT_80_TCP", "tcp://10.0.0.1:80"),
    ],
)
def test_variables_of_the_jvm_and_of_kubernetes_are_ignored(variable: str, value: str) -> None:
    read = read_environment({variable: value})
    assert (read.values, read.ignored) == ({}, [variable])


def test_port_that_is_a_number_is_taken_for_a_setting() -> None:
    assert read_environment({"KAFKA_PORT": "9092"}).values == {"port": "9092"}


@pytest.mark.parametrize(
    ("advertised", "listeners"),
    [
        ("PLAINTEXT://broker:9092", "PLAINTEXT://0.0.0.0:9092"),
        ("A://localhost:9092,B://[::1]:19092", "A://0.0.0.0:9092,B://0.0.0.0:19092"),
        ("A://:9092", "A://0.0.0.0:9092"),
    ],
)
def test_listeners_for_advertised_ones_are_on_every_interface(advertised: str, listeners: str) -> None:
    assert listeners_for(advertised) == listeners
