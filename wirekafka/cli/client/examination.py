"""The checks of `wirekafka doctor`, in the order in which a client depends on them.

How it works: each check adds its results to the report. `CannotLookError` ends the examination, because the checks that follow
would say the same. Sockets look at addresses and protocols; a client on librdkafka looks at the cluster, with the user's TLS
and SASL.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wirekafka.cli.client.connection import Connection, NoBrokerError, library, partition_names, sentence
from wirekafka.cli.client.errors import ClientCommandError
from wirekafka.cli.client.probe import Found, Speaks, probe, resolve
from wirekafka.cli.cluster.description import counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

OK, FINDING, SKIPPED = "ok", "finding", "skipped"
CORE_APIS = {0: "Produce", 1: "Fetch", 2: "ListOffsets", 3: "Metadata", 18: "ApiVersions"}
SKEW_SECONDS = 5.0
"""The difference of the clocks from which it is a finding."""
TOPICS_AT_ONCE = 200
MOST_NAMES = 5
WAIT_SECONDS = 0.1
APPEND_TIME = 2
"""librdkafka's RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME."""


class CannotLookError(Exception):
    """The examination cannot go on; the report says why."""


@dataclass(slots=True)
class Result:
    """What a check has found.

    Attributes:
        remedy: what the user can do; empty unless it is a finding.
    """

    check: str
    state: str
    detail: str
    remedy: str = ""


@dataclass(slots=True)
class Report:
    """The results so far."""

    results: list[Result] = field(default_factory=list)
    could_look: bool = True

    def ok(self, check: str, detail: str) -> None:
        """Adds that a check is fine."""
        self.results.append(Result(check, OK, detail))

    def skipped(self, check: str, detail: str) -> None:
        """Adds that a check was not made."""
        self.results.append(Result(check, SKIPPED, detail))

    def finding(self, check: str, detail: str, remedy: str) -> None:
        """Adds a finding."""
        self.results.append(Result(check, FINDING, " ".join(detail.split()), remedy))

    @property
    def findings(self) -> list[Result]:
        """The findings."""
        return [result for result in self.results if result.state == FINDING]


@dataclass(slots=True)
class Patient:
    """What is examined.

    Attributes:
        topic: the topic for the record; None for a temporary one.
        writes: whether a record is written at all.
    """

    host: str
    port: int
    connection: Connection
    topic: str | None = None
    writes: bool = True

    @property
    def protocol(self) -> str:
        """The security.protocol of the client."""
        return self.connection.settings.get("security.protocol", "plaintext").lower()


def examine(patient: Patient) -> Report:
    """Makes all checks, as far as one can look."""
    report = Report()
    try:
        _check_address(patient, report)
        _check_protocol(patient, report)
        metadata = _check_metadata(patient, report)
    except CannotLookError:
        report.could_look = False
        return report
    has_reached_one = _check_advertised(patient, metadata, report)
    _check_topics(patient, metadata, report)
    if has_reached_one:
        _check_record(patient, metadata, report)
    else:
        report.skipped("record", "no advertised address answers")
    return report


# The address


def _check_address(patient: Patient, report: Report) -> None:
    try:
        addresses = resolve(patient.host, patient.port)
    except (OSError, UnicodeError) as error:
        report.finding("name", f"{patient.host} cannot be resolved: {error}", "correct the name, or ask its DNS server")
        raise CannotLookError from None
    report.ok("name", f"{patient.host} is {', '.join(addresses)}")


def _check_protocol(patient: Patient, report: Report) -> None:
    where = f"{patient.host}:{patient.port}"
    try:
        found = probe(patient.host, patient.port, patient.connection.timeout_s)
    except (OSError, UnicodeError) as error:
        remedy = "start the broker, correct the port, or open it in the firewall; a broker in a container needs a published port"
        report.finding("connection", f"{where} does not accept connections: {error}", remedy)
        raise CannotLookError from None
    report.ok("connection", f"{where} accepts connections")
    wrong = _wrong_protocol(patient, found)
    if wrong is not None:
        report.finding("protocol", *wrong)
        raise CannotLookError
    if found.speaks is Speaks.TLS:
        report.ok("protocol", "it speaks TLS")
        return
    report.ok("protocol", "it speaks Kafka")
    _check_versions(found, report)


def _wrong_protocol(patient: Patient, found: Found) -> tuple[str, str] | None:
    """Returns what is wrong with the protocol, and the remedy; None if it is right."""
    wants_tls = patient.protocol in ("ssl", "sasl_ssl")
    match found.speaks:
        case Speaks.KAFKA if wants_tls:
            return "the listener has no TLS", "leave out security.protocol, or correct the port"
        case Speaks.TLS if not wants_tls:
            return "it speaks TLS", "use -X security.protocol=SSL or SASL_SSL, with -X ssl.ca.location=FILE for a CA of your own"
        case Speaks.HTTP:
            remedy = "correct the port: this is a web server, such as a REST proxy, a schema registry or a console"
            return "it speaks HTTP, not Kafka", remedy
        case Speaks.NOTHING:
            remedy = (
                "look at the log of the broker, or correct the port; a proxy may accept connections for a broker that is down"
            )
            return "it does not answer ApiVersions", remedy
        case Speaks.SOMETHING_ELSE:
            remedy = "correct the port: a broker before 0.10, the listener of a controller or of ZooKeeper, or another server"
            return "it does not speak Kafka to clients", remedy
    return None


def _check_versions(found: Found, report: Report) -> None:
    missing = [name for key, name in CORE_APIS.items() if key not in found.versions]
    if missing:
        remedy = "correct the port: the listener of a KRaft controller is not for clients"
        report.finding("versions", f"it does not serve {', '.join(missing)}", remedy)
        return
    shown = ", ".join(f"{CORE_APIS[key]} {first} to {last}" for key in (0, 1, 3) for first, last in [found.versions[key]])
    report.ok("versions", f"{len(found.versions)} APIs: {shown}")


# The cluster


def _check_metadata(patient: Patient, report: Report) -> Any:
    try:
        metadata = patient.connection.metadata()
    except NoBrokerError as error:
        remedy = "look at the log of the broker"
        if not patient.protocol.startswith("sasl"):
            remedy = "if the listener has SASL, use -X security.protocol=SASL_PLAINTEXT or SASL_SSL, sasl.mechanism, "
            remedy += "sasl.username and sasl.password; otherwise look at the log of the broker"
        report.finding("metadata", f"no broker answers Metadata ({error.reason})", remedy)
        raise CannotLookError from None
    report.ok(
        "metadata",
        f"cluster {metadata.cluster_id}: {counted(len(metadata.brokers), 'broker')}, {counted(len(metadata.topics), 'topic')}",
    )
    return metadata


def _check_advertised(patient: Patient, metadata: Any, report: Report) -> bool:
    """Returns whether one of the advertised addresses answers."""
    has_reached_one = False
    for broker in metadata.brokers.values():
        trouble = _trouble_of_address(patient, broker.host, broker.port)
        where = f"broker {broker.id} is advertised as {broker.host}:{broker.port}"
        if trouble is None:
            has_reached_one = True
            report.ok("advertised", f"{where}, which answers")
        else:
            remedy = (
                "set advertised.listeners of that broker to an address that clients resolve and reach; it may need a listener "
            )
            remedy += "for clients inside and one for clients outside of its container or network"
            report.finding("advertised", f"{where}, {trouble}", remedy)
    return has_reached_one


def _trouble_of_address(patient: Patient, host: str, port: int) -> str | None:
    """Returns what keeps clients from an advertised address; None if nothing does."""
    try:
        addresses = resolve(host, port)
    except (OSError, UnicodeError):
        return "a name that this machine cannot resolve"
    if not any(map(_is_local, resolve(patient.host, patient.port))) and all(map(_is_local, addresses)):
        return "which is the machine of each client itself"
    try:
        found = probe(host, port, patient.connection.timeout_s)
    except (OSError, UnicodeError) as error:
        return f"which does not accept connections ({error})"
    wrong = _wrong_protocol(patient, found)
    return None if wrong is None else f"but {wrong[0]}"


def _is_local(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    return found.is_loopback or found.is_unspecified


def _check_topics(patient: Patient, metadata: Any, report: Report) -> None:
    names = partition_names(metadata, sorted(metadata.topics))
    parts = {name: metadata.topics[name[0]].partitions[name[1]] for name in names}
    try:
        least = _min_isr(patient.connection, sorted(metadata.topics))
    except ClientCommandError as error:
        least = {}
        report.skipped("topics", f"min.insync.replicas is unknown: {error}")
    offline = [name for name, part in parts.items() if part.leader < 0]
    # A min.insync.replicas above the number of replicas counts as that number.
    under_min = [
        name
        for name, part in parts.items()
        if name not in offline and len(part.isrs) < min(least.get(name[0], 0), len(part.replicas))
    ]
    under = [name for name, part in parts.items() if name not in (*offline, *under_min) and len(part.isrs) < len(part.replicas)]
    lacking = "start the brokers that are down: `wirekafka cluster describe` names them"
    troubles = (
        (offline, "offline", f"{lacking}; until then nobody can read or write them"),
        (under_min, "under min.insync.replicas", f"{lacking}, or lower min.insync.replicas; until then brokers refuse acks=all"),
        (under, "under-replicated", lacking),
    )
    for found, state, remedy in troubles:
        if found:
            report.finding("topics", f"{counted(len(found), 'partition')} {state}: {_listed(found)}", remedy)
    if not (offline or under_min or under):
        report.ok("topics", f"{counted(len(parts), 'partition')} in sync")


def _min_isr(connection: Connection, topics: list[str]) -> dict[str, int]:
    """Returns min.insync.replicas by topic.

    Raises:
        ClientCommandError: the brokers do not tell it.
    """
    admin = library().admin
    least = {}
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        resources = [admin.ConfigResource(admin.RESOURCE_TOPIC, topic) for topic in topics[start : start + TOPICS_AT_ONCE]]
        for resource, future in connection.ask(connection.admin.describe_configs, resources).items():
            entry = connection.result(future, f"topic {resource.name}").get("min.insync.replicas")
            if entry is not None and entry.value is not None:
                least[resource.name] = int(entry.value)
    return least


def _listed(names: Iterable[tuple[str, int]]) -> str:
    texts = [f"{topic}-{partition}" for topic, partition in names]
    return ", ".join(texts[:MOST_NAMES]) + (f" and {len(texts) - MOST_NAMES} more" if len(texts) > MOST_NAMES else "")


# A record


def _check_record(patient: Patient, metadata: Any, report: Report) -> None:
    if not patient.writes:
        report.skipped("record", "left out by --no-write")
        return
    try:
        if patient.topic is not None:
            if patient.topic not in metadata.topics:
                raise ClientCommandError(f"topic {patient.topic} does not exist")
            _send_and_read(patient, patient.topic, report)
        else:
            _with_temporary_topic(patient, report)
    except ClientCommandError as error:
        remedy = "mend the other findings first; a user who may not create topics names one to write to by --topic"
        report.finding("record", str(error), remedy)


def _with_temporary_topic(patient: Patient, report: Report) -> None:
    connection = patient.connection
    name = f"wirekafka-doctor-{secrets.token_hex(4)}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    new_topic = library().admin.NewTopic(name, num_partitions=1, replication_factor=-1, config=settings)
    [future] = connection.ask(connection.admin.create_topics, [new_topic]).values()
    connection.result(future, f"the temporary topic {name}")
    try:
        _send_and_read(patient, name, report)
    finally:
        [future] = connection.ask(connection.admin.delete_topics, [name]).values()
        connection.result(future, f"the temporary topic {name} was created, but not deleted")


def _send_and_read(patient: Patient, topic: str, report: Report) -> None:
    """Writes a record, reads it, and compares the clocks.

    Raises:
        ClientCommandError: one of them fails.
    """
    value = secrets.token_hex(16).encode()
    sent_at = time.time()
    sent = _send(patient.connection, topic, value)
    acknowledged_at = time.time()
    read = _read(patient.connection, sent)
    if read.value() != value:
        remedy = "look at what stands between this machine and the broker"
        report.finding("record", f"{topic}-{sent.partition()} has another record at offset {sent.offset()}", remedy)
        return
    total_ms = round((time.time() - sent_at) * 1000)
    written_ms = round((acknowledged_at - sent_at) * 1000)
    report.ok("record", f"written in {written_ms} ms, written and read in {total_ms} ms")
    _check_clock(read, sent_at, acknowledged_at, report)


def _send(connection: Connection, topic: str, value: bytes) -> Message:
    """Returns a record that was written.

    Raises:
        ClientCommandError: it was not.
    """
    acknowledged: list[tuple[Any, Message]] = []
    milliseconds = round(connection.timeout_s * 1000)
    producer = connection.producer(
        message_timeout_ms=milliseconds, topic_metadata_propagation_max_ms=milliseconds, linger_ms=0, acks="all"
    )
    note: Callable[[Any, Message], None] = lambda error, message: acknowledged.append((error, message))  # noqa: E731
    producer.produce(topic, value, b"wirekafka-doctor", on_delivery=note)
    while not acknowledged:
        producer.flush(WAIT_SECONDS)
    [(error, message)] = acknowledged
    if error is not None:
        raise ClientCommandError(f"a record cannot be written to {topic}: {sentence(error)}")
    return message


def _read(connection: Connection, sent: Message) -> Message:
    """Reads a record that was written.

    Raises:
        ClientCommandError: it does not come.
    """
    from confluent_kafka import TopicPartition

    consumer: Consumer = connection.consumer(group_id="wirekafka-doctor", enable_auto_commit=False, auto_offset_reset="error")
    try:
        consumer.assign([TopicPartition(sent.topic(), sent.partition(), sent.offset())])
        deadline = time.monotonic() + connection.timeout_s
        reason = f"no record came in {connection.timeout_s:g} s"
        while time.monotonic() < deadline:
            message = consumer.poll(WAIT_SECONDS)
            if message is not None and message.error() is None:
                return message
            if message is not None:
                reason = sentence(message.error())
        raise ClientCommandError(f"the record cannot be read from {sent.topic()}: {reason}")
    finally:
        consumer.close()


def _check_clock(read: Message, sent_at: float, acknowledged_at: float, report: Report) -> None:
    """Compares the clocks: the broker appended the record between the two times."""
    kind, timestamp = read.timestamp()
    if kind != APPEND_TIME:
        report.skipped("clock", "the topic keeps the time of its producers")
        return
    appended_at = timestamp / 1000
    skew = max(sent_at - appended_at, appended_at - acknowledged_at, 0.0)
    if skew < SKEW_SECONDS:
        report.ok("clock", "the clocks of broker and client agree")
        return
    direction = "ahead of" if appended_at > acknowledged_at else "behind"
    remedy = "let NTP set both clocks: retention, times of records and TLS certificates depend on them"
    report.finding("clock", f"the broker's clock is {skew:.1f} s {direction} this machine's", remedy)


def as_json(address: str, report: Report) -> Mapping[str, Any]:
    """Returns the report as one JSON object."""
    checks = [
        {"check": each.check, "state": each.state, "detail": each.detail, "remedy": each.remedy or None}
        for each in report.results
    ]
    return {"address": address, "findings": len(report.findings), "could_look": report.could_look, "checks": checks}
