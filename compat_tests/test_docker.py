"""The image is built and run as the README says; clients on the host and in other containers reach it; its data survives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import kafka
import pytest
from docker.errors import BuildError, ContainerError
from docker.types import Mount
from kafka import KafkaConsumer, KafkaProducer
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.image import DockerImage
from testcontainers.core.network import Network

import docker
from compat_tests.harness.docker_engine import why_no_engine
from compat_tests.harness.waiting import wait_until
from wirekafka.config import BrokerConfig
from wirekafka.testing import WirekafkaContainer

ROOT = Path(__file__).resolve().parent.parent
KAFKA_PYTHON = Path(kafka.__file__).resolve().parent
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")
VALUES = [f"record {number}".encode() for number in range(100)]

pytestmark = [pytest.mark.wirekafka_only("its image"), pytest.mark.xdist_group("docker"), pytest.mark.timeout(600)]

CLIENT = """
import sys
from kafka import KafkaConsumer
consumer = KafkaConsumer("records", bootstrap_servers=sys.argv[1], auto_offset_reset="earliest", consumer_timeout_ms=5000)
print(sum(1 for _ in consumer))
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """Returns the name of the image, built from the checkout with the package index that pip uses here.

    The label makes the image different from those of other runs. Two builds from one cache are one image otherwise, which cannot
    be removed while another run on the same engine uses it.
    """
    reason = why_no_engine()
    if reason is not None:
        pytest.skip(f"no Docker engine answers: {reason}")
    testcontainers_config.ryuk_disabled = True  # this fixture cleans up itself, and ryuk's image may not be available
    arguments = {name: os.environ[name] for name in PIP_SETTINGS if name in os.environ}
    name = f"wirekafka-test-{os.urandom(4).hex()}"
    with DockerImage(
        ROOT,
        tag=name,
        dockerfile_path="docker/Dockerfile",
        buildargs=arguments,
        network_mode="host",
        labels={"wirekafka.test": name},
    ) as built:
        yield name
        for left in built.get_docker_client().client.containers.list(all=True, filters={"ancestor": name}):
            left.remove(force=True, v=True)


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    """Returns a client of the engine; `image` has skipped the test if no engine answers."""
    with closing(docker.from_env()) as client:
        yield client


@pytest.fixture
def address() -> str:
    """Returns an address of this host on which nothing else listens: Linux has all of 127.0.0.0/8, so the port can stay 9092."""
    return f"127.{os.urandom(1)[0] or 1}.{os.urandom(1)[0]}.{os.getpid() % 254 + 1}"


def container(image: str, address: str | None = None) -> DockerContainer:
    """Yields a container of the image; its port is published on `address`, which is also its advertised address."""
    made = DockerContainer(image)
    if address is not None:
        made.ports["9092/tcp"] = (address, 9092)
        made.with_env("WIREKAFKA_PUBLISHED", f"{address}:9092")
    return made


def wait_until_ready(running: DockerContainer) -> None:
    """Waits for the log line that the broker is ready."""

    def has_said_so() -> bool:
        running.get_wrapped_container().reload()
        output, errors = running.get_logs()
        assert running.get_wrapped_container().status == "running", errors.decode()
        return b"ready" in output + errors

    wait_until(has_said_so, timeout_s=60, what="the broker in the container is ready")


def produce(bootstrap: str) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        for value in VALUES:
            producer.send("records", value)
        producer.flush(30)


def consume(bootstrap: str) -> list[bytes]:
    with KafkaConsumer("records", bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        values: list[bytes] = []
        wait_until(
            lambda: values.extend(_poll(consumer)) or len(values) >= len(VALUES), timeout_s=60, what="all records are read"
        )
        return values


def _poll(consumer: KafkaConsumer) -> list[bytes]:
    return [record.value for records in consumer.poll(timeout_ms=500).values() for record in records]


def test_broker_in_a_container_is_reached_from_the_host_and_from_another_container(image: str, address: str) -> None:
    with Network() as network, container(image, address).with_network(network).with_network_aliases("broker") as broker:
        wait_until_ready(broker)
        produce(f"{address}:9092")
        assert consume(f"{address}:9092") == VALUES
        client = DockerContainer(image, entrypoint=["python", "-c", CLIENT, "broker:9092"], network=network)
        client = client.with_volume_mapping(str(KAFKA_PYTHON), "/client/kafka", "ro").with_env("PYTHONPATH", "/client")
        with client as other:
            assert other.get_wrapped_container().wait(timeout=60)["StatusCode"] == 0, other.get_logs()[1].decode()
            assert other.get_logs()[0].split()[-1] == str(len(VALUES)).encode()


def test_client_of_a_published_port_is_told_localhost_unless_told_otherwise(image: str) -> None:
    with container(image).with_exposed_ports(9092) as broker:
        wait_until_ready(broker)
        port = broker.get_exposed_port(9092)
        consumer = KafkaConsumer(bootstrap_servers=f"127.0.0.1:{port}")
        (told,) = consumer._client.cluster.brokers()
        consumer.close()
        assert (told.host, told.port) == ("localhost", 9092)


def test_container_stops_within_two_seconds_and_its_volume_keeps_the_data(
    image: str, address: str, engine: docker.DockerClient
) -> None:
    volume = engine.volumes.create()
    try:
        with container(image, address).with_volume_mapping(volume.name, "/var/lib/wirekafka", "rw") as first:
            wait_until_ready(first)
            produce(f"{address}:9092")
            began_s = time.monotonic()
            first.get_wrapped_container().stop(timeout=10)
            assert time.monotonic() - began_s < 2
            assert first.get_wrapped_container().wait()["StatusCode"] == 0
        with container(image, address).with_volume_mapping(volume.name, "/var/lib/wirekafka", "rw") as second:
            wait_until_ready(second)
            assert consume(f"{address}:9092") == VALUES
    finally:
        volume.remove()


def test_broker_in_a_container_is_not_root_and_passes_its_health_check(image: str, engine: docker.DockerClient) -> None:
    with container(image) as broker:
        wait_until_ready(broker)
        assert broker.exec(["id", "-u"]).output.strip() == b"1000"
        check = engine.images.get(image).attrs["Config"]["Healthcheck"]["Test"]
        assert check[0] == "CMD"
        assert broker.exec(check[1:]).exit_code == 0


@pytest.mark.parametrize(
    "options",
    [{"user": "12345"}, {"user": "12345:23456", "mounts": [Mount("/var/lib/wirekafka", None, type="tmpfs")]}],
    ids=["volume", "memory"],
)
def test_broker_runs_as_any_user_on_a_read_only_file_system(image: str, address: str, options: dict[str, object]) -> None:
    with container(image, address).with_kwargs(read_only=True, **options) as broker:
        wait_until_ready(broker)
        assert broker.exec(["id", "-u"]).output.strip() == b"12345"
        assert broker.exec(["touch", "/tmp/file"]).exit_code != 0  # noqa: S108
        produce(f"{address}:9092")
        assert consume(f"{address}:9092") == VALUES


def test_settings_and_topics_of_the_environment_are_those_of_the_broker(
    image: str, address: str, engine: docker.DockerClient
) -> None:
    broker = container(image)
    broker.ports["19092/tcp"] = (address, 19092)
    broker.with_env("KAFKA_ADVERTISED_LISTENERS", f"PLAINTEXT://{address}:19092").with_env("KAFKA_NUM_PARTITIONS", "4")
    broker.with_env("WIREKAFKA_TOPICS", "orders:3,payments:1:compact,more")
    with broker:
        wait_until_ready(broker)
        with KafkaConsumer(bootstrap_servers=f"{address}:19092") as consumer:
            counts = {topic: len(consumer.partitions_for_topic(topic)) for topic in ("orders", "payments", "more")}
        assert counts == {"orders": 3, "payments": 1, "more": 4}
        check = engine.images.get(image).attrs["Config"]["Healthcheck"]["Test"]
        assert broker.exec(check[1:]).exit_code == 0


def test_unknown_setting_of_the_environment_ends_the_container_with_its_name(image: str, engine: docker.DockerClient) -> None:
    with pytest.raises(ContainerError) as caught:
        engine.containers.run(image, environment={"KAFKA_NUM_PARTITONS": "3"}, remove=True)
    assert caught.value.exit_status == 2
    assert b"KAFKA_NUM_PARTITONS: num.partitons: there is no such setting" in caught.value.stderr


def test_container_for_testcontainers_is_reached_at_the_port_that_the_engine_has_chosen(image: str) -> None:
    made = WirekafkaContainer(image, topics="orders:3", num_partitions=2, auto_create_topics_enable=True)
    with made.with_kwargs(read_only=True) as broker:
        produce(broker.bootstrap)
        assert sorted(consume(broker.bootstrap)) == sorted(VALUES)
        with KafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
            counts = [len(consumer.partitions_for_topic(topic)) for topic in ("orders", "records")]
            (told,) = consumer._client.cluster.brokers()
        assert counts == [3, 2]
        assert f"{told.host}:{told.port}" == broker.bootstrap


def test_container_for_testcontainers_shows_the_log_of_a_broker_that_ends(image: str) -> None:
    with pytest.raises(RuntimeError, match=r"KAFKA_NUM_PARTITONS: num.partitons: there is no such setting"):
        WirekafkaContainer(image, num_partitons=3).start()


EXAMPLES = ROOT / "examples" / "testcontainers"
PAGE = (ROOT / "docs" / "docker.md").read_text()


@dataclass(frozen=True)
class Example:
    """A program in another language that starts the image, prints the address of the broker, and stops at the end of its input.

    Attributes:
        needs: the programs without which the test is skipped.
        fetch: fetches packages from a registry; the test is skipped if that fails.
        build: makes the program; empty if it needs not be made.
        run: runs the program.
    """

    source: str
    needs: tuple[str, ...]
    fetch: tuple[str, ...]
    build: tuple[str, ...]
    run: tuple[str, ...]


COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
EXAMPLE_OF_LANGUAGE = {
    "java": Example(
        "Example.java",
        ("mvn", "java", "javac"),
        ("mvn", "-q", "-B", COPY_JARS, "-DincludeScope=runtime", "-DoutputDirectory=jars"),
        (),
        ("java", "-cp", "jars/*", "Example.java"),
    ),
    "go": Example("main.go", ("go",), ("go", "mod", "download"), ("go", "build", "-o", "example", "."), ("./example",)),
    "js": Example("example.js", ("node", "npm"), ("npm", "install", "--no-audit", "--no-fund"), (), ("node", "example.js")),
}
"""By the language that the page names at the head of its code."""


@pytest.mark.long("the steps are those of WirekafkaContainer above; Maven, Go or npm fetch and build packages")
@pytest.mark.parametrize("language", EXAMPLE_OF_LANGUAGE)
def test_container_for_testcontainers_of_another_language_is_reached(image: str, language: str, tmp_path: Path) -> None:
    example = EXAMPLE_OF_LANGUAGE[language]
    missing = [name for name in example.needs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    project = tmp_path / "project"
    [source] = EXAMPLES.glob(f"*/{example.source}")
    shutil.copytree(source.parent, project, ignore=shutil.ignore_patterns("node_modules", "jars"))
    (project / example.source).write_text(source.read_text().replace('"wirekafka"', f'"{image}"'))
    # The test removes the containers itself, as for Python.
    environment = os.environ | {"TESTCONTAINERS_RYUK_DISABLED": "true", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    fetched = subprocess.run(
        example.fetch, cwd=project, env=environment, capture_output=True, text=True, timeout=580, check=False
    )
    if fetched.returncode != 0:
        pytest.skip(f"the packages cannot be fetched: {fetched.stderr.strip()[-300:]}")
    if example.build:
        subprocess.run(example.build, cwd=project, env=environment, check=True, timeout=580)
    with (tmp_path / "errors").open("w") as errors:
        command = subprocess.Popen(
            example.run, cwd=project, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    with command as running:
        try:
            assert running.stdout is not None
            bootstrap = running.stdout.readline().strip()
            assert bootstrap, (tmp_path / "errors").read_text()
            with KafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                assert len(consumer.partitions_for_topic("orders")) == 3
                (told,) = consumer._client.cluster.brokers()
            assert f"{told.host}:{told.port}" == bootstrap
            produce(bootstrap)
            running.communicate(timeout=120)
            assert running.returncode == 0, (tmp_path / "errors").read_text()
        finally:
            running.kill()


@pytest.mark.parametrize("language", EXAMPLE_OF_LANGUAGE)
def test_code_of_the_page_is_in_the_example(language: str) -> None:
    section = PAGE.partition("## Testcontainers\n")[2].partition("\n## ")[0]
    [code] = re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    [source] = EXAMPLES.glob(f"*/{EXAMPLE_OF_LANGUAGE[language].source}")
    assert textwrap.dedent(code) in textwrap.dedent(re.sub(r"^ {8}", "", source.read_text(), flags=re.MULTILINE))


COMPOSE_FILE = ROOT / "docker" / "compose.yaml"


class Compose:
    """The services of a compose file, under a project name of their own."""

    def __init__(self, file: Path, address: str, **images: str) -> None:
        self.project = f"wirekafka-test-{os.urandom(4).hex()}"
        self._file = file
        self._environment = os.environ | images | {"KAFKA_BIND": address, "KAFKA_HOST": address}

    def run(self, *arguments: str, timeout_s: float = 300) -> str:
        """Runs `docker compose` with the arguments; returns its standard output."""
        command = ["docker", "compose", "--project-name", self.project, "--file", str(self._file), *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def composed(file: Path, address: str, **images: str) -> Iterator[Compose]:
    """Runs the services of a compose file, and removes all of them at the end."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed")
    made = Compose(file, address, **images)
    try:
        made.run("up", "--no-build", "--detach", "--wait")
        yield made
    finally:
        made.run("down", "--volumes", "--timeout", "5")


@contextmanager
def built(path: Path, dockerfile: str, needs: str) -> Iterator[str]:
    """Builds an image from the checkout, and removes it at the end; returns its name.

    The test is skipped if the image cannot be built.
    """
    name = f"wirekafka-test-{os.urandom(4).hex()}"
    arguments = {name: os.environ[name] for name in PIP_SETTINGS if name in os.environ}
    made = DockerImage(
        path,
        tag=name,
        dockerfile_path=dockerfile,
        buildargs=arguments,
        network_mode="host",
        labels={"wirekafka.test": name},
    )
    with closing(made.get_docker_client().client):
        try:
            made.build()
        except BuildError as error:
            pytest.skip(f"{dockerfile} cannot be built, which needs {needs}: {error}")
        yield name
        made.remove()


@pytest.fixture
def compose(image: str, address: str) -> Iterator[Compose]:
    """Runs the cluster of docker/compose.yaml."""
    with (
        built(ROOT / "docker", "zookeeper.Dockerfile", "a mirror of Debian") as zookeeper_image,
        composed(COMPOSE_FILE, address, WIREKAFKA_IMAGE=image, ZOOKEEPER_IMAGE=zookeeper_image) as cluster,
    ):
        yield cluster


def read_in_container(image: str, bootstrap: str, network: str) -> int:
    """Returns the number of records that a client in a container of the network reads."""
    client = DockerContainer(image, env={"PYTHONPATH": "/client"}, volumes=[(str(KAFKA_PYTHON), "/client/kafka", "ro")])
    with client.with_kwargs(entrypoint=["python", "-c", CLIENT, bootstrap], network=network) as running:
        assert running.get_wrapped_container().wait(timeout=120)["StatusCode"] == 0, running.get_logs()[1].decode()
        return int(running.get_logs()[0].split()[-1])


def test_cluster_of_compose_is_reached_from_the_host_and_from_containers_and_survives_a_broker(
    compose: Compose, image: str, address: str
) -> None:
    bootstrap = ",".join(f"{address}:{port}" for port in (9092, 9093, 9094))

    def describe() -> str:
        command = "wirekafka cluster describe --bootstrap-server kafka1:19092"
        return compose.run("exec", "--no-TTY", "kafka1", "sh", "-c", f"{command} || true")

    wait_until(lambda: "3 brokers, controller" in describe(), timeout_s=120, what="the cluster has three brokers", poll_s=1)
    produce(bootstrap)
    compose.run("kill", "kafka2")
    assert consume(bootstrap) == VALUES
    # After the client on the host, which has waited for the election of a leader: this client waits 5 s only.
    inside = "kafka1:19092,kafka2:19092,kafka3:19092"
    assert read_in_container(image, inside, f"{compose.project}_default") == len(VALUES)
    compose.run("start", "kafka2")
    wait_until(lambda: "all in sync" in describe(), timeout_s=120, what="all replicas are in sync again", poll_s=1)


SPARK_COMPOSE_FILE = ROOT / "docker" / "spark.compose.yaml"


@pytest.mark.long("the pipeline runs without containers in compat_tests/spark; the image takes minutes to build")
@pytest.mark.timeout(1500)
def test_spark_job_of_compose_reads_each_order_once_and_is_shown_in_a_browser(image: str, address: str) -> None:
    def rows(compose: Compose) -> int:
        return sum(map(int, re.findall(r'"records": (\d+)', compose.run("logs", "spark"))))

    def shown() -> str:
        try:
            with urlopen(f"http://{address}:4040/api/v1/applications", timeout=10) as page:
                text: str = page.read().decode()
                return text
        except OSError as error:
            return str(error)

    with (
        built(ROOT, "docker/spark.Dockerfile", "Debian, PyPI and Maven Central") as spark_image,
        composed(SPARK_COMPOSE_FILE, address, WIREKAFKA_IMAGE=image, WIREKAFKA_SPARK_IMAGE=spark_image) as compose,
    ):
        with KafkaProducer(bootstrap_servers=f"{address}:9092", acks="all") as producer:
            for number in range(1000):
                producer.send("orders", b'{"id": %d, "customer": "ann", "price": 0.25}' % number)
            producer.flush(30)
        wait_until(lambda: rows(compose) >= 1000, timeout_s=300, what="the job has read all orders", poll_s=1)
        wait_until(lambda: "wirekafka ingest" in shown(), timeout_s=60, what="Spark's pages name the job", poll_s=1)
        compose.run("stop", "spark")
        arguments = ("check", "/lake", "--bootstrap=kafka:9092", "--jars=/opt/jars", "--master=local[2]")
        assert "proven: each record once" in compose.run("run", "--rm", "--no-TTY", "spark", *arguments)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_settings_of_compose_are_those_of_a_member_with_two_listeners(number: int) -> None:
    text = COMPOSE_FILE.read_text().replace("${KAFKA_HOST:-localhost}", "localhost")
    service = text.partition(f"  kafka{number}:\n")[2].partition("\n\n")[0]
    overrides = dict(each.split("=", 1) for each in re.findall(r"--set=(\S+)", service))
    config = BrokerConfig.load(COMPOSE_FILE.with_name("compose.server.properties"), overrides)
    assert config.node_id == number
    assert config.rack == f"rack{number}"
    assert {name: str(each) for name, each in config.advertised_listeners.items()} == {
        "INTERNAL": f"INTERNAL://kafka{number}:19092",
        "EXTERNAL": f"EXTERNAL://localhost:{9091 + number}",
    }
    assert config.inter_broker_listener == "INTERNAL"
    assert f"}}:{9091 + number}:9092" in service


@pytest.mark.parametrize("host", ["unix:///{folder}/absent.sock", "tcp://127.0.0.1:1"])
def test_look_for_an_engine_that_is_not_there_leaves_nothing_open(tmp_path: Path, host: str) -> None:
    program = "from compat_tests.harness.docker_engine import why_no_engine; print(why_no_engine())"
    look = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        env=os.environ | {"DOCKER_HOST": host.format(folder=tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert look.stdout.strip() not in ("", "None")
    assert look.stderr == ""
