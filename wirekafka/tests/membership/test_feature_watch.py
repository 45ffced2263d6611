"""The watch of the finalized features."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import structlog.testing
import trio

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.membership.feature_watch import FeatureWatch
from wirekafka.metadata.cluster_features import ClusterFeatures
from wirekafka.tests.membership.zookeeper import Stage, play, until
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_DISABLED, FinalizedFeatures
from wirekafka.zookeeper.session import Create, Delete, SetData

MEMBER = {"zookeeper.connect": "localhost:2181", "broker.id": "1"}


def followed() -> ClusterFeatures:
    return ClusterFeatures(BrokerConfig.load(None, MEMBER))


def levels(**finalized: int) -> bytes:
    return FinalizedFeatures({f"{name}.version": level for name, level in finalized.items()}).write()


def test_new_cluster_has_no_features() -> None:
    async def act(stage: Stage) -> None:
        features = followed()
        await FeatureWatch(stage.zookeeper, features).load()
        assert (features.finalized, features.epoch) == ({}, 0)
        assert features.supported["transaction.version"] == (0, 2)
        assert "metadata.version" not in features.supported

    play(act)


def test_start_knows_the_finalized_levels_and_their_epoch() -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.ask(Create(paths.FEATURE, levels()))
        await stage.zookeeper.ask(SetData(paths.FEATURE, levels(transaction=1)))
        features = followed()
        await FeatureWatch(stage.zookeeper, features).load()
        assert (features.finalized, features.epoch) == ({"transaction.version": 1}, 1)

    play(act)


@pytest.mark.parametrize(
    ("finalized", "message"),
    [({"transaction": 3}, "transaction.version at level 3"), ({"strange": 1}, "strange.version at level 1")],
)
def test_cluster_with_a_feature_that_the_broker_lacks_is_refused(finalized: Mapping[str, int], message: str) -> None:
    async def act(stage: Stage) -> None:
        await stage.zookeeper.ask(Create(paths.FEATURE, levels(**finalized)))
        with pytest.raises(KafkaError, match=message) as caught:
            await FeatureWatch(stage.zookeeper, followed()).load()
        assert caught.value.code is ErrorCode.INVALID_CONFIG

    play(act)


def test_disabled_features_are_off() -> None:
    async def act(stage: Stage) -> None:
        content = FinalizedFeatures({"transaction.version": 2}, FEATURES_DISABLED)
        await stage.zookeeper.ask(Create(paths.FEATURE, content.write()))
        features = followed()
        await FeatureWatch(stage.zookeeper, features).load()
        assert features.finalized == {}

    play(act)


def test_running_broker_follows_every_change() -> None:
    async def act(stage: Stage) -> None:
        features = followed()
        told: list[int] = []
        features.on_change.append(lambda: told.append(features.level("transaction.version")))
        watch = FeatureWatch(stage.zookeeper, features)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await stage.zookeeper.ask(Create(paths.FEATURE, levels(transaction=2)))
            await until(lambda: told == [2])
            await stage.zookeeper.ask(SetData(paths.FEATURE, levels(transaction=1)))
            await until(lambda: told == [2, 1])
            stage.expire()
            await stage.zookeeper.ask(SetData(paths.FEATURE, levels(transaction=1)))
            await until(lambda: features.epoch == 2)
            await stage.zookeeper.ask(Delete(paths.FEATURE))
            await until(lambda: told == [2, 1, 0])
            nursery.cancel_scope.cancel()

    play(act)


@pytest.mark.parametrize(("content", "event"), [(b"damaged", "cannot be read"), (levels(transaction=9), "does not support")])
def test_running_broker_says_what_it_cannot_follow(content: bytes, event: str) -> None:
    async def act(stage: Stage) -> None:
        features = followed()
        await stage.zookeeper.ask(Create(paths.FEATURE, levels(transaction=2)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(FeatureWatch(stage.zookeeper, features).run)
            await until(lambda: features.level("transaction.version"))
            with structlog.testing.capture_logs() as logs:
                await stage.zookeeper.ask(SetData(paths.FEATURE, content))
                await until(lambda: logs)
            assert event in logs[0]["event"]
            assert features.level("transaction.version") == 2
            nursery.cancel_scope.cancel()

    play(act)
