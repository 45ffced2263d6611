"""The registration of a broker in ZooKeeper, and its epoch."""

from collections.abc import Mapping

import pytest
import structlog.testing
import trio

from wirekafka.config.endpoints import Listener
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.registration import Registration
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.membership.supervision import keep
from wirekafka.metadata.features import Levels
from wirekafka.tests.membership.zookeeper import NOW_MS, Stage, play, until
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import BrokerRegistration, Endpoint, write_cluster_id
from wirekafka.zookeeper.model.client import Fault
from wirekafka.zookeeper.session import Create, Delete, Exists, GetData, Multi, SetData


def endpoint(port: int = 9092) -> Endpoint:
    return Endpoint(Listener("PLAINTEXT", "127.0.0.1", port), "PLAINTEXT")


async def registration(
    zookeeper: RetryingClient, node_id: int = 3, port: int = 9092, features: Mapping[str, Levels] | None = None
) -> Registration:
    await zookeeper.create_persistent(paths.BROKER_IDS)
    await zookeeper.create_persistent(paths.CLUSTER_ID, write_cluster_id("ours"))
    return Registration(
        zookeeper,
        node_id,
        (endpoint(port),),
        "here",
        cluster_id="ours",
        former_session_ms=18_000,
        now_ms=lambda: NOW_MS,
        features=features,
    )


def test_broker_registers_and_its_epoch_is_the_czxid() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        assert made.broker_epoch == -1
        await made.register()
        found = await stage.zookeeper.ask(GetData("/brokers/ids/3"))
        read = BrokerRegistration.read(3, found.data)
        assert read == BrokerRegistration((endpoint(),), NOW_MS, "here", unknown={"wirekafka": {"features": {}}})
        assert made.broker_epoch == found.stat.czxid
        assert found.stat.ephemeral_owner == stage.client.session_id

    play(act)


def test_broker_registers_its_features_as_old_brokers_can_read_them() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper, features={"a": Levels(0, 2), "b": Levels(3, 4)})
        await made.register()
        found = await stage.zookeeper.ask(GetData("/brokers/ids/3"))
        read, b = BrokerRegistration.read(3, found.data), {"min_version": 3, "max_version": 4}
        assert read.features == {"a": {"min_version": 1, "max_version": 2}, "b": b}
        assert read.unknown == {"wirekafka": {"features": {"a": {"min_version": 0, "max_version": 2}, "b": b}}}

    play(act)


def test_broker_registers_again_with_a_new_epoch_after_each_expiry() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        told: list[int] = []
        made.on_register.append(lambda: told.append(made.broker_epoch))
        await made.register()
        epochs = [made.broker_epoch]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            for _ in range(3):
                stage.expire()
                await until(lambda: made.broker_epoch != epochs[-1])
                epochs.append(made.broker_epoch)
            nursery.cancel_scope.cancel()
        assert epochs == sorted(set(epochs)) == told
        stat = await stage.zookeeper.ask(Exists("/brokers/ids/3"))
        assert stat is not None
        assert stat.czxid == made.broker_epoch

    play(act)


def test_controller_may_know_a_registration_before_the_broker_only_while_the_broker_registers() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        found: list[bool] = []

        def note(operation: object) -> None:
            if isinstance(operation, Create):
                found.append(made.is_present(made.broker_epoch + 1))

        stage.client.choose_fault = note
        await made.register()
        first_epoch = made.broker_epoch
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            stage.expire()
            await until(lambda: made.broker_epoch != first_epoch)
            nursery.cancel_scope.cancel()
        assert found == [True, True]
        assert [made.is_present(made.broker_epoch + step) for step in (-1, 0, 1)] == [False, True, False]

    play(act)


def test_lost_reply_leaves_one_registration() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        faults = [Fault.REPLY_LOST]
        stage.client.choose_fault = lambda operation: faults.pop() if isinstance(operation, Create) and faults else None
        await made.register()
        assert faults == []
        stat = await stage.zookeeper.ask(Exists("/brokers/ids/3"))
        assert stat is not None
        assert stat.czxid == made.broker_epoch

    play(act)


def test_znode_of_an_expired_session_of_this_process_is_deleted() -> None:
    """ZooKeeper may show the znode for a while after the expiry: KAFKA-7165."""

    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        await made.register()
        first = made.broker_epoch
        second = RetryingClient(stage.connect())
        made._zookeeper = second
        await second.ask(Exists("/"))
        await made._register_when_free()
        assert made.broker_epoch > first
        stat = await second.ask(Exists("/brokers/ids/3"))
        assert stat is not None
        assert stat.ephemeral_owner == second.client.session_id

    play(act)


def test_broker_waits_for_the_end_of_the_session_of_its_killed_process() -> None:
    async def act(stage: Stage) -> None:
        killed = stage.connect()
        await (await registration(RetryingClient(killed))).register()
        made = await registration(stage.zookeeper)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.register)
            await trio.sleep(5)
            assert made.broker_epoch == -1
            stage.expire(killed)
        assert made.broker_epoch > 0

    play(act)


def test_broker_with_the_id_of_a_living_one_is_refused() -> None:
    async def act(stage: Stage) -> None:
        await (await registration(RetryingClient(stage.connect()))).register()
        made = await registration(stage.zookeeper)
        with pytest.raises(KafkaError, match=r"broker\.id must be unique") as caught:
            await made.register()
        assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION

    play(act)


def test_broker_with_the_address_of_a_living_one_is_refused() -> None:
    async def act(stage: Stage) -> None:
        await (await registration(stage.zookeeper, 1)).register()
        await (await registration(stage.zookeeper, 2, port=9093)).register()
        with pytest.raises(KafkaError, match="registered in ZooKeeper by broker 2"):
            await (await registration(stage.zookeeper, 3, port=9093)).register()

    play(act)


def test_broker_waits_no_longer_than_twice_the_session_and_says_how_long() -> None:
    async def act(stage: Stage) -> None:
        await (await registration(RetryingClient(stage.connect()))).register()
        made = await registration(stage.zookeeper)
        with structlog.testing.capture_logs() as logs, pytest.raises(KafkaError):
            await made.register()
        assert trio.current_time() == pytest.approx(18)
        assert [line["at_most_seconds"] for line in logs if "waiting for its end" in line["event"]] == [18]

    play(act)


def test_znode_that_an_operator_deletes_or_replaces_is_created_again() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        await made.register()
        first, other = made.broker_epoch, RetryingClient(stage.connect())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            await other.ask(Delete("/brokers/ids/3"))
            await until(lambda: made.broker_epoch > first)
            second = made.broker_epoch
            await other.ask(Multi((Delete("/brokers/ids/3"), Create("/brokers/ids/3", b"nonsense", ephemeral=True))))
            with structlog.testing.capture_logs() as logs:
                await trio.sleep(100)
            assert [line["log_level"] for line in logs] == ["error"]
            stage.expire(other.client)  # type: ignore[arg-type]
            await until(lambda: made.broker_epoch > second)
            nursery.cancel_scope.cancel()

    play(act)


def test_broker_does_not_register_again_in_another_cluster() -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        await made.register()
        first, other = made.broker_epoch, RetryingClient(stage.connect())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, made.run)
            with structlog.testing.capture_logs() as logs:
                await other.ask(SetData(paths.CLUSTER_ID, write_cluster_id("theirs")))
                stage.expire()
                await until(lambda: any("/cluster/id in ZooKeeper is theirs" in str(line.get("error")) for line in logs))
            assert await other.ask(Exists("/brokers/ids/3")) is None
            await other.ask(SetData(paths.CLUSTER_ID, write_cluster_id("ours")))
            await until(lambda: made.broker_epoch > first)
            nursery.cancel_scope.cancel()

    play(act)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version":5}', b'{"version":"x","endpoints":7}', b"[" * 100_000])
def test_registration_of_another_broker_that_cannot_be_read_does_not_stop_the_start(content: bytes) -> None:
    async def act(stage: Stage) -> None:
        made = await registration(stage.zookeeper)
        for name in ("7", "9" * 5_000, "seven"):
            await stage.zookeeper.ask(Create(f"{paths.BROKER_IDS}/{name}", content))
        with structlog.testing.capture_logs() as logs:
            await made.register()
        assert [line["event"] for line in logs][0] == "The registration of another broker cannot be read"
        assert made.broker_epoch > 0

    play(act)
