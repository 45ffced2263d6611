"""The commands of docs/cli.md against Apache Kafka with TLS and SASL, with the file of properties that the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.broker import ApacheKafka, random_loopback_host, running
from compat_tests.harness.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "cli.md").read_text()
PROPERTIES = re.findall(r"^```properties\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
ADDRESS = "broker.example.com:9093"
AUTHORITY = "/etc/ssl/certs/ca.pem"
MODULES = "org.apache.kafka.common.security"

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("its commands, with a broker of Apache Kafka"),
    pytest.mark.timeout(300),
]


class SecuredKafka(ApacheKafka):
    """Apache Kafka with a listener of each security protocol, each on a host of its own.

    The user ada has the password `secret`: by SCRAM-SHA-512 on the listener SASL_SSL, and by PLAIN on SASL_PLAINTEXT.

    Attributes:
        hosts: the host of each listener with TLS or SASL.
        certificate: the certificate of the broker, which is its own authority.
    """

    format_arguments = ("--add-scram", "SCRAM-SHA-512=[name=ada,password=secret]")

    def __init__(self, directory: Path) -> None:
        self.hosts = {name: random_loopback_host() for name in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")}
        self.other_listeners = tuple(f"{name}://{host}:0" for name, host in self.hosts.items())
        self.certificate = directory / "certificate.pem"
        super().__init__(
            directory,
            {
                "listener.security.protocol.map": f"{','.join(f'{name}:{name}' for name in ('PLAINTEXT', *self.hosts))},"
                "CONTROLLER:PLAINTEXT",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(directory / "broker.pem"),
                "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
                "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required "
                'user_ada="secret";',
            },
        )

    def start(self) -> None:
        self._certify()
        super().start()

    def _certify(self) -> None:
        """Writes the certificate, and with its key the file that the broker reads."""
        key = self.directory / "key.pem"
        names = ",".join(f"IP:{host}" for host in self.hosts.values())
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=broker"]
        command += ["-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        (self.directory / "broker.pem").write_text(key.read_text() + self.certificate.read_text())

    def address_of(self, listener: str) -> str:
        """Returns HOST:PORT of a listener with TLS or SASL."""
        place = re.compile(rf"Awaiting socket connections on ({re.escape(self.hosts[listener])}:\d+)")
        return wait_until(lambda: place.findall(self.log_text()), timeout_s=60, what=f"{listener} listens")[0]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    reason = jars.missing_program() or ("needs openssl" if shutil.which("openssl") is None else None)
    if reason is not None:
        skip_or_fail(reason)
    with running(SecuredKafka(tmp_path_factory.mktemp("secured"))) as broker:
        assert isinstance(broker, SecuredKafka)
        yield broker


def run(*arguments: str, code: int = 0, text: str | None = None) -> str:
    """Runs a command of wirekafka; returns what it prints."""
    command = [sys.executable, "-m", "wirekafka", *arguments, "--timeout", "60"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_command_takes_the_file_that_the_page_shows(secured: SecuredKafka, tmp_path: Path) -> None:
    address = secured.address_of("SASL_SSL")
    file = tmp_path / "client.properties"
    file.write_text(PROPERTIES.replace(ADDRESS, address).replace(AUTHORITY, str(secured.certificate)))
    config = f"--config={file}"

    run("topic", "create", "orders", "--partitions", "2", config)
    assert ["orders", "2", "1", "ok"] in [line.split() for line in run("topic", "list", config).splitlines()]
    run("produce", "orders", "--quiet", config, text="one\ntwo\n")
    assert sorted(run("consume", "orders", config).splitlines()) == ["one", "two"]
    run("group", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute", config)
    assert "orders" in run("group", "describe", "billing", config)
    assert "Everything is fine." in run("doctor", address, config)


@pytest.mark.long("the file above has properties of the same kinds")
@pytest.mark.parametrize(
    ("listener", "settings"),
    [
        ("SSL", {}),
        ("SASL_PLAINTEXT", {"sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "secret"}),
    ],
)
def test_doctor_and_topics_take_properties_of_the_command_line(
    secured: SecuredKafka, listener: str, settings: dict[str, str]
) -> None:
    settings = {"security.protocol": listener, "ssl.ca.location": str(secured.certificate), **settings}
    properties = [f"-X{name}={value}" for name, value in settings.items()]
    address = secured.address_of(listener)
    assert "Everything is fine." in run("doctor", address, *properties)
    run("topic", "list", "-b", address, *properties)


@pytest.mark.long("the reasons are those of librdkafka; the unit tests show how a command prints one")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"sasl.password": "wrong"}, "Authentication failed"),
        ({"security.protocol": "PLAINTEXT"}, "TLS"),
        ({"ssl.ca.location": "/etc/ssl/certs/ca-certificates.crt"}, "certificate verify failed"),
    ],
    ids=["password", "protocol", "authority"],
)
def test_wrong_property_is_told_in_one_line(secured: SecuredKafka, tmp_path: Path, settings: dict[str, str], reason: str) -> None:
    file = tmp_path / "client.properties"
    address = secured.address_of("SASL_SSL")
    file.write_text(PROPERTIES.replace(ADDRESS, address).replace(AUTHORITY, str(secured.certificate)))
    properties = [f"-X{name}={value}" for name, value in settings.items()]
    printed = run("topic", "list", f"--config={file}", *properties, code=1)
    assert reason in printed
    assert len(printed.splitlines()) == 1
    assert reason in " ".join(run("doctor", address, f"--config={file}", *properties, code=2).split())
