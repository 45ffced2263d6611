from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake import lake
from wirekafka.pipelines.lake.description import LakeDescription, refuse_changes, refuse_other_cluster
from wirekafka.tests.pipelines.lake.fake_files import FakeFiles, Killed

DESCRIPTION = LakeDescription("parquet", "json", ("orders", "bills"), cluster_id="c1", dead_letter_topic="dead")
STRUCT = {"type": "struct", "fields": []}


def test_description_is_read_as_it_was_written() -> None:
    described = replace(DESCRIPTION.with_schema("orders", STRUCT), query_id="q")
    assert LakeDescription.from_json(described.to_json()) == described


def test_description_of_a_later_version_is_refused() -> None:
    later = DESCRIPTION.to_json().replace(b'"format": 1', b'"format": 2')
    with pytest.raises(PipelineError, match="later version"):
        LakeDescription.from_json(later)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sink": "delta"}, "the sink of the lake /lake cannot change from parquet to delta"),
        ({"topics": ("orders",)}, "the topics of the lake /lake cannot change from orders, bills to orders"),
        ({"topics": (), "pattern": "o.*"}, "the topics of the lake /lake cannot change from orders, bills to none"),
        ({"cluster_id": "c2"}, "the Kafka cluster of the lake /lake cannot change from c1 to c2"),
        ({"dead_letter_topic": None}, "the dead-letter topic of the lake /lake cannot change from dead to none"),
    ],
)
def test_lake_that_was_made_for_something_else_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        refuse_changes("/lake", DESCRIPTION, replace(DESCRIPTION, **change))


def test_schemas_and_query_of_a_lake_do_not_count_as_changes() -> None:
    found = replace(DESCRIPTION.with_schema("orders", STRUCT), query_id="q")
    refuse_changes("/lake", found, DESCRIPTION)


def test_newest_description_counts_and_older_ones_are_deleted() -> None:
    files = FakeFiles()
    lake.write_description(files, DESCRIPTION, 1)
    changed = DESCRIPTION.with_schema("orders", STRUCT)
    lake.write_description(files, changed, 2)
    assert lake.read_description(files) == (2, changed)
    assert list(files.content) == ["_wirekafka/description/000000000002.json"]


def test_description_with_a_number_that_exists_is_refused() -> None:
    files = FakeFiles()
    lake.write_description(files, DESCRIPTION, 1)
    with pytest.raises(PipelineError, match="another process"):
        lake.write_description(files, DESCRIPTION.with_schema("orders", STRUCT), 1)
    assert lake.read_description(files) == (1, DESCRIPTION)


@pytest.mark.parametrize("killed_at", range(1, 6))
def test_kill_while_a_description_is_written_leaves_the_old_or_the_new_one(killed_at: int) -> None:
    content: dict[str, bytes] = {}
    lake.write_description(FakeFiles(content), DESCRIPTION, 1)
    changed = DESCRIPTION.with_schema("orders", STRUCT)
    with pytest.raises(Killed):
        lake.write_description(FakeFiles(content, killed_at=killed_at), changed, 2)
    found = lake.read_description(FakeFiles(content))
    assert found == ((1, DESCRIPTION) if killed_at < 2 else (2, changed))


def test_brokers_of_another_cluster_are_refused() -> None:
    description = replace(DESCRIPTION, cluster_id="here")
    refuse_other_cluster("/lake", description, "here", "localhost:9092")
    refuse_other_cluster("/lake", replace(DESCRIPTION, cluster_id=None), "there", "localhost:9092")
    with pytest.raises(
        PipelineError, match="localhost:9092 is the cluster there, and the records of the lake /lake came from here"
    ):
        refuse_other_cluster("/lake", description, "there", "localhost:9092")
