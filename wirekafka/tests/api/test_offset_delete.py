from pathlib import Path
from typing import Any

from wirekafka.api.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wirekafka.errors import ErrorCode
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.group_client import commit, join_alone, run


def delete(caller: Caller, *places: tuple[str, int], group: str = "g") -> Any:
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
        for name, index in places
    ]
    return caller.ask(OffsetDeleteRequest(group_id=group, topics=topics), 0)


def errors_of(response: Any) -> list[int]:
    assert response.error_code == ErrorCode.NONE
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def test_offset_delete_forgets_offsets_of_partitions_that_exist(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        commit(caller)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response = delete(caller, ("flights", 1), ("flights", 2), ("flights", 4), ("flights", -1), ("nowhere", 0))
        assert errors_of(response) == [0, 0, unknown, unknown, unknown]
        assert caller.broker.groups.fetch_offsets("g") == {}

    run(body, tmp_path)


def test_offset_delete_for_the_whole_group_is_refused_by_its_state(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller, group="connect", protocol_type="connect")
        assert delete(caller, ("flights", 1), group="connect").error_code == ErrorCode.NON_EMPTY_GROUP
        assert delete(caller, ("flights", 1), group="nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert delete(caller, ("flights", 1), group="").error_code == ErrorCode.INVALID_GROUP_ID

    run(body, tmp_path)


def test_offset_delete_spares_what_a_consumer_reads(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        await join_alone(caller)
        caller.broker.topics.create("planes", 1)
        assert errors_of(delete(caller, ("flights", 1), ("planes", 0))) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]

    run(body, tmp_path)
