"""The entry of a broker into a cluster."""

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.cluster_id import join_cluster
from wirekafka.tests.membership.zookeeper import Stage, play
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration, write_cluster_id
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Exists, GetData


def test_first_broker_makes_the_id_and_the_znodes_of_the_cluster() -> None:
    async def act(stage: Stage) -> None:
        assert await join_cluster(stage.zookeeper, lambda: "new") == "new"
        assert (await stage.zookeeper.ask(GetData(paths.CLUSTER_ID))).data == b'{"version":"1","id":"new"}'
        for path in paths.PERSISTENT:
            assert await stage.zookeeper.ask(Exists(path)) is not None

    play(act)


def test_next_broker_takes_the_id_that_is_there() -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.create_persistent(paths.CLUSTER_ID, write_cluster_id("old"))
        assert await join_cluster(stage.zookeeper, lambda: "new") == "old"

    play(act)


def test_broker_of_a_cluster_creates_no_other_cluster_in_an_empty_chroot() -> None:
    async def act(stage: Stage) -> None:
        with pytest.raises(KafkaError, match="belongs to cluster old, and there is no cluster in the chroot") as caught:
            await join_cluster(stage.zookeeper, lambda: "new", "old")
        assert caught.value.code is ErrorCode.INCONSISTENT_CLUSTER_ID
        assert [path for path in paths.PERSISTENT if await stage.zookeeper.ask(Exists(path)) is not None] == []

    play(act)


def test_lost_connections_delay_the_entry() -> None:
    async def act(stage: Stage) -> None:
        count = 0

        def lose(operation: object) -> Fault | None:
            nonlocal count
            count += 1
            return [None, Fault.REPLY_LOST, None, Fault.REQUEST_LOST][count % 4]

        stage.client.choose_fault = lose
        assert await join_cluster(stage.zookeeper, lambda: "new") == "new"
        assert count > 10

    play(act)


@pytest.mark.parametrize(
    ("path", "data", "message"),
    [
        (paths.MIGRATION, b"{}", "migrates to KRaft"),
        (paths.CONTROLLER, ControllerRegistration(3000, 1, 7).write(), "A KRaft controller, 3000"),
    ],
)
def test_cluster_with_kraft_is_refused(path: str, data: bytes, message: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.ask(Create(path, data))
        with pytest.raises(KafkaError, match=message) as caught:
            await join_cluster(stage.zookeeper, lambda: "new")
        assert caught.value.code is ErrorCode.INVALID_CONFIG
        assert await stage.zookeeper.ask(Exists(paths.CLUSTER_ID)) is None

    play(act)


def test_cluster_of_zookeeper_is_joined() -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.ask(Create(paths.CONTROLLER, ControllerRegistration(1, 1).write()))
        assert await join_cluster(stage.zookeeper, lambda: "new") == "new"

    play(act)
