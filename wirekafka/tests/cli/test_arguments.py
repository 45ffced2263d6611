"""The configuration that `wirekafka serve` makes of its arguments and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog.testing

from wirekafka.cli.arguments import ArgumentError, Arguments, config_of, first_topics_of, published_address
from wirekafka.config import BrokerConfig
from wirekafka.server.listener import Address, PublishedFile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def listeners(config: BrokerConfig) -> list[str]:
    return [str(each) for each in config.listeners]


def test_environment_has_no_effect_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "7")
    assert config_of(Arguments(None)).integer("num.partitions") == 1


def test_environment_overrides_the_file_and_set_overrides_the_environment(file: Path) -> None:
    file.write_text("num.partitions=2\nmessage.max.bytes=2000\nlog.retention.hours=2\n")
    environment = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_MESSAGE_MAX_BYTES": "3000"}
    config = config_of(Arguments(file, settings=("message.max.bytes=4000",), environment=environment))
    values = [config.integer(name) for name in ("log.retention.hours", "num.partitions", "message.max.bytes")]
    assert values == [2, 3, 4000]


def test_defaults_with_the_environment_are_those_of_kafka() -> None:
    config = config_of(Arguments(None, environment={"PATH": "/bin"}))
    assert listeners(config) == ["PLAINTEXT://:9092"]
    assert config.log_dirs == ["/tmp/kafka-logs"]


def test_listeners_follow_the_advertised_ones_of_the_environment() -> None:
    environment = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:19092"}
    assert listeners(config_of(Arguments(None, environment=environment))) == ["PLAINTEXT://0.0.0.0:19092"]
    given = environment | {"KAFKA_LISTENERS": "PLAINTEXT://:29092"}
    assert listeners(config_of(Arguments(None, environment=given))) == ["PLAINTEXT://:29092"]
    assert listeners(config_of(Arguments(None, listen=(":39092",), environment=environment))) == ["PLAINTEXT://:39092"]


def test_errors_of_the_environment_name_the_variables_and_all_of_them(file: Path) -> None:
    file.write_text("num.io.threads=8\nlog.retention.ms=x\n")
    environment = {"KAFKA_NUM_PARTITONS": "3", "KAFKA_MESSAGE_MAX_BYTES": "y", "KAFKA_LOG_SEGMENT_BYTES": "z"}
    with pytest.raises(ArgumentError) as caught:
        config_of(Arguments(file, settings=("log.segment.bytes=none",), environment=environment))
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert any(line.startswith(f"{file}:2: ") for line in lines)
    assert any(line.startswith("KAFKA_NUM_PARTITONS: num.partitons: ") and "perhaps num.partitions" in line for line in lines)
    assert any(line.startswith("KAFKA_MESSAGE_MAX_BYTES: Invalid value y") for line in lines)
    assert any(line.startswith("Invalid value none") for line in lines), "the command line has replaced the variable"


def test_variables_without_effect_are_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        config_of(Arguments(None, environment={"KAFKA_HEAP_OPTS": "-Xmx1g", "KAFKA_PORT": "tcp://10.0.0.1:9092"}))
    [note] = [entry["variables"] for entry in logs if "variables" in entry]
    assert note == ["KAFKA_HEAP_OPTS", "KAFKA_PORT"]


def test_topics_of_a_member_of_a_cluster_are_refused() -> None:
    member = BrokerConfig({"zookeeper.connect": "zookeeper:2181", "broker.id": "1"})
    with pytest.raises(ArgumentError, match="with a client"):
        first_topics_of("orders", member)
    assert first_topics_of(None, member) == first_topics_of("", member) == []


def test_malformed_topics_are_refused_with_what_is_accepted() -> None:
    with pytest.raises(ArgumentError, match=r"--topics orders:x: accepted is NAME, NAME:PARTITIONS"):
        first_topics_of("payments,orders:x", BrokerConfig())


def test_published_address_may_be_in_a_file() -> None:
    assert isinstance(published_address("@/dev/shm/published"), PublishedFile)
    assert published_address("localhost:19092") == Address("localhost", 19092)
