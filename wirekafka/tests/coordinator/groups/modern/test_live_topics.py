from pathlib import Path

from wirekafka.coordinator.groups.modern.live_topics import LiveTopics
from wirekafka.tests.api.data_plane import Caller, run


def test_live_topics_tell_what_has_come_grown_and_gone(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topics = caller.broker.topics
        live = LiveTopics(topics, "r", lambda: 1000)
        assert (live.rack, live.version, live.find("a")) == ("r", 1000, None)
        created = topics.create("a", 1)
        assert live.find("a") is live.find_by_id(created.topic_id) is created
        assert created in list(live)
        one = live.hashes.of_topics({"a"})
        revision, version = live.revision, live.version
        assert version > 1000
        topics.add_partitions(created, 2)
        two = live.hashes.of_topics({"a"})
        assert two != one
        assert live.revision != revision
        revision, version = live.revision, live.version
        topics.delete(created)
        assert live.revision != revision
        assert live.version == version, "an expression has nothing new to find"
        assert live.hashes.of_topics({"a"}) == 0
        topics.create("a", 2)
        assert live.hashes.of_topics({"a"}) not in (0, two), "another topic has the name now"

    run(body, tmp_path)
