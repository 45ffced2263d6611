"""The levels of features: the supported ones, the finalized ones, and their changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata.features import (
    GROUP_VERSION,
    METADATA_VERSION,
    SHARE_VERSION,
    TRANSACTION_VERSION,
    Features,
    FeatureUpdate,
    UpgradeType,
)
from wirekafka.metadata.journal import Journal
from wirekafka.tests.replication.memory_logs import FullDisk

UP, SAFELY, UNSAFELY = UpgradeType
NEWEST = {GROUP_VERSION: 1, METADATA_VERSION: 30, SHARE_VERSION: 1, TRANSACTION_VERSION: 2}


def open_features(path: Path, hidden: str = "", storage: Storage | None = None) -> Features:
    config = BrokerConfig.load(None, {"wirekafka.api.versions.max": hidden, "node.id": "5"})
    return Features(config, Journal.open(str(path), storage or Storage()))


def update(features: Features, *updates: tuple[str, int, int], validate_only: bool = False) -> str | None:
    """Returns the INVALID_UPDATE_VERSION of an update; None if the update is accepted."""
    try:
        features.update([FeatureUpdate(*each) for each in updates], validate_only=validate_only)
    except KafkaError as error:
        return str(error).removeprefix("INVALID_UPDATE_VERSION: ")
    return None


def test_features_are_at_their_newest_levels_unless_changed(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    assert features.finalized == NEWEST
    assert {name: str(levels) for name, levels in features.supported.items()} == {
        GROUP_VERSION: "0-1",
        METADATA_VERSION: "30",
        SHARE_VERSION: "0-1",
        TRANSACTION_VERSION: "0-2",
    }
    assert features.epoch == 0


def test_levels_outlive_the_broker(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    assert update(features, (TRANSACTION_VERSION, 1, SAFELY), (GROUP_VERSION, 0, UNSAFELY)) is None
    changed = {METADATA_VERSION: 30, SHARE_VERSION: 1, TRANSACTION_VERSION: 1}
    assert features.finalized == changed
    again = open_features(tmp_path)
    assert again.finalized == changed
    assert (again.level(GROUP_VERSION), again.epoch) == (0, 1)
    assert update(again, (GROUP_VERSION, 1, UP)) is None
    assert open_features(tmp_path).finalized == {**changed, GROUP_VERSION: 1}
    assert open_features(tmp_path).epoch == 2


def test_update_to_the_level_that_is_had_changes_nothing(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    changes: list[None] = []
    features.on_change.append(lambda: changes.append(None))
    assert update(features, (TRANSACTION_VERSION, 2, UP), (GROUP_VERSION, 1, SAFELY), (METADATA_VERSION, 30, UNSAFELY)) is None
    assert update(features) is None
    assert (features.finalized, features.epoch, changes) == (NEWEST, 0, [])


def test_update_that_is_only_checked_changes_nothing(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    assert update(features, (TRANSACTION_VERSION, 0, SAFELY), validate_only=True) is None
    assert update(features, (TRANSACTION_VERSION, 3, UP), validate_only=True) is not None
    assert (features.finalized, features.epoch) == (NEWEST, 0)
    assert open_features(tmp_path).finalized == NEWEST


def test_who_wants_to_know_hears_of_a_change_when_it_holds(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    heard: list[int] = []
    features.on_change.append(lambda: heard.append(features.level(SHARE_VERSION)))
    assert update(features, (SHARE_VERSION, 0, SAFELY), (TRANSACTION_VERSION, 0, SAFELY)) is None
    assert update(features, (SHARE_VERSION, 1, UP)) is None
    assert heard == [0, 1]


@pytest.mark.parametrize(
    ("name", "level", "upgrade_type", "reason"),
    [
        (TRANSACTION_VERSION, 1, 0, "The controller does not support the given upgrade type."),
        (TRANSACTION_VERSION, 1, 4, "The controller does not support the given upgrade type."),
        (TRANSACTION_VERSION, -1, SAFELY, "A feature version cannot be less than 0."),
        (TRANSACTION_VERSION, 3, UP, "Local controller 5 only supports versions 0-2"),
        (METADATA_VERSION, 29, SAFELY, "Local controller 5 only supports versions 30"),
        (METADATA_VERSION, 31, UP, "Local controller 5 only supports versions 30"),
        (METADATA_VERSION, 0, UNSAFELY, "Local controller 5 only supports versions 30"),
        ("kraft.version", 1, UP, "Local controller 5 does not support this feature."),
        ("kraft.version", 0, SAFELY, "Feature kraft.version not found."),
        ("", 0, SAFELY, "Feature  not found."),
        (
            TRANSACTION_VERSION,
            1,
            UP,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        ),
    ],
)
def test_level_that_cannot_be_is_refused_in_the_words_of_kafka(
    tmp_path: Path, name: str, level: int, upgrade_type: int, reason: str
) -> None:
    features = open_features(tmp_path)
    message = f"Invalid update version {level} for feature {name}. {reason}"
    assert update(features, (GROUP_VERSION, 0, SAFELY), (name, level, upgrade_type)) == message
    assert (features.finalized, features.epoch) == (NEWEST, 0)


@pytest.mark.parametrize("upgrade_type", [SAFELY, UNSAFELY])
def test_way_up_is_no_downgrade(tmp_path: Path, upgrade_type: int) -> None:
    features = open_features(tmp_path)
    update(features, (TRANSACTION_VERSION, 0, SAFELY))
    refusal = update(features, (TRANSACTION_VERSION, 1, upgrade_type))
    assert refusal == "Invalid update version 1 for feature transaction.version. Can't downgrade to a newer version."
    assert features.level(TRANSACTION_VERSION) == 0


def test_the_last_of_several_updates_of_a_feature_counts(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    assert update(features, (TRANSACTION_VERSION, 9, UP), (TRANSACTION_VERSION, 1, SAFELY)) is None
    assert features.level(TRANSACTION_VERSION) == 1


def test_levels_that_need_what_is_hidden_cannot_be_had(tmp_path: Path) -> None:
    update(open_features(tmp_path), (TRANSACTION_VERSION, 1, SAFELY))
    update(open_features(tmp_path), (TRANSACTION_VERSION, 2, UP))
    features = open_features(tmp_path, "EndTxn:4,ShareGroupHeartbeat:none,DescribeLogDirs:4,ConsumerGroupHeartbeat:0")
    assert features.finalized == {GROUP_VERSION: 1, TRANSACTION_VERSION: 1}
    assert {name: str(levels) for name, levels in features.supported.items()} == {
        GROUP_VERSION: "0-1",
        TRANSACTION_VERSION: "0-1",
    }
    assert features.level(SHARE_VERSION) == features.level(METADATA_VERSION) == 0
    refusal = update(features, (TRANSACTION_VERSION, 2, UP))
    assert refusal == "Invalid update version 2 for feature transaction.version. Local controller 5 only supports versions 0-1"
    assert open_features(tmp_path).finalized == NEWEST, "what was chosen is remembered"


def test_feature_is_required_only_where_it_is_switched_on(tmp_path: Path) -> None:
    features = open_features(tmp_path)
    features.require(SHARE_VERSION)
    update(features, (SHARE_VERSION, 0, SAFELY))
    with pytest.raises(KafkaError) as caught:
        features.require(SHARE_VERSION)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_levels_that_cannot_be_written_down_do_not_change(tmp_path: Path) -> None:
    disk = FullDisk()
    features = open_features(tmp_path, storage=disk)
    disk.room_bytes = 10
    with pytest.raises(KafkaError) as caught:
        features.update([FeatureUpdate(TRANSACTION_VERSION, 1, SAFELY)], validate_only=False)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (features.finalized, features.epoch) == (NEWEST, 0)
    assert open_features(tmp_path).finalized == NEWEST
