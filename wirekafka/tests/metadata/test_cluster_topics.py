"""The topics of a member of a cluster: absent and hosted partitions, as the image and the host change."""

from __future__ import annotations

import pytest
import structlog

from wirekafka.config import BrokerConfig, LogConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.cluster_topics import ClusterTopics
from wirekafka.metadata.image import MOST_UNTOLD, PARTITIONS_AT_ONCE, ClusterImage
from wirekafka.pending import finish
from wirekafka.tests.metadata.test_image import OTHER_ID, TOPIC_ID, request, state
from wirekafka.wire.messages.update_metadata import UpdateMetadataTopicState


class Absent:
    """A partition; `config` is what its log was last given."""

    def __init__(self, topic: str, topic_id: bytes, index: int) -> None:
        self.topic, self.topic_id, self.index = topic, topic_id, index
        self.config: LogConfig | None = None
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Hosted(Absent):
    pass


class Host:
    def __init__(self) -> None:
        self.made_count = 0

    def absent(self, topic: str, topic_id: bytes, index: int) -> Absent:
        self.made_count += 1
        return Absent(topic, topic_id, index)

    def configure(self, partition: Absent, config: LogConfig) -> None:
        partition.config = config


class Stage:
    def __init__(self) -> None:
        self.config = BrokerConfig()
        self.image = ClusterImage()
        self.made = Host()
        self.topics: ClusterTopics[Absent] = ClusterTopics(self.config, self.image, self.made)
        self.told: list[str] = []
        self.topics.on_change.append(lambda topic: self.told.append(f"{topic.name} {len(topic.partitions)}"))
        self.topics.on_delete.append(lambda topic: self.told.append(f"-{topic.name}"))

    def update(self, *indexes: int, leader: int = 1, topic_id: bytes = TOPIC_ID) -> None:
        finish(self.image.update(request(*[state(index, leader) for index in indexes], topic_id=topic_id)))

    def host(self, index: int, topic_id: bytes = TOPIC_ID) -> Hosted:
        partition = Hosted("flights", topic_id, index)
        self.topics.put_hosted(partition)
        return partition

    @property
    def hosted(self) -> list[bool]:
        """Whether each partition of the topic in the table is hosted."""
        return [isinstance(partition, Hosted) for partition in self.topics.get("flights").partitions]


def test_partitions_of_the_image_are_absent_until_they_are_hosted() -> None:
    stage = Stage()
    stage.update(0, 1, 2)
    hosted = stage.host(1)
    assert stage.hosted == [False, True, False]
    assert stage.topics.find_partition(TOPIC_ID, 1) is hosted
    assert [each.index for each in stage.topics.get("flights").partitions] == [0, 1, 2]
    assert stage.told == ["flights 3"]


def test_absent_partition_is_closed_once_it_is_hosted_or_its_topic_is_gone() -> None:
    stage = Stage()
    stage.update(0, 1, 2)
    absent = [*stage.topics.get("flights").partitions]
    hosted = stage.host(1)
    assert [each.is_closed for each in absent] == [False, True, False]
    stage.host(1)
    assert not hosted.is_closed
    stage.update(0, 1, 2, leader=-2)
    assert [each.is_closed for each in absent] == [True, True, True]


def test_absent_partitions_of_a_large_topic_are_closed_in_steps_once_it_is_deleted() -> None:
    stage = Stage()
    indexes = range(10 * PARTITIONS_AT_ONCE)
    stage.update(*indexes)
    absent = [*stage.topics.get("flights").partitions]
    before = most = 0
    for _ in stage.image.update(request(*[state(index, leader=-2) for index in indexes])):
        closed = sum(each.is_closed for each in absent)
        most, before = max(most, closed - before), closed
    assert (most, before) == (PARTITIONS_AT_ONCE, len(absent))


def test_absent_partitions_of_a_deleted_topic_are_closed_if_a_newer_controller_ends_the_request() -> None:
    stage = Stage()
    indexes = range(10 * PARTITIONS_AT_ONCE)
    stage.update(*indexes)
    absent = [*stage.topics.get("flights").partitions]
    work = stage.image.update(request(*[state(index, leader=-2) for index in indexes]))
    while stage.image.topics:
        next(work)
    assert not all(each.is_closed for each in absent)
    work.close()
    assert all(each.is_closed for each in absent)


def test_absent_partitions_of_a_large_topic_are_made_in_steps_and_found_all_at_once() -> None:
    stage = Stage()
    hosted = stage.host(0)
    count, before, most, found = 10 * PARTITIONS_AT_ONCE, stage.made.made_count, 0, set()
    for _ in stage.image.update(request(*map(state, range(count)))):
        most, before = max(most, stage.made.made_count - before), stage.made.made_count
        found.add(len(stage.topics.get("flights").partitions))
    assert found == {1, count} and most <= PARTITIONS_AT_ONCE
    partitions = stage.topics.get("flights").partitions
    assert partitions[0] is hosted and [partition.index for partition in partitions] == [*range(count)]


def test_partition_that_is_hosted_before_the_image_has_it_can_be_found() -> None:
    stage = Stage()
    hosted = stage.host(2)
    assert stage.topics.find_partition("flights", 2) is hosted
    stage.update(0, 1, 2, 3)
    assert stage.hosted == [False, False, True, False]
    assert stage.told == ["flights 3", "flights 4"]


def test_hosted_partition_far_above_the_known_ones_takes_its_place_with_the_image() -> None:
    stage = Stage()
    hosted = stage.host(2**31 - 1)
    assert stage.hosted == []
    assert stage.topics.hosted("flights", 2**31 - 1) is hosted
    far = stage.host(MOST_UNTOLD)
    assert stage.hosted == []
    stage.update(*range(MOST_UNTOLD + 1))
    assert stage.hosted == [False] * MOST_UNTOLD + [True]
    assert stage.topics.find_partition("flights", MOST_UNTOLD) is far
    for index in (2**31 - 1, MOST_UNTOLD):
        stage.topics.remove_hosted("flights", index)
    assert stage.hosted == [False] * (MOST_UNTOLD + 1)


def test_topic_whose_only_replica_is_far_above_goes_with_it() -> None:
    stage = Stage()
    stage.host(2**31 - 1)
    stage.topics.remove_hosted("flights", 2**31 - 1)
    assert stage.topics.find("flights") is None


def test_partition_that_is_no_longer_hosted_is_absent() -> None:
    stage = Stage()
    stage.update(0, 1)
    stage.host(1)
    stage.topics.remove_hosted("flights", 1)
    assert stage.hosted == [False, False]
    assert stage.topics.hosted("flights", 1) is None


def test_deleted_topic_cannot_be_found_while_its_replicas_are_still_there() -> None:
    stage = Stage()
    stage.update(0)
    hosted = stage.host(0)
    stage.update(0, leader=-2)
    assert stage.topics.find("flights") is None
    assert stage.topics.find_by_id(TOPIC_ID) is None
    assert stage.topics.hosted("flights", 0) is hosted
    stage.topics.remove_hosted("flights", 0)
    assert stage.topics.all_hosted() == []
    assert stage.told == ["flights 1", "-flights"]


def test_topic_that_only_this_broker_knew_goes_with_its_last_replica() -> None:
    stage = Stage()
    stage.host(0)
    stage.host(1)
    stage.topics.remove_hosted("flights", 1)
    assert stage.hosted == [True, False]
    stage.topics.remove_hosted("flights", 0)
    assert stage.topics.find("flights") is None
    assert stage.told == ["flights 1", "flights 2"]


def test_topic_created_again_has_no_partition_of_the_former_topic() -> None:
    stage = Stage()
    stage.update(0, 1)
    stage.host(0)
    stage.update(0, topic_id=OTHER_ID)
    assert stage.hosted == [False]
    assert stage.topics.find_by_id(TOPIC_ID) is None
    new = stage.host(0, OTHER_ID)
    assert stage.topics.find_partition(OTHER_ID, 0) is new
    assert stage.told == ["flights 2", "-flights", "flights 1"]


def test_topic_created_again_may_be_hosted_before_the_image_has_it() -> None:
    stage = Stage()
    stage.update(0)
    stage.host(0)
    new = stage.host(0, OTHER_ID)
    assert stage.topics.find_by_id(TOPIC_ID) is None
    stage.update(0, 1, topic_id=OTHER_ID)
    assert stage.topics.find_partition("flights", 0) is new


def test_partitions_in_steps_are_those_of_the_topic_when_the_steps_began() -> None:
    stage = Stage()
    stage.update(0)
    former = stage.topics.get("flights").partitions
    stage.update(1)
    assert len(former) == 1
    assert len(stage.topics.get("flights").partitions) == 2


def test_settings_are_known_before_the_topic_and_change_its_logs() -> None:
    stage = Stage()
    stage.topics.set_overrides("flights", {"segment.bytes": "2000000"})
    assert stage.topics.log_config_of("flights").segment_bytes == 2_000_000
    hosted = stage.host(0)
    assert stage.topics.get("flights").overrides == {"segment.bytes": "2000000"}
    stage.topics.set_overrides("flights", {"segment.bytes": "3000000"})
    assert hosted.config is not None
    assert hosted.config.segment_bytes == stage.topics.log_config_of("flights").segment_bytes == 3_000_000
    stage.topics.set_overrides("flights", {})
    assert stage.topics.overrides_of("flights") == {}
    assert hosted.config.segment_bytes == LogConfig.of(stage.config).segment_bytes


def test_settings_of_a_deleted_topic_stay_until_its_last_replica_goes() -> None:
    stage = Stage()
    stage.update(0)
    stage.host(0)
    stage.topics.set_overrides("flights", {"segment.bytes": "2000000"})
    stage.update(0, leader=-2)
    assert stage.topics.log_config_of("flights").segment_bytes == 2_000_000
    stage.topics.remove_hosted("flights", 0)
    assert stage.topics.overrides_of("flights") == {}


def test_settings_of_the_broker_change_the_logs_of_all_topics() -> None:
    stage = Stage()
    hosted = stage.host(0)
    stage.config.set_dynamic({"log.retention.ms": "5000"}, {})
    finish(stage.topics.reconfigure())
    assert hosted.config is not None
    assert hosted.config.retention_ms == 5_000
    assert stage.topics.log_config_of("cities").retention_ms == 5_000


def test_member_has_no_features_and_creates_no_topics() -> None:
    stage = Stage()
    assert stage.topics.features.finalized == {}
    assert stage.topics.features.level("transaction.version") == 0
    with pytest.raises(KafkaError) as raised:
        stage.topics.create_internal("__consumer_offsets")
    assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_all_hosted_partitions_are_closed() -> None:
    stage = Stage()
    hosted = stage.host(0)
    stage.topics.close()
    assert hosted.is_closed


def test_topic_is_found_by_its_id_after_another_one_of_that_id_is_deleted() -> None:
    stage = Stage()
    stage.update(0)
    finish(stage.image.update(request(state(0), topic="arrivals")))
    stage.update(0, leader=-2)
    found = stage.topics.find_by_id(TOPIC_ID)
    assert found is not None and found.name == "arrivals"


def test_topics_that_are_deleted_together_are_logged_in_one_line() -> None:
    stage = Stage()
    names = [f"topic-{number}" for number in range(30)]
    for leader in (1, -2):
        update = request(state(0, leader))
        (states,) = (topic.partition_states for topic in update.topic_states)
        update.topic_states = [
            UpdateMetadataTopicState(topic_name=name, topic_id=name.encode().rjust(16, b"0"), partition_states=states)
            for name in names
        ]
        with structlog.testing.capture_logs() as lines:
            finish(stage.image.update(update))
    assert [(line["event"], line["count"], line["first"]) for line in lines] == [("Topics were deleted", 30, names[:10])]
    assert stage.told[-30:] == [f"-{name}" for name in names]
