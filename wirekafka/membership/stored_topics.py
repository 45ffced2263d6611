"""The names of all topics, and the partition counts of the internal topics, as ZooKeeper has them at the start.

A coordinator finds the partition of a group by the number of partitions. Before the first UpdateMetadata, or if it leaves out
partitions that have never had a leader, the image has another number, and the broker would look for a group in a wrong partition.
By the names the broker knows that a topic exists which the controller has not told it yet.

Source: kafka.server.KafkaServer.startup; kafka.zk.KafkaZkClient.getTopicPartitionCount.
"""

from __future__ import annotations

import structlog

from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.metadata.image import ClusterImage
from wirekafka.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.topics import TopicAssignment
from wirekafka.zookeeper.session import GetChildren, GetData

log = structlog.get_logger(__name__)


async def read_topic_names(zookeeper: RetryingClient) -> set[str]:
    """Returns the names of all topics.

    Raises:
        ZooKeeperError: ZooKeeper refuses the request.
    """
    found = await zookeeper.find(GetChildren(paths.TOPICS))
    return set() if found is None else set(found.names)


async def follow_untold(zookeeper: RetryingClient, image: ClusterImage) -> None:
    """Removes topics that are deleted from the untold topics of the image, until it is cancelled.

    No UpdateMetadata to this broker names a topic that was deleted before the controller knew this broker.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request. The task may begin again.
    """
    hint = zookeeper.hint(paths.TOPICS)
    while True:
        if image.untold:
            found = await zookeeper.find(GetChildren(paths.TOPICS, watch=True))
            image.untold.intersection_update(() if found is None else found.names)
        await hint.wait()


async def read_partition_counts(zookeeper: RetryingClient) -> dict[str, int]:
    """Returns the number of partitions of each internal topic that exists.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request.
    """
    counts = {}
    for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        found = await zookeeper.find(GetData(paths.topic(topic)))
        if found is None:
            continue
        try:
            counts[topic] = len(TopicAssignment.read(topic, found.data).partitions)
        except MalformedZnodeError as error:
            remedy = "the number of partitions is taken from the controller; correct the znode"
            log.error("The assignment of an internal topic cannot be read", error=str(error), remedy=remedy)
    return counts
