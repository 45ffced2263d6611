"""The znodes by which tools and brokers ask the controller for something. The controller deletes them.

Source: kafka.zk.{ReassignPartitionsZNode, PreferredReplicaElectionZNode, IsrChangeNotificationSequenceZNode,
LogDirEventNotificationSequenceZNode} of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wirekafka.names import TopicPartition
from wirekafka.pending import Work, finish
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import JsonObject, write_object

PARTITIONS_A_STEP = 500

LOG_DIR_FAILURE = 1
"""The only event of a log directory."""


def read_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Returns the replicas that partitions shall have, from `/admin/reassign_partitions`.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return finish(reading_reassignment(data))


def reading_reassignment(data: bytes) -> Work[dict[TopicPartition, tuple[int, ...]]]:
    """Returns the replicas that partitions shall have in steps, as `read_reassignment` does.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    values = JsonObject.parse(paths.REASSIGN_PARTITIONS, data)
    yield
    wanted: dict[TopicPartition, tuple[int, ...]] = {}
    for count, each in enumerate(values.objects("partitions"), 1):
        wanted[_read_partition(each)] = each.integers("replicas")
        if count % PARTITIONS_A_STEP == 0:
            yield
    return wanted


def write_reassignment(reassignment: Mapping[TopicPartition, tuple[int, ...]]) -> bytes:
    """Returns the content of `/admin/reassign_partitions`."""
    return finish(writing_reassignment(reassignment))


def writing_reassignment(reassignment: Mapping[TopicPartition, tuple[int, ...]]) -> Work[bytes]:
    """Returns the content of `/admin/reassign_partitions` in steps."""
    entries: list[dict[str, object]] = []
    for each, replicas in reassignment.items():
        entries.append({**_partition(each), "replicas": [*replicas]})
        if len(entries) % PARTITIONS_A_STEP == 0:
            yield
    yield
    return write_object({"version": 1, "partitions": entries}, {})


def read_preferred_replica_election(data: bytes) -> list[TopicPartition]:
    """Returns the partitions that shall have their preferred leader, from `/admin/preferred_replica_election`.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return finish(reading_preferred_replica_election(data))


def reading_preferred_replica_election(data: bytes) -> Work[list[TopicPartition]]:
    """Returns the partitions that shall have their preferred leader in steps, as `read_preferred_replica_election` does.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return _reading_partitions(paths.PREFERRED_REPLICA_ELECTION, data)


def write_preferred_replica_election(partitions: Iterable[TopicPartition]) -> bytes:
    """Returns the content of `/admin/preferred_replica_election`."""
    return _write_partitions(partitions)


def read_isr_change(path: str, data: bytes) -> list[TopicPartition]:
    """Returns the partitions whose state a leader has changed, from a notification.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return finish(reading_isr_change(path, data))


def reading_isr_change(path: str, data: bytes) -> Work[list[TopicPartition]]:
    """Returns the partitions whose state a leader has changed in steps, as `read_isr_change` does.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return _reading_partitions(path, data)


def write_isr_change(partitions: Iterable[TopicPartition]) -> bytes:
    """Returns the content of a notification about partitions whose state a leader has changed."""
    return _write_partitions(partitions)


def read_log_dir_event(path: str, data: bytes) -> int:
    """Returns the id of the broker of which a log directory has failed, from a notification.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return JsonObject.parse(path, data).integer("broker")


def write_log_dir_event(broker_id: int) -> bytes:
    """Returns the content of a notification that a log directory of the broker has failed."""
    return write_object({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILURE}, {})


def _reading_partitions(path: str, data: bytes) -> Work[list[TopicPartition]]:
    values = JsonObject.parse(path, data)
    yield
    partitions: list[TopicPartition] = []
    for each in values.objects("partitions"):
        partitions.append(_read_partition(each))
        if len(partitions) % PARTITIONS_A_STEP == 0:
            yield
    return partitions


def _read_partition(values: JsonObject) -> TopicPartition:
    return TopicPartition(values.text("topic"), values.integer("partition"))


def _write_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    return write_object({"version": 1, "partitions": [_partition(each) for each in partitions]}, {})


def _partition(of: TopicPartition) -> dict[str, object]:
    return {"topic": of.topic, "partition": of.partition}
