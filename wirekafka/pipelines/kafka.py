"""A Kafka cluster as the pipelines see it: options for Spark's connector, and a client for what Spark does not do.

Spark reads the records through its connector. The client of this file creates topics, and reads offsets and configurations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.errors import PipelineError, UnreachableError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

REQUEST_TIMEOUT_S = 15.0


@dataclass(slots=True, frozen=True)
class Cluster:
    """The addresses of a Kafka cluster, and settings of its clients. It can be pickled into Spark's tasks.

    Attributes:
        bootstrap: HOST:PORT, more of them separated by commas.
        connector_settings: settings of the Java clients in Spark's connector, without the prefix `kafka.`.
        client_settings: settings of librdkafka.
    """

    bootstrap: str
    connector_settings: Mapping[str, str] = field(default_factory=dict)
    client_settings: Mapping[str, str] = field(default_factory=dict)

    def spark_options(self) -> dict[str, str]:
        """Returns the options of Spark's kafka source and sink that name the cluster."""
        settings = {"bootstrap.servers": self.bootstrap, **self.connector_settings}
        return {f"kafka.{name}": value for name, value in settings.items()}

    def client_config(self, **more: Any) -> dict[str, Any]:
        """Returns the configuration of a client of confluent-kafka; the keywords have `_` for the dots of the settings."""
        settings = {name.replace("_", "."): value for name, value in more.items()}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **settings, **self.client_settings}

    def admin(self) -> AdminClient:
        """Returns an admin client.

        Raises:
            PipelineError: librdkafka refuses a setting.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            return AdminClient(self.client_config())
        except KafkaException as error:
            refusal = error.args[0].str()
            raise PipelineError(
                f"librdkafka refuses a setting of the clients of {self.bootstrap}: {refusal}. Check --client-option; the settings"
                " are in librdkafka's CONFIGURATION.md"
            ) from None


@dataclass(slots=True, frozen=True)
class TopicSelection:
    """The topics that a pipeline reads: names, or a regular expression that matches whole names. Exactly one is given.

    Raises:
        PipelineError: the pattern is malformed.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(f"(?:{self.pattern or ''})")  # a group, because the pipelines put it into larger patterns
        except (re.error, RecursionError, OverflowError) as error:
            raise PipelineError(f"the pattern {self.pattern!r} is malformed: {error}") from None

    def spark_options(self) -> dict[str, str]:
        """Returns the option of Spark's kafka source that names the topics."""
        if self.pattern is not None:
            return {"subscribePattern": self.pattern}
        return {"subscribe": ",".join(self.names)}

    def matching(self, cluster: Cluster) -> dict[str, int]:
        """Returns the number of partitions of each topic that exists and is selected.

        Raises:
            UnreachableError: no broker answers.
            PipelineError: a topic that is named does not exist.
        """
        partitions = partition_counts(cluster)
        missing = [name for name in self.names if name not in partitions]
        if missing:
            raise PipelineError(
                f"unknown topic {', '.join(missing)} at {cluster.bootstrap}; the topics there: {listed(partitions)}"
            )
        if self.pattern is None:
            return {name: partitions[name] for name in self.names}
        return {name: count for name, count in partitions.items() if re.fullmatch(self.pattern, name)}


def listed(topics: Iterable[str]) -> str:
    """Returns the names of topics for a message, without internal topics and those in which the pipelines keep their progress."""
    return ", ".join(sorted(name for name in topics if not name.startswith(("__", "wirekafka.")))) or "none"


def partition_counts(cluster: Cluster) -> dict[str, int]:
    """Returns the number of partitions of each topic.

    Raises:
        UnreachableError: no broker answers.
        PipelineError: librdkafka refuses a setting.
    """
    topics = _metadata(cluster).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}


def cluster_id(cluster: Cluster) -> str | None:
    """Returns the id of the cluster; None if its brokers tell none.

    Raises:
        UnreachableError: no broker answers.
    """
    found = _metadata(cluster).cluster_id
    return None if found is None else str(found)


def _metadata(cluster: Cluster) -> Any:
    from confluent_kafka import KafkaException

    admin = cluster.admin()
    try:
        return admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise UnreachableError(f"no broker answers at {cluster.bootstrap}: {error.args[0].str()}") from None
