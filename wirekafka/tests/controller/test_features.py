"""Changes of the finalized features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from wirekafka.controller.features import update_features
from wirekafka.controller.writes import DeposedError
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import FeatureUpdate, UpgradeType
from wirekafka.tests.controller.stage import Stage
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.cluster_state import FEATURES_DISABLED, FinalizedFeatures
from wirekafka.zookeeper.session import Create, Delete, SetData

GROUPS, TRANSACTIONS = "group.version", "transaction.version"
SUPPORTED = {GROUPS: (1, 1), TRANSACTIONS: (1, 2)}


def a_stage(*of_brokers: Mapping[str, tuple[int, int]], finalized: FinalizedFeatures | None = None) -> Stage:
    """Returns a cluster whose brokers support these levels, the least and the most of each feature."""
    stage = Stage()
    for broker_id, supported in enumerate(of_brokers or (SUPPORTED, SUPPORTED), 1):
        live = stage.add_broker(broker_id)
        features = {name: {"min_version": least, "max_version": most} for name, (least, most) in supported.items()}
        stage.context.live[broker_id] = replace(live, registration=replace(live.registration, features=features))
    if finalized is not None:
        stage.do(Create(paths.FEATURE, finalized.write()))
    return stage


def up(name: str, level: int) -> FeatureUpdate:
    return FeatureUpdate(name, level, UpgradeType.UPGRADE)


def down(name: str, level: int) -> FeatureUpdate:
    return FeatureUpdate(name, level, UpgradeType.SAFE_DOWNGRADE)


def update(stage: Stage, *updates: FeatureUpdate, validate_only: bool = False) -> int | None:
    return stage.run(update_features(stage.context, updates, validate_only=validate_only))


def stored(stage: Stage) -> FinalizedFeatures | None:
    found = stage.data(paths.FEATURE)
    return None if found is None else FinalizedFeatures.read(found.data)


def test_levels_are_written_with_the_next_epoch() -> None:
    stage = a_stage(finalized=FinalizedFeatures({GROUPS: 1}, unknown={"extension": 1}))
    assert update(stage, up(TRANSACTIONS, 2)) == 1
    assert stored(stage) == FinalizedFeatures({GROUPS: 1, TRANSACTIONS: 2}, unknown={"extension": 1})


def test_znode_that_does_not_exist_is_created() -> None:
    stage = a_stage()
    assert update(stage, up(GROUPS, 1)) == 0
    assert stored(stage) == FinalizedFeatures({GROUPS: 1})


def test_levels_of_disabled_features_mean_nothing() -> None:
    stage = a_stage(finalized=FinalizedFeatures({GROUPS: 1}, status=FEATURES_DISABLED))
    update(stage, up(TRANSACTIONS, 1))
    assert stored(stage) == FinalizedFeatures({TRANSACTIONS: 1})


def test_level_0_turns_a_feature_off() -> None:
    stage = a_stage(finalized=FinalizedFeatures({GROUPS: 1, TRANSACTIONS: 2}))
    assert update(stage, down(GROUPS, 0), down(TRANSACTIONS, 1)) == 1
    assert stored(stage) == FinalizedFeatures({TRANSACTIONS: 1})


@pytest.mark.parametrize(("updates", "validate_only"), [((up(GROUPS, 1),), False), ((down(TRANSACTIONS, 1),), True), ((), False)])
def test_nothing_is_written_without_need(updates: tuple[FeatureUpdate, ...], validate_only: bool) -> None:
    finalized = FinalizedFeatures({GROUPS: 1, TRANSACTIONS: 2})
    stage = a_stage(finalized=finalized)
    assert update(stage, *updates, validate_only=validate_only) is None
    assert stored(stage) == finalized


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (up(TRANSACTIONS, 2), "Broker 2 only supports versions 1-1"),
        (up(GROUPS, 1), "Broker 3 does not support this feature."),
        (up("metadata.version", 30), "Broker 1 does not support this feature."),
        (down("nonsense", 0), "Feature nonsense not found."),
        (up(TRANSACTIONS, -1), "A feature version cannot be less than 0."),
        (FeatureUpdate(TRANSACTIONS, 1, 9), "The controller does not support the given upgrade type."),
        (down(TRANSACTIONS, 1), "Can't downgrade to a newer version."),
    ],
)
def test_level_that_a_broker_does_not_support_changes_nothing(wanted: FeatureUpdate, reason: str) -> None:
    stage = a_stage(SUPPORTED, {GROUPS: (1, 1), TRANSACTIONS: (1, 1)}, {TRANSACTIONS: (1, 2)})
    with pytest.raises(KafkaError) as refused:
        update(stage, up(TRANSACTIONS, 1), wanted)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert refused.value.message == f"Invalid update version {wanted.level} for feature {wanted.name}. {reason}"
    assert stored(stage) is None


def test_the_last_of_several_updates_of_a_feature_counts() -> None:
    stage = a_stage()
    update(stage, up(TRANSACTIONS, 99), up(TRANSACTIONS, 1))
    assert stored(stage) == FinalizedFeatures({TRANSACTIONS: 1})


def test_level_is_not_lowered_unless_the_client_says_so() -> None:
    stage = a_stage(finalized=FinalizedFeatures({TRANSACTIONS: 2}))
    with pytest.raises(KafkaError) as refused:
        update(stage, up(TRANSACTIONS, 1))
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("is_deleted", [False, True])
def test_change_meanwhile_is_kept(is_deleted: bool) -> None:
    stage = a_stage(finalized=FinalizedFeatures({}))
    other = stage.connect()
    stage.turn()
    changes = [Delete(paths.FEATURE) if is_deleted else SetData(paths.FEATURE, FinalizedFeatures({GROUPS: 1}).write())]

    def interfere(operation: object) -> None:
        if changes:
            other.submit(changes.pop(), lambda result: None)

    stage.client.choose_fault = interfere
    update(stage, up(TRANSACTIONS, 1))
    assert stored(stage) == FinalizedFeatures({TRANSACTIONS: 1} if is_deleted else {GROUPS: 1, TRANSACTIONS: 1})


def test_malformed_znode_stays() -> None:
    stage = a_stage()
    stage.do(Create(paths.FEATURE, b"?"))
    with pytest.raises(KafkaError) as refused:
        update(stage, up(GROUPS, 1))
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_deposed_controller_changes_no_feature() -> None:
    stage = a_stage()
    stage.depose()
    with pytest.raises(DeposedError):
        update(stage, up(GROUPS, 1))
    assert stored(stage) is None
