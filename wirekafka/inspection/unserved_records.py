"""Records of `__consumer_offsets` that only Apache Kafka writes: those of streams groups (KIP-1071), and a type from before 4.1.

A data directory that was taken over from Apache Kafka may hold such records. The coordinators skip them.

Rule of this file: messages only, in version 0, which is the only version.

Source: StreamsGroup*Value.json and ConsumerGroupPartitionMetadataValue.json of Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Int8, Int16, Int32, Int64, Message, NullableString, String, Uint16, Uuid, nullable, tag


class PartitionRacks(Message):
    """The racks in which a partition has replicas."""

    partition: Int32 = 0
    racks: list[String] = []


class TopicMetadata(Message):
    """The metadata of a topic to which a consumer group subscribed."""

    topic_id: Uuid = ZERO_TOPIC_ID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionRacks] = []


class PartitionMetadataValue(Message):
    """ConsumerGroupPartitionMetadataValue; a hash in the group's metadata has replaced it."""

    topics: list[TopicMetadata] = []


class KeyValue(Message):
    """A key and its value: a setting or a tag."""

    key: String = ""
    value: String = ""


class StreamsGroupValue(Message):
    """StreamsGroupMetadataValue."""

    epoch: Int32 = 0
    metadata_hash: Int64 = 0
    validated_topology_epoch: Annotated[Int32, tag(0, 0)] = -1
    last_assignment_configs: Annotated[list[KeyValue] | None, tag(1, 0), nullable(0)] = []


class Endpoint(Message):
    """The endpoint of a member for interactive queries."""

    host: String = ""
    port: Uint16 = 0


class StreamsMemberValue(Message):
    """StreamsGroupMemberMetadataValue."""

    instance_id: Annotated[NullableString, nullable(0)] = ""
    rack_id: Annotated[NullableString, nullable(0)] = ""
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Annotated[Endpoint | None, nullable(0)] = None
    client_tags: list[KeyValue] = []


class TargetTasks(Message):
    """Tasks of one subtopology."""

    subtopology_id: String = ""
    partitions: list[Int32] = []


class StreamsTargetValue(Message):
    """StreamsGroupTargetAssignmentMemberValue."""

    active_tasks: list[TargetTasks] = []
    standby_tasks: list[TargetTasks] = []
    warmup_tasks: list[TargetTasks] = []


class CurrentTasks(Message):
    """Tasks of one subtopology, and the epochs at which they were assigned."""

    subtopology_id: String = ""
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, tag(0, 0), nullable(0)] = []


class StreamsCurrentValue(Message):
    """StreamsGroupCurrentMemberAssignmentValue."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    active_tasks: list[CurrentTasks] = []
    standby_tasks: list[CurrentTasks] = []
    warmup_tasks: list[CurrentTasks] = []
    active_tasks_pending_revocation: list[CurrentTasks] = []
    standby_tasks_pending_revocation: list[CurrentTasks] = []
    warmup_tasks_pending_revocation: list[CurrentTasks] = []


class InternalTopic(Message):
    """A topic that a topology defines."""

    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = []


class CopartitionGroup(Message):
    """Topics that must have the same number of partitions, by their indexes in the lists of their subtopology."""

    source_topics: list[Int16] = []
    source_topic_regex: list[Int16] = []
    repartition_source_topics: list[Int16] = []


class Subtopology(Message):
    """A part of a topology whose tasks use the same partitions."""

    subtopology_id: String = ""
    source_topics: list[String] = []
    source_topic_regex: list[String] = []
    state_changelog_topics: list[InternalTopic] = []
    repartition_sink_topics: list[String] = []
    repartition_source_topics: list[InternalTopic] = []
    copartition_groups: list[CopartitionGroup] = []


class TopologyValue(Message):
    """StreamsGroupTopologyValue."""

    epoch: Int32 = 0
    subtopologies: list[Subtopology] = []
