"""The directory of a mirror's checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake.files import LocalFiles
from wirekafka.pipelines.mirror.checkpoint import Checkpoint, Description

DESCRIPTION = Description("cluster-a", "cluster-b", "default", ["orders"], "{topic}", "read_committed")


def opened(directory: Path, description: Description = DESCRIPTION) -> Checkpoint:
    checkpoint = Checkpoint(LocalFiles(directory), str(directory))
    checkpoint.open(description)
    return checkpoint


def test_a_checkpoint_of_the_same_mirror_opens_again(tmp_path: Path) -> None:
    opened(tmp_path)
    assert opened(tmp_path).spark_path == f"{tmp_path}/spark-0"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("source_cluster", "cluster-c", "the source cluster was cluster-a, now it is cluster-c"),
        ("target_cluster", "cluster-c", "the target cluster was cluster-b, now it is cluster-c"),
        ("topics", ["~o.*"], "the topics was orders, now it is ~o"),
        ("rename", "x.{topic}", "--rename was"),
        ("name", "other", "--name was"),
        ("isolation", "read_uncommitted", "--isolation was"),
    ],
)
def test_a_checkpoint_of_another_mirror_is_refused(tmp_path: Path, field: str, value: Any, says: str) -> None:
    opened(tmp_path)
    with pytest.raises(PipelineError, match=f"{says}.*give another --checkpoint"):
        opened(tmp_path, replace(DESCRIPTION, **{field: value}))


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(PipelineError, match="other files"):
        opened(tmp_path)


def test_a_checkpoint_whose_description_was_not_finished_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "mirror.json.new").write_text("{")
    opened(tmp_path)
    opened(tmp_path)


def test_a_new_generation_replaces_the_checkpoint_of_spark(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    (tmp_path / "spark-0" / "offsets").mkdir(parents=True)
    (tmp_path / "spark-0" / "offsets" / "0").touch()
    assert checkpoint.has_started()
    for generation in (1, 2):
        checkpoint.begin_generation()
        assert checkpoint.spark_path == opened(tmp_path).spark_path == f"{tmp_path}/spark-{generation}"
    assert not checkpoint.has_started()
    assert not (tmp_path / "spark-0").exists()
