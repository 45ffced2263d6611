"""What a mirror does before Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.lake.files import LocalFiles
from wirekafka.pipelines.mirror import pipeline
from wirekafka.pipelines.mirror.checkpoint import Checkpoint, Description
from wirekafka.pipelines.mirror.options import MirrorOptions
from wirekafka.pipelines.mirror.pipeline import Mirror


class Selection(TopicSelection):
    """Topics that need no broker."""

    def matching(self, cluster: Cluster) -> dict[str, int]:
        return dict.fromkeys(self.names, 1)


def test_a_kill_while_a_topic_is_forgotten_leaves_no_checkpoint_behind_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "forget_topics", die)
    topics = Selection(("orders",))
    mirror = Mirror(MirrorOptions(Cluster("a:1"), Cluster("b:1"), topics, str(tmp_path), restarted_topics=("orders",)))
    checkpoint = Checkpoint(LocalFiles(tmp_path), str(tmp_path))
    checkpoint.open(Description("a", "b", "default", ["orders"], "{topic}", "read_committed"))
    (tmp_path / "spark-0/offsets").mkdir(parents=True)
    (tmp_path / "spark-0/offsets/0").touch()
    with pytest.raises(KeyboardInterrupt):
        mirror._restarted(topics, checkpoint)
    assert not checkpoint.has_started()
