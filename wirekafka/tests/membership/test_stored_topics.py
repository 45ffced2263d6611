"""The partition counts of the internal topics at the start."""

import structlog.testing
import trio

from wirekafka.membership.stored_topics import follow_untold, read_partition_counts, read_topic_names
from wirekafka.metadata.image import ClusterImage, TopicImage
from wirekafka.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.tests.membership.zookeeper import Stage, play, until
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import ReplicaAssignment, TopicAssignment
from wirekafka.zookeeper.session import Delete


def test_counts_are_those_of_the_assignments_that_exist() -> None:
    async def act(stage: Stage) -> None:
        assert await read_partition_counts(stage.zookeeper) == {}
        assignment = TopicAssignment(bytes(16), {index: ReplicaAssignment((1, 2)) for index in range(13)})
        await stage.zookeeper.create_persistent(paths.topic(GROUP_METADATA_TOPIC), assignment.write())
        assert await read_partition_counts(stage.zookeeper) == {GROUP_METADATA_TOPIC: 13}

    play(act)


def test_names_are_those_of_all_topics_that_exist() -> None:
    async def act(stage: Stage) -> None:
        assert await read_topic_names(stage.zookeeper) == set()
        for name in ("t", GROUP_METADATA_TOPIC):
            await stage.zookeeper.create_persistent(paths.topic(name), b"{}")
        assert await read_topic_names(stage.zookeeper) == {"t", GROUP_METADATA_TOPIC}

    play(act)


def test_untold_topic_is_forgotten_when_it_is_deleted() -> None:
    async def act(stage: Stage) -> None:
        for name in ("early", "late", "kept"):
            await stage.zookeeper.create_persistent(paths.topic(name), b"{}")
        image = ClusterImage()
        image.untold = await read_topic_names(stage.zookeeper)
        await stage.zookeeper.ask(Delete(paths.topic("early")))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow_untold, stage.zookeeper, image)
            await until(lambda: image.untold == {"late", "kept"})
            await stage.zookeeper.ask(Delete(paths.topic("late")))
            await until(lambda: image.untold == {"kept"})
            nursery.cancel_scope.cancel()

    play(act)


def test_assignment_that_cannot_be_read_does_not_stop_the_start() -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.create_persistent(paths.topic(TRANSACTION_STATE_TOPIC), b"[]")
        with structlog.testing.capture_logs() as logs:
            assert await read_partition_counts(stage.zookeeper) == {}
        assert [line["log_level"] for line in logs] == ["error"]

    play(act)


def test_image_counts_partitions_that_the_controller_has_not_told_yet() -> None:
    image = ClusterImage()
    assert image.partition_count("t") is None
    image.stored_counts["t"] = 5
    assert image.partition_count("t") == 5
    image.topics["t"] = TopicImage("t", bytes(16))
    assert image.partition_count("t") == 5
