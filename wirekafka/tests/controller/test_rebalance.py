"""The automatic return of leaders to their preferred replicas."""

from __future__ import annotations

import pytest

from wirekafka.controller.rebalance import imbalanced, rebalance
from wirekafka.controller.settings import AutoRebalance, ControllerSettings
from wirekafka.names import TopicPartition
from wirekafka.tests.controller.stage import Stage


@pytest.mark.parametrize(
    ("preferred", "elsewhere", "percent", "expected"),
    [
        ({}, {}, 10, set()),
        ({1: 10}, {}, 10, set()),
        ({1: 10}, {1: 1}, 10, set()),
        ({1: 10}, {1: 2}, 10, {1}),
        ({1: 10, 2: 1}, {1: 1, 2: 1}, 10, {2}),
        ({1: 3}, {1: 1}, 0, {1}),
        ({1: 3}, {1: 3}, 100, set()),
    ],
)
def test_imbalanced(preferred: dict[int, int], elsewhere: dict[int, int], percent: int, expected: set[int]) -> None:
    assert imbalanced(preferred, elsewhere, percent) == expected


def _stage(*leaders: int, percent: int = 40) -> Stage:
    """Returns a cluster whose partitions prefer broker 1, and have these leaders."""
    stage = Stage(ControllerSettings(broker_id=1, auto_rebalance=AutoRebalance(imbalance_percent=percent)))
    stage.add_broker(1)
    stage.add_broker(2)
    stage.add_topic("t", dict.fromkeys(range(len(leaders)), (1, 2)))
    for index, leader in enumerate(leaders):
        stage.add_state(TopicPartition("t", index), leader, (1, 2))
    return stage


def _leaders(stage: Stage) -> list[int]:
    return [stage.state(name).leader for name in stage.context.partitions_of("t")]


def test_leaders_of_a_broker_that_leads_too_few_of_its_partitions_move_back() -> None:
    stage = _stage(1, 2, 2)
    stage.event(rebalance)
    assert _leaders(stage) == [1, 1, 1]
    assert stage.leader_and_isr(2).keys() == {TopicPartition("t", 1), TopicPartition("t", 2)}


def test_leaders_of_a_broker_that_leads_enough_stay() -> None:
    stage = _stage(1, 1, 2)
    stage.event(rebalance)
    assert _leaders(stage) == [1, 1, 2]


def test_preferred_replica_that_is_not_in_sync_does_not_lead() -> None:
    stage = _stage(2)
    stage.add_topic("u", {0: (1, 2)})
    stage.add_state(TopicPartition("u", 0), 2, (2,))
    stage.event(rebalance)
    assert _leaders(stage) == [1]
    assert stage.state(TopicPartition("u", 0)).leader == 2


def test_partitions_of_a_broker_that_is_not_available_stay() -> None:
    stage = _stage(2, 2)
    stage.context.shutting_down.add(1)
    stage.event(rebalance)
    assert _leaders(stage) == [2, 2]


def test_topics_that_are_being_deleted_do_not_count() -> None:
    stage = _stage(2, 2)
    stage.context.deleting["t"] = None
    stage.event(rebalance)
    assert _leaders(stage) == [2, 2]


def test_rebalance_that_is_disabled_moves_nothing() -> None:
    stage = _stage(2, 2)
    stage.settings = ControllerSettings(broker_id=1)
    stage.event(rebalance)
    assert _leaders(stage) == [2, 2]
