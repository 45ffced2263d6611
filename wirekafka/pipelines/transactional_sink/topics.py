"""The topics of a sink: it creates those that are missing, and reads the settings of its targets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster
from wirekafka.pipelines.transactional_sink.delivery import Target
from wirekafka.pipelines.transactional_sink.failures import failure
from wirekafka.pipelines.transactional_sink.options import SinkOptions

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

METADATA_POLL_S = 0.1

STORED_TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
"""The settings of the topics of a sink; small segments are compacted soon."""


def prepare_topics(sink: SinkOptions) -> dict[str, Target]:
    """Creates the target topics and the sink's own topics that are missing; returns the target topics.

    Raises:
        PipelineError: a target topic is missing and must not be created.
        SinkInterrupted: no broker answers.
    """
    from confluent_kafka import KafkaException

    admin = sink.cluster.admin()
    try:
        found = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        partitions = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        _create_topics(admin, sink, partitions)
        settings = _settings_of_new(admin, list(sink.targets))
    except KafkaException as error:
        raise failure(error.args[0], f"cannot prepare the topics at {sink.cluster.bootstrap}") from None
    return {name: Target(partitions[name], int(settings[name]["max.message.bytes"])) for name in sink.targets}


def _create_topics(admin: AdminClient, sink: SinkOptions, partitions: dict[str, int]) -> None:
    """Creates the target topics and the sink's own topics that are missing, and adds them to `partitions`."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic

    own = [sink.progress_topic, sink.runs_topic] if sink.maps_offsets else [sink.progress_topic]
    missing = [NewTopic(name, 1, config=STORED_TOPIC_SETTINGS) for name in own if name not in partitions]
    for name, count in sink.targets.items():
        if name in partitions:
            continue
        if count is None:
            raise PipelineError(f"the topic {name} does not exist at {sink.cluster.bootstrap}: create it first")
        missing.append(NewTopic(name, count, config=dict(sink.target_settings)))
    if not missing:
        return
    for created in admin.create_topics(missing, request_timeout=REQUEST_TIMEOUT_S).values():
        try:
            created.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    partitions.update({topic.topic: topic.num_partitions for topic in missing})


def _settings_of_new(admin: AdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the settings of topics; asks again for some time while the broker that answers has not heard of one.

    A broker of Apache Kafka answers the creation of a topic when the controller has it, and gets the metadata later.
    """
    from confluent_kafka import KafkaError, KafkaException

    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return _settings(admin, topics)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline_s:
                raise
        time.sleep(METADATA_POLL_S)


def topic_settings(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the settings of topics that exist.

    Raises:
        PipelineError: a topic does not exist, or the broker refuses the client.
        SinkInterrupted: no broker answers.
    """
    from confluent_kafka import KafkaException

    try:
        return _settings(cluster.admin(), topics)
    except KafkaException as error:
        raise failure(error.args[0], f"cannot read the settings of topics at {cluster.bootstrap}") from None


def _settings(admin: AdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources: list[Any] = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    if not resources:
        return {}
    found = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    return {resource.name: {name: entry.value for name, entry in future.result().items()} for resource, future in found.items()}
