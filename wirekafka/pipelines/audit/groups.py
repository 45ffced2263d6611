"""The lag of consumer groups: what they have committed, and where the logs end.

Groups of both protocols are listed: `classic`, and `consumer` of KIP-848. Share groups (KIP-932) have no committed offsets, and
librdkafka does not list them.

Source: KIP-396 (the lag is the log end offset minus the committed offset), kafka-consumer-groups.sh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wirekafka.pipelines.audit.offsets import Offsets, Place
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

GROUPS_A_REQUEST = 100


@dataclass(slots=True)
class GroupLag:
    """The lag of a consumer group in one partition.

    Attributes:
        protocol: `classic` or `consumer`.
        state: the state of the group, in lower case.
        members: the number of members of the whole group.
        committed_offset: the offset that the group has committed.
        lag: the offsets from there to the log end offset. Control records and compacted records have offsets too.
    """

    group: str
    protocol: str
    state: str
    members: int
    topic: str
    partition: int
    committed_offset: int
    log_end_offset: int
    lag: int


def group_lags(cluster: Cluster, offsets: Offsets) -> list[GroupLag]:
    """Returns the lag of all groups in the partitions of `offsets`, a row for each partition in which a group has committed.

    Raises:
        PipelineError: a broker does not answer.
    """
    from confluent_kafka import KafkaException

    admin = cluster.admin()
    try:
        protocols = _list_groups(admin)
        descriptions = _describe(admin, list(protocols))
        committed = {group: _committed(admin, group) for group in protocols}
    except KafkaException as error:
        raise PipelineError(f"the consumer groups cannot be read at {cluster.bootstrap}: {error.args[0].str()}") from None
    lags = []
    for group in sorted(protocols):
        state, members = descriptions[group]
        for place, offset in sorted(committed[group].items()):
            if place in offsets:
                end = offsets[place].log_end_offset
                lags.append(GroupLag(group, protocols[group], state, members, *place, offset, end, max(end - offset, 0)))
    return lags


def _list_groups(admin: AdminClient) -> dict[str, str]:
    """Returns the protocol of each consumer group. A broker before Kafka 3.8 does not tell it, and has classic groups."""
    from confluent_kafka import ConsumerGroupType

    listed = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
    if listed.errors:
        raise listed.errors[0]
    return {each.group_id: "consumer" if each.type == ConsumerGroupType.CONSUMER else "classic" for each in listed.valid}


def _describe(admin: AdminClient, groups: list[str]) -> dict[str, tuple[str, int]]:
    """Returns the state of each group and the number of its members."""
    found = {}
    for first in range(0, len(groups), GROUPS_A_REQUEST):
        some = groups[first : first + GROUPS_A_REQUEST]
        futures: Mapping[str, Any] = admin.describe_consumer_groups(some, request_timeout=REQUEST_TIMEOUT_S)
        for group, future in futures.items():
            description = future.result()
            found[group] = (description.state.name.lower().replace("_", " "), len(description.members))
    return found


def _committed(admin: AdminClient, group: str) -> dict[Place, int]:
    """Returns the offsets that a group has committed."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_TIMEOUT_S)
    partitions = futures[group].result().topic_partitions
    return {Place(each.topic, each.partition): each.offset for each in partitions if each.offset >= 0}
