"""What only the model does: faults on demand, time that the test moves, and connections without a client."""

from __future__ import annotations

import pytest

from wirekafka.tests.zookeeper.model_stage import ModelStage
from wirekafka.zookeeper.model.client import Fault, ModelClient
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.session import (
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    SessionState,
    SetData,
    Stat,
    WatchEvent,
    WatchEventType,
    ZooKeeperError,
    ZooKeeperErrorCode,
)

LOST_REPLY = ZooKeeperError(ZooKeeperErrorCode.CONNECTION_LOSS)
EXPIRED = ZooKeeperError(ZooKeeperErrorCode.SESSION_EXPIRED)


class Seen:
    """A connected client, and everything that has arrived at it."""

    def __init__(self, stage: ModelStage, timeout_ms: int = 18_000) -> None:
        self.client: ModelClient = stage.new_client(timeout_ms=timeout_ms)
        self.log: list[object] = []
        stage.run()
        self.client.add_state_listener(self.log.append)
        self.client.add_watch_listener(self.log.append)

    def submit(self, *operations: Create | SetData | Delete | GetData | Exists | GetChildren | Multi) -> None:
        for operation in operations:
            self.client.submit(operation, self.log.append)

    def take(self) -> list[object]:
        """Returns what has arrived since the last call."""
        log = [*self.log]
        self.log.clear()
        return log


def fault_at(path: str, fault: Fault, client: ModelClient) -> None:
    """Makes the fault happen at the first write to the path."""
    faults = {path: fault}
    client.choose_fault = lambda operation: faults.pop(getattr(operation, "path", ""), None)


@pytest.mark.parametrize(
    ("fault", "exists_while_suspended", "exists_after"),
    [(Fault.REQUEST_LOST, False, False), (Fault.REPLY_LOST, True, True), (Fault.REQUEST_LATE, False, True)],
)
def test_fault_loses_the_connection_and_applies_the_request_or_not(
    fault: Fault, exists_while_suspended: bool, exists_after: bool
) -> None:
    stage = ModelStage()
    broken, watching = Seen(stage), Seen(stage)
    fault_at("/a", fault, broken.client)
    broken.submit(Create("/a", b""), Create("/after", b""))
    while SessionState.SUSPENDED not in broken.log:
        stage.run_one()
    broken.client.cut()
    watching.submit(Exists("/a"), Exists("/after"))
    stage.run()
    found, found_after = watching.take()
    assert (found is not None, found_after) == (exists_while_suspended, None)
    broken.client.heal()
    stage.run()
    assert broken.take() == [LOST_REPLY, LOST_REPLY, SessionState.SUSPENDED, SessionState.CONNECTED]
    watching.submit(Exists("/a"), Exists("/after"))
    stage.run()
    found, found_after = watching.take()
    assert found is not None or not exists_after
    assert (found_after is not None) == (fault is Fault.REQUEST_LATE)


def test_late_request_of_an_expired_session_is_not_applied() -> None:
    stage = ModelStage()
    seen = Seen(stage)
    fault_at("/a", Fault.REQUEST_LATE, seen.client)
    seen.submit(Create("/a", b""))
    stage.run_one()
    assert seen.client.session_id is not None
    stage.server.expire_session(seen.client.session_id)
    stage.run()
    assert seen.take() == [LOST_REPLY, SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    seen.submit(Exists("/a"))
    stage.run()
    assert seen.take() == [None]


def test_lost_connection_loses_the_reply_that_is_on_its_way() -> None:
    stage = ModelStage()
    seen = Seen(stage)
    seen.submit(Create("/a", b""))
    stage.run_one()
    seen.client.lose_connection()
    stage.run()
    assert seen.take() == [LOST_REPLY, SessionState.SUSPENDED, SessionState.CONNECTED]
    seen.submit(Exists("/a"))
    stage.run()
    assert isinstance(seen.take()[0], Stat)


def test_submit_while_suspended_completes_with_connection_loss_and_sends_nothing() -> None:
    stage = ModelStage()
    seen = Seen(stage)
    seen.client.cut()
    seen.client.lose_connection()
    stage.run()
    seen.submit(Create("/a", b""))
    stage.run()
    assert seen.take() == [SessionState.SUSPENDED, LOST_REPLY]
    seen.client.heal()
    stage.run()
    seen.submit(Exists("/a"))
    stage.run()
    assert seen.take() == [SessionState.CONNECTED, None]


def test_submit_before_connected_was_told_completes_with_connection_loss() -> None:
    stage = ModelStage()
    client, log = stage.new_client(), list[object]()
    client.add_state_listener(log.append)
    stage.run_one()
    assert client.state is SessionState.CONNECTING
    client.submit(Create("/a", b""), log.append)
    stage.run()
    client.submit(Exists("/a"), log.append)
    stage.run()
    assert log == [SessionState.CONNECTED, LOST_REPLY, None]


def test_submit_while_lost_completes_with_session_expired() -> None:
    stage = ModelStage()
    seen = Seen(stage)
    seen.client.add_state_listener(lambda state: seen.submit(Exists("/a")) if state is SessionState.LOST else None)
    assert seen.client.session_id is not None
    stage.server.expire_session(seen.client.session_id)
    stage.run()
    states = [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    assert [each for each in seen.log if each is not EXPIRED and each != EXPIRED] == states
    assert EXPIRED in seen.log


def test_session_expires_at_its_timeout_unless_the_client_pings() -> None:
    stage = ModelStage()
    silent, pinging = Seen(stage, timeout_ms=6_000), Seen(stage, timeout_ms=6_000)
    silent.submit(Create("/silent", b"", ephemeral=True))
    pinging.submit(Create("/pinging", b"", ephemeral=True))
    stage.run()
    expired = []
    for _ in range(6):
        stage.now_ms += 1_000
        pinging.client.tick()
        stage.run()
        expired.append(stage.server.expire_sessions())
    assert expired == [[]] * 5 + [[silent.client.session_id]]
    assert not [each for each in pinging.log if isinstance(each, SessionState)]
    pinging.submit(GetChildren("/"))
    stage.run()
    assert "pinging" in pinging.log[-1].names  # type: ignore[attr-defined]
    assert "silent" not in pinging.log[-1].names  # type: ignore[attr-defined]


def test_session_whose_time_is_over_is_given_to_no_connection() -> None:
    stage = ModelStage()
    connection = stage.server.connect(Line(), 6_000)
    stage.now_ms += 6_000
    assert stage.server.reconnect(Line(), connection.session_id, connection.password) is None


def test_next_expiry_is_the_deadline_of_the_session_that_was_silent_longest() -> None:
    stage = ModelStage()
    assert stage.server.next_expiry_ms() is None
    start_ms = stage.now_ms
    first = Seen(stage, timeout_ms=5_000)
    stage.now_ms += 1_000
    Seen(stage, timeout_ms=5_000)
    assert stage.server.next_expiry_ms() == start_ms + 5_000
    first.submit(Exists("/"))
    stage.now_ms += 500
    stage.run()
    assert stage.server.next_expiry_ms() == start_ms + 6_000


@pytest.mark.parametrize("cut", [{}, {"requests": False}, {"replies": False}])
def test_client_gives_a_silent_connection_up_after_two_thirds_of_the_timeout(cut: dict[str, bool]) -> None:
    stage = ModelStage()
    seen = Seen(stage, timeout_ms=9_000)
    seen.client.cut(**cut)
    seen.submit(Create("/a", b""))
    for _ in range(5):
        stage.now_ms += 1_000
        seen.client.tick()
        stage.run()
    assert seen.take() == []
    stage.now_ms += 1_000
    seen.client.tick()
    stage.run()
    assert seen.take() == [LOST_REPLY, SessionState.SUSPENDED]
    seen.client.heal()
    stage.run()
    seen.submit(Exists("/a"))
    stage.run()
    state, found = seen.take()
    assert state is SessionState.CONNECTED
    assert (found is not None) == (cut == {"requests": False})


def test_cut_messages_arrive_when_the_network_heals_before_the_client_gives_up() -> None:
    stage = ModelStage()
    seen, other = Seen(stage), Seen(stage)
    seen.submit(Exists("/a", watch=True))
    stage.run()
    seen.take()
    seen.client.cut()
    seen.submit(Exists("/b"))
    other.submit(Create("/a", b""))
    stage.run()
    assert seen.take() == []
    seen.client.heal()
    stage.run()
    assert seen.take() == [WatchEvent(WatchEventType.NODE_CREATED, "/a"), None]


def test_client_that_was_cut_off_until_its_session_expired_begins_a_new_one() -> None:
    stage = ModelStage()
    seen = Seen(stage, timeout_ms=6_000)
    former = seen.client.session_id
    seen.client.cut()
    for _ in range(8):
        stage.now_ms += 1_000
        seen.client.tick()
        stage.server.expire_sessions()
        stage.run()
    assert seen.take() == [SessionState.SUSPENDED]
    seen.client.heal()
    stage.run()
    assert seen.take() == [SessionState.LOST, SessionState.CONNECTED]
    assert seen.client.session_id != former


def test_close_without_a_connection_leaves_the_session_to_expire() -> None:
    stage = ModelStage()
    seen = Seen(stage, timeout_ms=6_000)
    session_id = seen.client.session_id
    assert session_id is not None
    seen.client.cut()
    seen.client.lose_connection()
    seen.client.close()
    seen.client.heal()
    stage.run()
    assert seen.take() == [SessionState.SUSPENDED, SessionState.CLOSED]
    assert stage.server.has_session(session_id)
    stage.now_ms += 6_000
    assert stage.server.expire_sessions() == [session_id]


def test_close_ends_the_session() -> None:
    stage = ModelStage()
    seen = Seen(stage)
    session_id = seen.client.session_id
    assert session_id is not None
    seen.client.close()
    seen.client.close()
    stage.run()
    assert seen.take() == [SessionState.CLOSED]
    assert not stage.server.has_session(session_id)


class Line:
    """The client's side of a bare connection."""

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self.is_disconnected = False

    def on_watch_event(self, event: WatchEvent) -> None:
        self.events.append(event)

    def on_disconnect(self) -> None:
        self.is_disconnected = True


def test_session_that_another_connection_takes_over_loses_the_first_one_and_its_watches() -> None:
    server = ModelServer(lambda: 0)
    first_line, second_line = Line(), Line()
    first = server.connect(first_line, 6_000)
    first.request(Exists("/a", watch=True))
    second = server.reconnect(second_line, first.session_id, first.password)
    assert second is not None
    assert first_line.is_disconnected
    second.request(Create("/a", b"", ephemeral=True))
    assert (first_line.events, second_line.events) == ([], [])
    with pytest.raises(ZooKeeperError, match="SESSION_EXPIRED"):
        first.request(Exists("/a"))
    assert second.request(GetData("/a")).stat.ephemeral_owner == first.session_id == second.session_id


def test_session_is_not_given_to_a_connection_with_another_password() -> None:
    server = ModelServer(lambda: 0)
    connection = server.connect(Line(), 6_000)
    assert server.reconnect(Line(), connection.session_id, bytes(16)) is None
    assert server.reconnect(Line(), connection.session_id + 1, connection.password) is None
    connection.ping()


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/./a", "/a\x00", "/a\x1f", "/\ufff1"])
def test_path_of_a_wrong_form_is_refused(path: str) -> None:
    connection = ModelServer(lambda: 0).connect(Line(), 6_000)
    for operation in (Create(path, b""), GetData(path), Exists(path), SetData(path, b"")):
        with pytest.raises(ZooKeeperError) as raised:
            connection.request(operation)
        assert raised.value.code is ZooKeeperErrorCode.BAD_ARGUMENTS


@pytest.mark.parametrize("path", ["/", "/zookeeper", "/zookeeper/quota"])
def test_delete_of_a_znode_of_zookeeper_itself_is_refused(path: str) -> None:
    connection = ModelServer(lambda: 0).connect(Line(), 6_000)
    with pytest.raises(ZooKeeperError, match="BAD_ARGUMENTS"):
        connection.request(Delete(path))


def test_every_transaction_has_a_zxid_of_its_own_refused_ones_too() -> None:
    server = ModelServer(lambda: 0)
    connection = server.connect(Line(), 6_000)
    zxids = [server.last_zxid]
    connection.request(Create("/a", b""))
    zxids.append(server.last_zxid)
    with pytest.raises(ZooKeeperError):
        connection.request(Create("/a", b""))
    zxids.append(server.last_zxid)
    connection.request(GetData("/a"))
    zxids.append(server.last_zxid)
    connection.close_session()
    zxids.append(server.last_zxid)
    assert zxids == [1, 2, 3, 3, 4]


def test_expiry_deletes_all_ephemeral_znodes_in_one_transaction() -> None:
    server = ModelServer(lambda: 0)
    line = Line()
    owner, watching = server.connect(Line(), 6_000), server.connect(line, 6_000)
    for path in ("/b", "/a"):
        owner.request(Create(path, b"", ephemeral=True))
        watching.request(Exists(path, watch=True))
    server.expire_session(owner.session_id)
    assert [event.path for event in line.events] == ["/a", "/b"]
    assert watching.request(GetChildren("/")).stat.pzxid == server.last_zxid
    assert watching.request(GetChildren("/")).names == ("zookeeper",)


def test_watches_of_a_connection_that_ended_leave_nothing_in_the_server() -> None:
    server = ModelServer(lambda: 0)
    lines = [Line() for _ in range(3)]
    connections = [server.connect(line, 6_000) for line in lines]
    for connection in connections:
        connection.request(Exists("/a", watch=True))
        connection.request(GetChildren("/", watch=True))
    connections[0].disconnect()
    connections[1].close_session()
    connections[2].request(Create("/a", b""))
    assert [len(line.events) for line in lines] == [0, 0, 2]
    assert server.watch_count() == 0
