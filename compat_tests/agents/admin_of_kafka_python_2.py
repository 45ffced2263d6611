"""The steps of test_admin.py with the admin client of kafka-python 2.0.6, which cannot delete records.

Run as: admin_of_kafka_python_2.py BOOTSTRAP TOPIC GROUP. Prints its results as JSON; the test compares them.
"""

from __future__ import annotations

import json
import sys
import time

from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic


def retention_of(admin: KafkaAdminClient, topic: str) -> str:
    (response,) = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return next(entry[1] for entry in response.resources[0][4] if entry[0] == "retention.ms")


def main() -> None:
    bootstrap, topic, group = sys.argv[1:]
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    found: dict[str, object] = {}
    created = f"{topic}-2"
    admin.create_topics([NewTopic(created, num_partitions=2, replication_factor=1, topic_configs={"retention.ms": "111"})])
    found["created"] = created in admin.list_topics()
    found["retention"] = retention_of(admin, created)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, created, configs={"retention.ms": "222"})])
    deadline = time.monotonic() + 10
    while retention_of(admin, created) != "222" and time.monotonic() < deadline:
        time.sleep(0.05)
    found["altered retention"] = retention_of(admin, created)
    admin.create_partitions({created: NewPartitions(4)})
    (described,) = admin.describe_topics([created])
    found["partitions"] = len(described["partitions"])
    found["listed group"] = group in [name for name, _ in admin.list_consumer_groups()]
    (description,) = admin.describe_consumer_groups([group])
    found["group"] = [description.state, description.protocol_type]
    offsets = admin.list_consumer_group_offsets(group)
    found["offset"] = offsets[TopicPartition(topic, 0)].offset
    ((_, error),) = admin.delete_consumer_groups([group])
    found["deleted group"] = error.errno == 0 and group not in [name for name, _ in admin.list_consumer_groups()]
    found["brokers"] = [broker["node_id"] for broker in admin.describe_cluster()["brokers"]]
    admin.delete_topics([created])
    found["deleted"] = created not in admin.list_topics()
    admin.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
