"""The stored plan of a batch."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.types import LongType, StringType, StructField, StructType

from wirekafka.pipelines.ingest.batch_plans import BatchPlan, TopicPlan, stored_plan
from wirekafka.pipelines.lake import layout
from wirekafka.pipelines.lake.files import LocalFiles

FIRST = {"t": TopicPlan(StructType([StructField("a", LongType())]), all_fit=False)}
SECOND = {"t": TopicPlan(StructType([StructField("b", StringType())]), writers={7: '"x"'}, refused={8: "no"})}


def must_not_be_made() -> BatchPlan:
    raise AssertionError("the plan is stored")


def test_stored_plan_of_a_repeated_batch_is_the_first_one(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert stored_plan(files, "q", 3, lambda: FIRST) == FIRST
    assert stored_plan(LocalFiles(tmp_path), "q", 3, must_not_be_made) == FIRST


def test_stored_plan_of_the_next_batch_replaces_the_last_one(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    stored_plan(files, "q", 3, lambda: FIRST)
    assert stored_plan(files, "q", 4, lambda: SECOND) == SECOND
    assert files.names(layout.PLANS) == ["q.4.json"]


def test_stored_plan_that_was_half_written_is_made_again(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    files.write(f"{layout.PLANS}/.q.3.json.draft", b"{")
    assert stored_plan(files, "q", 3, lambda: FIRST) == FIRST
    assert files.names(layout.PLANS) == ["q.3.json"]


def test_stored_plan_of_a_query_with_another_checkpoint_is_not_used(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    stored_plan(files, "q", 0, lambda: FIRST)
    assert stored_plan(files, "another", 0, lambda: SECOND) == SECOND
