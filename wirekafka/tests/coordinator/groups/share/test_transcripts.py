"""The transcripts of share groups, in `transcripts/share_groups`.

Inputs, with their defaults: `settings SETTING=VALUE..` (first line only), `topic NAME PARTITIONS` (creates or grows),
`delete-topic NAME`, `beat MEMBER EPOCH topics=a,b rack= group=g` (a field that is not given is null), `pass MS`, `expire`,
`disk full`, `disk free`, `reload`, `list`, `delete-group`, `join CLIENT` (of a classic member), `commit`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.coordinator.groups.share.requests import ShareHeartbeat
from wirekafka.tests.coordinator import transcripts
from wirekafka.tests.coordinator.groups.share.world import ShareWorld
from wirekafka.tests.coordinator.groups.test_transcripts import GroupPlayer


@pytest.mark.parametrize("path", transcripts.transcripts_in("share_groups"), ids=lambda path: path.stem)
def test_transcript_replayed_is_unchanged(path: Path, request: pytest.FixtureRequest) -> None:
    transcripts.check(path, SharePlayer(), request)


class SharePlayer(GroupPlayer):
    world: ShareWorld

    def __init__(self) -> None:
        self.world = ShareWorld()

    def do_settings(self, **settings: str) -> None:  # type: ignore[override]
        self.world = ShareWorld(**settings)

    def do_topic(self, name: str, partitions: str) -> None:
        self.world.image.put(name, int(partitions))

    def do_delete_topic(self, name: str) -> None:
        self.world.image.delete(name)

    def do_beat(self, member: str, epoch: str, topics: str | None = None, rack: str | None = None, group: str = "g") -> None:
        names = None if topics is None else [name for name in topics.split(",") if name]
        request = ShareHeartbeat(group, member, int(epoch), f"client-of-{member}", "/127.0.0.1", rack, names)
        result = self.world.heartbeat(request)
        told = "as before" if result.assignment is None else self.world.names(result.assignment)
        self.tell(f"answer: epoch {result.member_epoch}, assigned {told}")
