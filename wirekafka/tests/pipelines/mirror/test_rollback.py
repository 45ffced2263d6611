"""A target that has lost what was mirrored to it is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.mirror import rollback
from wirekafka.pipelines.mirror.rollback import check_checkpoint, check_target_ends

HERE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_target_that_ends_before_what_was_written_is_refused() -> None:
    with pytest.raises(PipelineError, match="orders-0 ends at offset 9, but was written up to 10: .* --restart-topic"):
        check_target_ends({HERE: 10}, {HERE: range(9)})


def test_a_target_whose_records_retention_has_deleted_is_whole() -> None:
    check_target_ends({HERE: 10, OTHER: 5}, {HERE: range(11, 11)})


def test_a_checkpoint_with_the_progress_of_the_target_is_taken() -> None:
    check_checkpoint("c", {HERE: 10}, lambda: {HERE: 10}, lambda *_: True)


def test_a_checkpoint_that_has_passed_only_markers_is_taken() -> None:
    asked: list[tuple[TopicPartition, int, int]] = []

    def has_records(partition: TopicPartition, first: int, end: int) -> bool:
        asked.append((partition, first, end))
        return False

    check_checkpoint("c", {HERE: 10, OTHER: 4}, lambda: {HERE: 8}, has_records)
    assert asked == [(HERE, 8, 10), (OTHER, 0, 4)]


def test_a_checkpoint_that_has_passed_records_which_the_target_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "ENDINGS_S", 0.0)
    with pytest.raises(PipelineError, match="orders-0 is mirrored up to offset 10, but the target's progress is 8"):
        check_checkpoint("c", {HERE: 10}, lambda: {HERE: 8}, lambda *_: True)


def test_a_progress_that_a_broker_completes_after_its_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "POLL_S", 0.0)
    answers: list[Mapping[TopicPartition, int]] = [{HERE: 8}, {HERE: 8}, {HERE: 10}]
    check_checkpoint("c", {HERE: 10}, lambda: answers.pop(0), lambda *_: True)
    assert answers == []
