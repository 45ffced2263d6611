"""Virtual time, processes that pause and end, and connections whose messages are late or lost."""

from __future__ import annotations

from wirekafka.simulation.dice import Dice
from wirekafka.simulation.events import MS, Events, Process, Transcript
from wirekafka.simulation.network import MOST_RETRANSMISSION_US, Connection, Network, NetworkOptions, Reply


class Stage:
    """A client and a server.

    Attributes:
        served: what the server has received. answers: what the client has received.
    """

    def __init__(self, *, loss: float = 0, seed: str = "network") -> None:
        self.events = Events()
        self.client = Process(self.events, "client")
        self.server = Process(self.events, "server")
        self.network = Network(self.events, Dice(seed), NetworkOptions(1 * MS, 20 * MS, 0, loss))
        self.served: list[bytes] = []
        self.answers: list[bytes | None] = []
        self.network.listen("server", self.server, self._serve)
        self.connection = self.connect()

    def connect(self) -> Connection:
        return self.network.connect(self.client, "client", "server")

    def _serve(self, frame: memoryview, reply: Reply, connection: int) -> None:
        self.served.append(bytes(frame))
        reply(bytes(frame).upper())

    def ask(self, request: bytes, connection: Connection | None = None) -> None:
        def take(response: memoryview | None) -> None:
            self.answers.append(None if response is None else bytes(response))

        (connection or self.connection).ask(request, take, timeout_us=100 * MS)

    def run(self, duration_ms: int) -> None:
        self.events.run_until(self.events.now_us + duration_ms * MS)


def test_events_of_one_time_happen_in_the_order_of_their_scheduling() -> None:
    events = Events()
    found: list[int] = []
    for number in range(5):
        events.call_at(10, lambda number=number: found.append(number))
    events.call_at(5, lambda: found.append(-1))
    events.call_at(11, lambda: found.append(9))
    events.run_until(10)
    assert (found, events.now_us) == ([-1, 0, 1, 2, 3, 4], 10)


def test_cancelled_event_does_not_happen() -> None:
    events = Events()
    timer = events.call_later(1, lambda: 1 / 0)
    timer.cancel()
    events.run_until(10)


def test_process_that_pauses_does_everything_later_in_order() -> None:
    events = Events()
    process = Process(events, "p")
    found: list[tuple[int, int]] = []
    for when in (10, 20, 90):
        process.call_later(when, lambda when=when: found.append((when, events.now_us)))
    process.pause(50)
    events.run_until(100)
    assert found == [(10, 50), (20, 50), (90, 90)]


def test_process_that_has_ended_does_nothing() -> None:
    events = Events()
    process = Process(events, "p")
    process.call_later(1, lambda: 1 / 0)
    process.end()
    events.run_until(10)


def test_transcript_digest_depends_on_every_line() -> None:
    one, other = Transcript(), Transcript()
    for line in ("a", "b"):
        one.add(line)
    other.add("ab")
    assert one.digest() != other.digest()


def test_messages_of_one_connection_arrive_in_order() -> None:
    stage = Stage()
    requests = [b"%d" % number for number in range(20)]
    for request in requests:
        stage.ask(request)
    stage.run(99)
    assert stage.served == stage.answers == requests


def test_messages_of_different_connections_overtake_each_other() -> None:
    stage = Stage()
    requests = [b"%d" % number for number in range(20)]
    for request in requests:
        stage.ask(request, stage.connect())
    stage.run(99)
    assert sorted(stage.served) == sorted(requests) != stage.served


def test_request_into_a_blocked_direction_arrives_when_the_sender_has_given_up() -> None:
    stage = Stage()
    stage.network.block("client", "server")
    stage.ask(b"late")
    stage.run(200)
    assert (stage.answers, stage.served) == ([None], [])
    stage.network.unblock_all()
    stage.run(MOST_RETRANSMISSION_US // MS)
    assert (stage.answers, stage.served) == ([None], [b"late"])


def test_requests_that_were_held_back_keep_the_order_of_their_connection() -> None:
    stage = Stage()
    stage.network.block("client", "server")
    for request in (b"1", b"2"):
        stage.ask(request)
    stage.run(50)
    stage.network.unblock_all()
    stage.ask(b"3")
    stage.run(MOST_RETRANSMISSION_US // MS + 50)
    assert stage.served == [b"1", b"2", b"3"]


def test_requests_that_were_held_back_overtake_those_of_other_connections() -> None:
    stage = Stage()
    stage.network.block("client", "server")
    requests = [b"%d" % number for number in range(20)]
    for request in requests:
        stage.ask(request, stage.connect())
        stage.run(30)
    stage.network.unblock_all()
    stage.run(MOST_RETRANSMISSION_US // MS)
    assert sorted(stage.served) == sorted(requests) != stage.served


def test_request_over_a_connection_that_stalls_is_overtaken_over_the_next_connection() -> None:
    stage = Stage()
    stage.network.stall("client", "server")
    stage.ask(b"old")
    stage.ask(b"new", stage.connect())
    stage.run(99)
    assert stage.served == [b"new"]
    stage.network.end_stalls("server")
    stage.run(MOST_RETRANSMISSION_US // MS)
    assert stage.served == [b"new", b"old"]


def test_stall_outlasts_a_block_of_its_direction() -> None:
    stage = Stage()
    stage.network.stall("client", "server")
    stage.network.block("client", "server")
    stage.ask(b"a")
    stage.network.unblock_all()
    stage.run(MOST_RETRANSMISSION_US // MS)
    assert stage.served == []


def test_end_of_the_stalls_of_another_address_frees_nothing() -> None:
    stage = Stage()
    stage.network.stall("client", "server")
    stage.ask(b"a")
    stage.network.end_stalls("client")
    stage.run(MOST_RETRANSMISSION_US // MS)
    assert stage.served == []


def test_answer_into_a_blocked_direction_leaves_the_outcome_unknown() -> None:
    stage = Stage()
    stage.network.block("server", "client")
    stage.ask(b"a")
    stage.run(200)
    assert (stage.answers, stage.served) == ([None], [b"a"])
    assert not stage.connection.is_open


def test_lost_message_breaks_its_connection() -> None:
    stage = Stage(loss=1)
    stage.ask(b"a")
    stage.network.options.loss_probability = 0
    stage.ask(b"b")
    stage.run(200)
    assert (stage.answers, stage.served) == ([None, None], [])


def test_server_that_has_ended_refuses_at_once() -> None:
    stage = Stage()
    stage.server.end()
    stage.ask(b"a")
    stage.run(50)
    assert stage.answers == [None]
