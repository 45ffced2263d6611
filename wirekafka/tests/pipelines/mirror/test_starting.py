"""Where a mirror without a checkpoint goes on."""

from __future__ import annotations

import json

import pytest

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.mirror.starting import EARLIEST, spark_offsets, starting_offsets

PLACE = TopicPartition("orders", 1)


@pytest.mark.parametrize("offset", [10, 15, 20])
def test_a_mirrored_partition_goes_on_at_its_progress(offset: int) -> None:
    assert starting_offsets({PLACE: range(10, 20)}, {PLACE: offset}, allows_data_loss=False) == {PLACE: offset}


def test_a_new_partition_begins_at_its_first_offset() -> None:
    assert starting_offsets({PLACE: range(10, 20)}, {}, allows_data_loss=False) == {PLACE: EARLIEST}


def test_a_partition_that_was_deleted_at_the_source_is_left_out() -> None:
    assert starting_offsets({}, {PLACE: 5}, allows_data_loss=False) == {}


def test_records_that_were_deleted_before_they_were_mirrored_are_an_error() -> None:
    with pytest.raises(PipelineError, match=r"the offsets 9 to 9 of orders-1 .* --allow-data-loss"):
        starting_offsets({PLACE: range(10, 20)}, {PLACE: 9}, allows_data_loss=False)


def test_deleted_records_are_skipped_if_that_is_allowed() -> None:
    assert starting_offsets({PLACE: range(10, 20)}, {PLACE: 3}, allows_data_loss=True) == {PLACE: 10}


def test_a_source_that_ends_before_the_progress_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"ends at offset 20.*--restart-topic orders"):
        starting_offsets({PLACE: range(10, 20)}, {PLACE: 21}, allows_data_loss=True)


def test_spark_gets_the_offsets_of_every_partition() -> None:
    offsets = {PLACE: 5, TopicPartition("orders", 0): EARLIEST, TopicPartition("stock", 0): 0}
    assert json.loads(spark_offsets(offsets)) == {"orders": {"1": 5, "0": -2}, "stock": {"0": 0}}


def test_spark_begins_at_the_earliest_offsets_if_no_topic_exists_yet() -> None:
    assert spark_offsets({}) == "earliest"
