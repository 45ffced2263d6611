"""The store in memory does what the journal does: the contract of `MetadataStore`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.journal import Journal
from wirekafka.metadata.store import MetadataStore, StoredTopic
from wirekafka.names import new_topic_id
from wirekafka.testing.memory_store import MemoryStore
from wirekafka.tests.replication.memory_logs import FullDisk

ID, OTHER_ID = new_topic_id(), new_topic_id()


class Stage(NamedTuple):
    """A store, and what a test does to its surroundings.

    Attributes:
        reopen: returns the store as the next start of the broker finds it.
        fill_disk: from now on every change fails.
    """

    store: MetadataStore
    reopen: Callable[[], MetadataStore]
    fill_disk: Callable[[], object]


def journal(path: Path) -> Stage:
    disk = FullDisk()
    return Stage(
        Journal.open(str(path), disk), lambda: Journal.open(str(path), FullDisk()), lambda: setattr(disk, "room_bytes", 0)
    )


def memory(path: Path) -> Stage:
    store = MemoryStore()
    return Stage(store, lambda: store, lambda: setattr(store, "error", ErrorCode.KAFKA_STORAGE_ERROR))


every_store = pytest.mark.parametrize("make", [journal, memory])

CHANGES: list[Callable[[MetadataStore], None]] = [
    lambda store: store.put_topic("b", OTHER_ID, 1, {}),
    lambda store: store.put_topic("a", ID, 4, {}),
    lambda store: store.delete_topic("a"),
    lambda store: store.put_broker_configs("", {"log.retention.ms": "8"}),
    lambda store: store.put_group_configs("g", {}),
    lambda store: store.put_features({"group.version": 0}, 3),
    lambda store: store.forget_deleted(),
]


def content(store: MetadataStore) -> tuple[object, ...]:
    configs = dict(store.broker_configs), dict(store.group_configs)
    return dict(store.topics), dict(store.deleted), *configs, dict(store.feature_levels), store.features_epoch


def fill(store: MetadataStore) -> None:
    store.put_topic("a", ID, 3, {"retention.ms": "5"})
    store.put_topic("gone", OTHER_ID, 1, {})
    store.delete_topic("gone")
    store.put_broker_configs("", {"log.retention.ms": "7"})
    store.put_group_configs("g", {"share.auto.offset.reset": "earliest"})
    store.put_features({"group.version": 1}, 2)


@every_store
def test_store_has_every_change_at_once_and_after_a_restart(tmp_path: Path, make: Callable[[Path], Stage]) -> None:
    stage = make(tmp_path)
    fill(stage.store)
    expected = (
        {"a": StoredTopic(ID, 3, {"retention.ms": "5"})},
        {OTHER_ID: "gone"},
        {"": {"log.retention.ms": "7"}},
        {"g": {"share.auto.offset.reset": "earliest"}},
        {"group.version": 1},
        2,
    )
    assert content(stage.store) == expected
    stage.store.close()
    assert content(stage.reopen()) == expected


@every_store
@pytest.mark.parametrize("change", CHANGES)
def test_store_changes_nothing_if_a_change_fails(
    tmp_path: Path, make: Callable[[Path], Stage], change: Callable[[MetadataStore], None]
) -> None:
    stage = make(tmp_path)
    fill(stage.store)
    before = content(stage.store)
    stage.fill_disk()
    with pytest.raises(KafkaError) as caught:
        change(stage.store)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert content(stage.store) == content(stage.reopen()) == before


@every_store
def test_store_keeps_the_id_of_a_deleted_topic_until_it_is_forgotten(tmp_path: Path, make: Callable[[Path], Stage]) -> None:
    stage = make(tmp_path)
    for name, topic_id in (("a", ID), ("b", OTHER_ID)):
        stage.store.put_topic(name, topic_id, 1, {})
        stage.store.delete_topic(name)
    stage.store.forget_deleted_topic(ID)
    assert stage.store.deleted == {OTHER_ID: "b"}
    stage.store.forget_deleted()
    assert stage.store.deleted == stage.reopen().deleted == {}


@every_store
def test_store_forgets_a_group_whose_settings_are_removed(tmp_path: Path, make: Callable[[Path], Stage]) -> None:
    stage = make(tmp_path)
    fill(stage.store)
    stage.store.put_group_configs("g", {})
    assert stage.store.group_configs == stage.reopen().group_configs == {}


@every_store
def test_store_says_while_changes_are_made_together(tmp_path: Path, make: Callable[[Path], Stage]) -> None:
    store = make(tmp_path).store
    with store.together():
        assert store.is_sync_put_off
        store.put_topic("a", ID, 1, {})
    assert not store.is_sync_put_off
    assert set(store.topics) == {"a"}
