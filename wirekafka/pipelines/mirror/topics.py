"""Reads topics from a cluster and changes them at the target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster
from wirekafka.pipelines.mirror.topic_plan import Topic, TopicChange

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

DYNAMIC_TOPIC_CONFIG = 1
"""Source: org.apache.kafka.common.requests.DescribeConfigsResponse.ConfigSource."""

METADATA_POLL_S = 0.1

TRANSIENT = frozenset({"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS"})
"""Answers of a broker whose coordinators have just moved or started; librdkafka does not call them retriable in each answer."""


def made_topic(cluster: Cluster, name: str) -> Topic:
    """Returns a topic that was created a moment ago; waits until the broker that answers knows it.

    Raises:
        PipelineError: no broker knows it after some seconds.
    """
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while time.monotonic() < deadline:
        found = read_topics(cluster, [name], with_configs=False)
        if name in found:
            return found[name]
        time.sleep(METADATA_POLL_S)
    raise UnreachableError(f"the brokers at {cluster.bootstrap} do not know the topic {name}, which was just created")


def asked(cluster: Cluster, ask: Callable[[AdminClient], Any]) -> Any:
    """Returns what `ask` returns for an admin client of the cluster.

    Raises:
        PipelineError: the cluster does not answer, or refuses; the text has Kafka's error.
    """
    from confluent_kafka import KafkaException

    try:
        return ask(cluster.admin())
    except KafkaException as error:
        reason = error.args[0]
        if reason.retriable() or reason.code() < 0 or reason.name() in TRANSIENT:
            raise UnreachableError(f"no broker answers at {cluster.bootstrap}: {reason.str()}") from None
        raise PipelineError(f"the brokers at {cluster.bootstrap} answered {reason.name()}: {reason.str()}") from None


def read_topics(cluster: Cluster, names: Iterable[str], *, with_configs: bool = True) -> dict[str, Topic]:
    """Returns those of the topics that exist.

    Args:
        cluster: where they are.
        names: the topics.
        with_configs: reads their settings too.

    Raises:
        PipelineError: the cluster does not answer.
    """
    wanted = sorted(names)
    if not wanted:
        return {}
    topics = asked(cluster, lambda admin: _describe_topics(admin, wanted))
    if topics and with_configs:
        asked(cluster, lambda admin: _read_configs(admin, topics))
    return dict(topics)


def _describe_topics(admin: AdminClient, names: list[str]) -> dict[str, Topic]:
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    topics = {}
    described = admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_TIMEOUT_S)
    for name, answer in described.items():
        try:
            description = answer.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            continue
        topics[name] = Topic(len(description.partitions), str(description.topic_id))
    return topics


def _read_configs(admin: AdminClient, topics: Mapping[str, Topic]) -> None:
    from confluent_kafka.admin import ConfigResource

    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics]
    for resource, answer in admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S).items():
        entries = {name: entry for name, entry in answer.result().items() if entry.value is not None}
        topic = topics[resource.name]
        topic.configs = {name: entry.value for name, entry in entries.items()}
        topic.own_configs = {name: entry.value for name, entry in entries.items() if entry.source == DYNAMIC_TOPIC_CONFIG}


def apply_change(cluster: Cluster, change: TopicChange) -> None:
    """Creates or changes one topic; returns when a broker has the change.

    Raises:
        PipelineError: the cluster does not answer, or refuses.
    """
    if change.create:
        asked(cluster, lambda admin: _create(admin, change))
        return
    if change.partition_count is not None:
        asked(cluster, lambda admin: _add_partitions(admin, change.target, change.partition_count))
    if change.set_configs or change.delete_configs:
        asked(cluster, lambda admin: _alter(admin, change))


def _create(admin: AdminClient, change: TopicChange) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    topic = NewTopic(change.target, num_partitions=change.partition_count, config=change.set_configs)
    try:
        admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[change.target].result()
    except KafkaException as error:
        # An earlier request may have created it although its answer was lost.
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _add_partitions(admin: AdminClient, topic: str, count: int | None) -> None:
    from confluent_kafka.admin import NewPartitions

    admin.create_partitions([NewPartitions(topic, count)], request_timeout=REQUEST_TIMEOUT_S)[topic].result()


def _alter(admin: AdminClient, change: TopicChange) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in change.set_configs.items()
    ] + [ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in sorted(change.delete_configs)]
    resource = ConfigResource(ConfigResource.Type.TOPIC, change.target, incremental_configs=entries)
    admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result()


def offset_ranges(cluster: Cluster, partitions: Iterable[TopicPartition], *, committed: bool) -> dict[TopicPartition, range]:
    """Returns the offsets of each partition: from the log start offset to the high watermark, or the last stable offset.

    Partitions that do not exist are left out.

    Raises:
        PipelineError: the cluster does not answer.
    """
    wanted = sorted(partitions)
    starts = asked(cluster, lambda admin: _list_offsets(admin, wanted, is_end=False, committed=committed))
    ends = asked(cluster, lambda admin: _list_offsets(admin, wanted, is_end=True, committed=committed))
    return {
        partition: range(starts[partition], ends[partition]) for partition in wanted if partition in starts and partition in ends
    }


def _list_offsets(
    admin: AdminClient, partitions: list[TopicPartition], *, is_end: bool, committed: bool
) -> Mapping[TopicPartition, int]:
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException
    from confluent_kafka import TopicPartition as ClientPartition
    from confluent_kafka.admin import OffsetSpec

    if not partitions:
        return {}
    spec = OffsetSpec.latest() if is_end else OffsetSpec.earliest()
    isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    asked_for = {ClientPartition(partition.topic, partition.partition): spec for partition in partitions}
    offsets = {}
    answers = admin.list_offsets(asked_for, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    for partition, answer in answers.items():
        try:
            offsets[TopicPartition(partition.topic, partition.partition)] = answer.result().offset
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                raise
    return offsets
