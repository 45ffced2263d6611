"""The start, the stop and the restart of a broker from the operator's view."""

from __future__ import annotations

import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, Agent, Client, Member, Record
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from wirekafka.api.metadata import MetadataRequest

Agents = Callable[[Client], Agent]

ours = pytest.mark.wirekafka_only("is about the command `wirekafka`")


def numbered(count: int, first: int = 0) -> list[Record]:
    return [Record(b"k%d" % (n % 5), b"v%d" % n, timestamp_ms=1_700_000_000_000 + n) for n in range(first, first + count)]


def serve(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs `wirekafka serve` until it ends by itself."""
    command = [sys.executable, "-m", "wirekafka", "serve", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30, check=False)


@ours
def test_the_ready_line_names_version_address_and_data_and_is_true(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    version = subprocess.run([sys.executable, "-m", "wirekafka", "--version"], capture_output=True, text=True, check=True).stdout
    assert broker.process is not None
    assert broker.process.stdout is not None
    assert select.select([broker.process.stdout], [], [], 0.1)[0] == [], "it is the only line"
    assert re.search(r"\d+\.\d+", version)
    assert version.split()[-1] in broker.ready_line
    assert broker.bootstrap in broker.ready_line
    assert str(broker.data_dir) in broker.ready_line
    with RawConnection(broker.address) as connection:
        assert [(node.host, node.port) for node in connection.ask(MetadataRequest(), 9).brokers] == [broker.address]


@ours
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_within_two_seconds_with_clients_connected(
    make_broker: Callable[..., Broker], agent: Agents, join: Callable[..., Member], number: signal.Signals
) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, "busy", 6)
    agent(KAFKA_PYTHON).produce(broker.bootstrap, "busy", numbered(1000))
    members = [join(client, "readers", "busy", bootstrap=broker.bootstrap) for client in (CONFLUENT, AIOKAFKA)]

    def have_read() -> bool:
        for member in members:
            member.refresh()
        return sum(len(member.records) for member in members) >= 1000

    wait_until(have_read, timeout_s=60, what="the members have read and wait for more")
    idle = [RawConnection(broker.address) for _ in range(50)]
    started = time.monotonic()
    assert broker.terminate(number=number) == 0
    assert time.monotonic() - started < 2.0
    assert "Traceback" not in broker.log_text()
    for connection in idle:
        assert connection.is_closed_by_broker()
        connection.socket.close()
    before = len(broker.log_text())
    broker.start()
    assert "recovered=0" in broker.log_text()[before:], "it was closed cleanly"


@ours
def test_a_second_broker_on_the_same_data_refuses_and_says_who_has_it(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    broker = make_broker()
    second = serve("--listen", "127.0.0.1:0", "--data-dir", str(broker.data_dir), cwd=tmp_path)
    assert second.returncode == 1
    assert str(broker.data_dir) in second.stderr
    assert str(broker.pid) in second.stderr
    assert second.stdout == ""
    with RawConnection(broker.address) as connection:
        assert connection.ask(MetadataRequest(), 9).brokers
    broker.kill()
    broker.start()


@ours
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "no.such.setting=1"), ["no.such.setting", "there is no such setting"]),
        (("--set", "num.partitions=many"), ["num.partitions", "many", "integer"]),
        (("--set", "num.partitions=0"), ["num.partitions", "0", "at least 1"]),
        (("--set", "log.cleanup.policy=burn"), ["log.cleanup.policy", "burn", "compact"]),
        (("--set", "auto.create.topics.enable=perhaps"), ["auto.create.topics.enable", "perhaps", "true or false"]),
        (("--set", "num.partitions"), ["num.partitions", "KEY=VALUE"]),
        (("--set", "wirekafka.api.versions.max=Fletch:3"), ["wirekafka.api.versions.max", "Fletch", "Fetch"]),
        (("--listen", "nowhere"), ["--listen", "nowhere", "HOST:PORT"]),
        (("--advertise", "here"), ["--advertise", "here", "HOST:PORT"]),
        (("missing.properties",), ["missing.properties"]),
        (("--no-such-option",), ["--no-such-option"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_a_wrong_argument_is_one_clear_error_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], told: list[str]) -> None:
    ended = serve("--data-dir", str(tmp_path / "data"), *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert all(part in ended.stderr for part in told), ended.stderr
    assert "Traceback" not in ended.stderr


@ours
def test_a_wrong_line_of_server_properties_is_told_as_well(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("num.partitions=3\nmessage.max.bytes=lots\n")
    ended = serve("server.properties", "--data-dir", str(tmp_path / "data"), cwd=tmp_path)
    assert ended.returncode == 2
    assert all(part in ended.stderr for part in ("message.max.bytes", "lots", "integer"))


@ours
def test_an_address_in_use_is_told(make_broker: Callable[..., Broker], tmp_path: Path) -> None:
    broker = make_broker()
    ended = serve("--listen", broker.bootstrap, "--data-dir", str(tmp_path / "data"), cwd=tmp_path)
    assert ended.returncode == 1
    assert broker.bootstrap in ended.stderr
    assert "Traceback" not in ended.stderr


@ours
def test_kafkas_own_server_properties_works(tmp_path: Path) -> None:
    """The settings of config/server.properties as Kafka 4 ships it, on ports that the kernel chooses."""
    (tmp_path / "server.properties").write_text(
        f"""\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={tmp_path / "logs"}
num.partitions=3
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
    )
    command = [sys.executable, "-m", "wirekafka", "serve", "server.properties"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert found is not None, line
            assert str(tmp_path / "logs") in line
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{found[1]}"})
            assert list(admin.list_topics(timeout=60).brokers) == [1]
        finally:
            process.terminate()


def test_everything_survives_a_restart(make_broker: Callable[..., Broker], agent: Agents) -> None:
    broker = make_broker()
    create_topic(broker.bootstrap, "kept", 3, {"retention.ms": "123456789", "cleanup.policy": "delete"})
    create_topic(broker.bootstrap, "deleted", 1)
    written = numbered(200)
    agent(CONFLUENT).produce(broker.bootstrap, "kept", written, codec="snappy")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["deleted"])["deleted"].result(60)
    with RawConnection(broker.address) as connection:
        before = connection.ask(MetadataRequest(), 12)
    broker.terminate()
    broker.start()
    with RawConnection(broker.address) as connection:
        after = connection.ask(MetadataRequest(), 12)
    assert after.cluster_id == before.cluster_id
    assert [(topic.name, topic.topic_id, len(topic.partitions)) for topic in after.topics] == [
        (topic.name, topic.topic_id, len(topic.partitions)) for topic in before.topics
    ]
    assert agent(AIOKAFKA).read(broker.bootstrap, "kept", 200) == written
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    assert admin.describe_configs([resource])[resource].result(60)["retention.ms"].value == "123456789"
    more = numbered(50, 200)
    agent(KAFKA_PYTHON).produce(broker.bootstrap, "kept", more)
    assert agent(AIOKAFKA).read(broker.bootstrap, "kept", 250) == written + more


@ours
def test_a_client_is_told_the_address_by_which_it_came(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wirekafka", "serve", "--listen", "0.0.0.0:0", "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)\b", process.stdout.readline())
            assert found is not None
            port = int(found[1])
            for host in ("127.0.0.1", "127.0.0.2"):
                with RawConnection((host, port)) as connection:
                    assert [(node.host, node.port) for node in connection.ask(MetadataRequest(), 9).brokers] == [(host, port)]
        finally:
            process.terminate()
