"""A model that goes on with the znodes of another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wirekafka.zookeeper.model.server import Connection, ModelServer
from wirekafka.zookeeper.model.snapshot import MalformedSnapshotError, read_snapshot, write_snapshot
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    GetChildren,
    GetData,
    SetData,
    WatchEvent,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

NOW: Callable[[], int] = lambda: 7  # noqa: E731


class Client:
    """The client's side of a connection, which ignores everything."""

    def on_watch_event(self, event: WatchEvent) -> None: ...

    def on_disconnect(self) -> None: ...


def filled() -> tuple[ModelServer, Connection]:
    server = ModelServer(NOW)
    session = server.connect(Client(), 1_000)
    requests: list[Any] = [
        Create("/a", None),
        Create("/a/b", b"one"),
        SetData("/a/b", b"two \x00\xff"),
        Create("/a/q_", b"", sequential=True),
        Create("/a/q_", b"", sequential=True),
        Delete("/a/q_0000000001"),
        Create("/e", b"", ephemeral=True),
    ]
    for request in requests:
        session.request(request)
    return server, session


def test_model_goes_on_with_the_persistent_znodes_and_their_stats() -> None:
    server, session = filled()
    again = read_snapshot(write_snapshot(server), NOW)
    other = again.connect(Client(), 1_000)
    for path in ("/a", "/a/b", "/a/q_0000000002"):
        assert other.request(GetData(path)) == session.request(GetData(path))
    assert other.request(GetChildren("/")).names == ("a", "zookeeper")
    assert other.request(Create("/a/q_", b"", sequential=True)).path == "/a/q_0000000003"


def test_ephemeral_znodes_end_with_the_process() -> None:
    again = read_snapshot(write_snapshot(filled()[0]), NOW)
    with pytest.raises(ZooKeeperError) as caught:
        again.connect(Client(), 1_000).request(GetData("/e"))
    assert caught.value.code is ZooKeeperErrorCode.NO_NODE
    assert write_snapshot(again).count(b'"/') == 3


def test_transactions_and_sessions_have_greater_numbers_than_all_of_the_former_process() -> None:
    server, session = filled()
    data = write_snapshot(server)
    for number in range(1_000):
        session.request(Create(f"/after-{number}", b""))
    later = server.connect(Client(), 1_000)
    again = read_snapshot(data, NOW)
    assert again.last_zxid > server.last_zxid
    assert again.connect(Client(), 1_000).session_id > later.session_id
    assert again.reconnect(Client(), session.session_id, session.password) is None
    twice = read_snapshot(write_snapshot(again), NOW)
    assert twice.last_zxid > again.last_zxid


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"format":2}', b'{"format":1,"zxid":1,"znodes":[["/a/b",null,1,1,1,1,1,0,0]]}']
)
def test_bytes_that_are_no_snapshot_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedSnapshotError):
        read_snapshot(data, NOW)
