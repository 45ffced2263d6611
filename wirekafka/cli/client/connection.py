"""The clients of a cluster: settings of librdkafka, and its errors as sentences with a remedy.

How it works: librdkafka connects in threads of its own, and tells why a connection failed by a callback. `Connection` keeps the
last reason, because the error of a request that got no answer says less. librdkafka's log is not shown, unless the user asks for
it by -X debug or -X log_level.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wirekafka import __version__
from wirekafka.cli.client.errors import ClientCommandError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

MISSING = "this command needs confluent-kafka: install it with  pip install 'wirekafka[cli]'"
ATTEMPT_SECONDS = 0.5
"""How long one attempt to read metadata lasts, after which the reasons of failed connections are looked at."""

RETRY_SECONDS = 0.2
COORDINATOR_MOVES = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
"""Errors after which a request is repeated; a cluster without groups answers so until it has created __consumer_offsets."""

_PLACE = re.compile(r"^\S+: | \(after \d+ms in state [^)]*\)")
"""What librdkafka adds to the reason of a failed connection: the name of the broker, and its own state."""

REMEDIES = {
    "TOPIC_ALREADY_EXISTS": "`wirekafka topic alter` changes a topic",
    "UNKNOWN_TOPIC_OR_PART": "`wirekafka topic list` shows the topics",
    "_UNKNOWN_TOPIC": "`wirekafka topic list` shows the topics; `wirekafka topic create` creates one",
    "_UNKNOWN_PARTITION": "`wirekafka topic describe` shows the partitions",
    "INVALID_REPLICATION_FACTOR": "there must be as many brokers; --replication-factor gives another number",
    "NON_EMPTY_GROUP": "stop the members of the group first",
    "UNKNOWN_MEMBER_ID": "stop the members of the group first",
    "GROUP_ID_NOT_FOUND": "`wirekafka group list` shows the groups",
    "TOPIC_AUTHORIZATION_FAILED": "the user of the connection needs permission for the topic",
    "GROUP_AUTHORIZATION_FAILED": "the user of the connection needs permission for the group",
    "CLUSTER_AUTHORIZATION_FAILED": "the user of the connection needs permission for the cluster",
    "MSG_SIZE_TOO_LARGE": "-X message.max.bytes=N raises the client's limit, `wirekafka topic alter --set max.message.bytes=N` "
    "the topic's",
    "INVALID_RECORD": "a topic with cleanup.policy=compact needs keys",
    "_MSG_TIMED_OUT": "look at the brokers, or raise --timeout",
    "_TIMED_OUT": "look at the brokers, or raise --timeout",
}
"""What the user can do, by the name of librdkafka's error."""


class NoBrokerError(ClientCommandError):
    """No broker answers.

    Attributes:
        reason: why not, as librdkafka tells it.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def sentence(error: KafkaError) -> str:
    """Returns what librdkafka says of an error, with the remedy."""
    text = error.str().removeprefix("Broker: ").removeprefix("Local: ").strip().rstrip(".")
    if text.endswith(":"):  # librdkafka tells the name of the request, but a broker without a message
        text += f" {error.name()}"
    remedy = REMEDIES.get(error.name())
    return f"{text}; {remedy}" if remedy else text


class Connection:
    """A cluster that a command is a client of.

    Attributes:
        settings: properties of librdkafka.
        timeout_s: the time limit of each request.
    """

    def __init__(self, settings: Mapping[str, str], timeout_s: float) -> None:
        self.settings = settings
        self.timeout_s = timeout_s
        self._admin: AdminClient | None = None
        self._reason = ""
        self._is_down = False

    @property
    def bootstrap(self) -> str:
        """The addresses that the user gave."""
        return self.settings.get("bootstrap.servers") or self.settings["metadata.broker.list"]

    @property
    def admin(self) -> AdminClient:
        """The admin client.

        Raises:
            ClientCommandError: confluent-kafka is not installed, or librdkafka refuses a setting.
        """
        if self._admin is None:
            self._admin = self._client("AdminClient", {})
        return self._admin

    def producer(self, **settings: Any) -> Producer:
        """Returns a producer; the keywords have `_` for the dots of the defaults that the user's settings override.

        Raises:
            ClientCommandError: as `admin`.
        """
        return self._client("Producer", settings)

    def consumer(self, **settings: Any) -> Consumer:
        """Returns a consumer; the keywords are those of `producer`.

        Raises:
            ClientCommandError: as `admin`.
        """
        return self._client("Consumer", settings)

    def _client(self, name: str, defaults: Mapping[str, Any]) -> Any:
        confluent_kafka = library()
        settings: dict[str, Any] = {"client.id": "wirekafka", "client.software.name": "wirekafka"}
        settings["client.software.version"] = __version__
        if not self.settings.keys() & {"debug", "log_level"}:
            settings["log_level"] = 0
        settings |= {key.replace("_", "."): value for key, value in defaults.items()}
        settings |= self.settings
        try:
            return getattr(confluent_kafka.admin if name == "AdminClient" else confluent_kafka, name)(
                settings | {"error_cb": self._note}
            )
        except confluent_kafka.KafkaException as error:
            raise ClientCommandError(
                f"librdkafka refuses a setting: {error.args[0].str()}; its CONFIGURATION.md lists the settings of -X and --config"
            ) from None

    def _note(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._is_down = True
        else:
            self._reason = _PLACE.sub("", error.str())

    def metadata(self) -> Any:
        """Returns the brokers, topics and partitions of the cluster, as confluent-kafka's ClusterMetadata.

        Raises:
            NoBrokerError: no broker answers.
        """
        library_error = library().KafkaException
        deadline = time.monotonic() + self.timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                return self.admin.list_topics(timeout=max(min(left, ATTEMPT_SECONDS), 0.01))
            except library_error as error:
                self.admin.poll(0)
                if left <= ATTEMPT_SECONDS or self._is_down:
                    raise self.unreachable(error.args[0]) from None

    def unreachable(self, error: KafkaError) -> NoBrokerError:
        """Returns the error that no broker answers, with the reason if librdkafka has told one."""
        reason = self._reason or error.str()
        remedy = "start the broker, or correct the address, and security.protocol (-X) if the listener has TLS or SASL"
        return NoBrokerError(f"no broker answers at {self.bootstrap} ({reason}): {remedy}", reason)

    def result(self, future: Any, what: str) -> Any:
        """Returns the result of a request.

        Args:
            what: what was asked for, as the beginning of an error: "topic orders".

        Raises:
            ClientCommandError: the request failed.
        """
        try:
            return future.result(self.timeout_s + 5)
        except library().KafkaException as error:
            raise ClientCommandError(f"{what}: {sentence(error.args[0])}") from None
        except TimeoutError:
            raise ClientCommandError(f"{what}: no answer in {self.timeout_s:g} s; {REMEDIES['_TIMED_OUT']}") from None

    def coordinated(self, ask: Callable[[], Any], what: str) -> Any:
        """Returns the result of a request to the coordinator of a group; asks again while the coordinator moves or loads groups.

        Args:
            ask: sends the request; returns its future.
            what: as `result`.

        Raises:
            ClientCommandError: the request failed.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            future = ask()
            try:
                return self.result(future, what)
            except ClientCommandError:
                error = future.exception(0) if future.done() else None
                if time.monotonic() > deadline or error is None or error.args[0].name() not in COORDINATOR_MOVES:
                    raise
            time.sleep(RETRY_SECONDS)

    def ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a method of the admin client that returns futures, with the time limit.

        Raises:
            ClientCommandError: an argument is not accepted.
        """
        try:
            return method(*arguments, request_timeout=self.timeout_s, **options)
        except (library().KafkaException, ValueError) as error:
            reason = error.args[0].str() if hasattr(error.args[0], "str") else str(error)
            raise ClientCommandError(f"the request is not accepted: {reason}") from None

    def offsets(
        self, specs: Mapping[tuple[str, int], Any], *, is_committed_only: bool = False
    ) -> dict[tuple[str, int], int | None]:
        """Returns an offset of each partition; None where there is none, or no leader that knows it.

        Args:
            specs: the OffsetSpec for each partition.
            is_committed_only: whether the latest offset is the last stable one, as a read_committed consumer sees it.
        """
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        if not specs:
            return {}
        level = IsolationLevel.READ_COMMITTED if is_committed_only else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*name): spec for name, spec in specs.items()}
        found: dict[tuple[str, int], int | None] = {}
        for partition, future in self.ask(self.admin.list_offsets, asked, isolation_level=level).items():
            try:
                offset = future.result(self.timeout_s + 5).offset
            except (KafkaException, TimeoutError):
                offset = -1
            found[partition.topic, partition.partition] = offset if offset >= 0 else None
        return found


def library() -> Any:
    """Returns the module confluent_kafka, with its admin module imported.

    Raises:
        ClientCommandError: it is not installed.
    """
    try:
        import confluent_kafka.admin
    except ImportError:
        raise ClientCommandError(MISSING) from None
    return confluent_kafka


def all_results(connection: Connection, futures: Mapping[str, Any], noun: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the results by name, and the messages of the requests that failed."""
    results, failures = {}, []
    for name, future in futures.items():
        try:
            results[name] = connection.result(future, f"{noun} {name}")
        except ClientCommandError as error:
            failures.append(str(error))
    return results, failures


def partition_names(metadata: Any, topics: Iterable[str]) -> list[tuple[str, int]]:
    """Returns the partitions of topics, in order."""
    return [(topic, partition) for topic in topics for partition in sorted(metadata.topics[topic].partitions)]
