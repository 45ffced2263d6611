"""Topics with one replica get two more, as in a cluster that was a single broker before."""

from __future__ import annotations

from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from wirekafka.cli import main
from wirekafka.testing import EmbeddedCluster
from wirekafka.tests.testing.test_cluster import VALUES, consume, create, produce
from wirekafka.tests.testing.test_cluster_administration import until

INTERNAL = "__consumer_offsets"
LATER_VALUES = [b"later %d" % number for number in range(100)]


def know_all_topics(bootstrap: str) -> bool:
    """Whether every broker has heard of the topics, so that each of them proposes the same."""
    admins = [AdminClient({"bootstrap.servers": address}) for address in bootstrap.split(",")]
    return all({"grown", INTERNAL} <= each.list_topics(timeout=60).topics.keys() for each in admins)


def are_spread(bootstrap: str) -> bool:
    """Whether each partition has three replicas in sync, and each broker leads two of the six."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
    partitions = [each for topic in ("grown", INTERNAL) for each in topics[topic].partitions.values()]
    return (
        len(partitions) == 6
        and all(set(each.replicas) == set(each.isrs) == {1, 2, 3} for each in partitions)
        and sorted(each.leader for each in partitions) == [1, 1, 2, 2, 3, 3]
    )


def read_again(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "auditors"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes | None] = []
    while len(values) < count:
        message = consumer.poll(60)
        assert message is not None, f"{len(values)} of {count} records"
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def test_topics_with_one_replica_get_three_and_survive_the_loss_of_the_first_broker() -> None:
    with EmbeddedCluster(3, offsets_topic_replication_factor=1, offsets_topic_num_partitions=3) as cluster:
        bootstrap = cluster.bootstrap
        create(bootstrap, "grown", [[1], [1], [1]])
        produce(bootstrap, "grown", VALUES)
        assert consume(bootstrap, "grown", len(VALUES)) == VALUES
        until(lambda: know_all_topics(bootstrap))
        options = ["--bootstrap-server", bootstrap, "--replication-factor", "3", "--execute", "--timeout", "60"]
        result = CliRunner().invoke(main, ["cluster", "balance", *options])
        assert result.exit_code == 0, result.output
        until(lambda: are_spread(bootstrap))
        cluster.stop_broker(1)
        produce(cluster.bootstrap, "grown", LATER_VALUES)
        assert read_again(cluster.bootstrap, "grown", 200) == VALUES + LATER_VALUES
        assert consume(cluster.bootstrap, "grown", len(LATER_VALUES)) == LATER_VALUES
