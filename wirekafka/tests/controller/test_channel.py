"""The queues of requests from the controller to the brokers."""

from __future__ import annotations

from collections import deque
from typing import Any

from wirekafka.controller.channel import RETRY_BACK_OFF_MS, BrokerChannels
from wirekafka.controller.context import LiveBroker
from wirekafka.errors import ErrorCode
from wirekafka.tests.controller.played_brokers import PlayedBrokers, PlayedChannel, PlayedTimers
from wirekafka.tests.controller.stage import a_registration
from wirekafka.wire.messages.stop_replica import STOP_REPLICA, StopReplicaRequest, StopReplicaResponse
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA, UpdateMetadataRequest, UpdateMetadataResponse

BROKER = LiveBroker(2, 10, a_registration(2))
RETURNED = LiveBroker(2, 11, a_registration(2))


class _Room:
    """Channels to a played broker.

    Attributes:
        answers: the epochs of the requests that were answered, with the errors.
    """

    def __init__(self) -> None:
        self.brokers = PlayedBrokers(deque())
        self.timers = PlayedTimers()
        self.answers: list[tuple[int, int]] = []
        self.channels = BrokerChannels(self.brokers.connect, self.timers, self._note)

    def _note(self, broker: LiveBroker, kind: object, request: Any, response: Any) -> None:
        self.answers.append((request.controller_epoch, response.error_code))

    def send(self, number: int, broker: LiveBroker = BROKER) -> None:
        self.channels.send(broker, UPDATE_METADATA, UpdateMetadataRequest(controller_epoch=number), 8)

    @property
    def connection(self) -> PlayedChannel:
        return self.brokers.channels[2][-1]

    @property
    def in_flight(self) -> list[int]:
        return [each.request.controller_epoch for each in self.connection.requests]


def test_send_while_a_request_is_in_flight_waits_for_its_answer() -> None:
    room = _Room()
    room.send(1)
    room.send(2)
    assert room.in_flight == [1]

    room.connection.end(UpdateMetadataResponse())

    assert room.in_flight == [2]
    assert room.answers == [(1, 0)]


def test_send_without_an_answer_is_repeated_after_a_pause() -> None:
    room = _Room()
    room.send(1)
    room.send(2)

    room.connection.end(None)
    room.send(3)
    assert room.in_flight == []
    room.timers.pass_time(RETRY_BACK_OFF_MS)

    assert room.in_flight == [1]
    assert room.answers == []


def test_send_that_is_refused_is_not_repeated() -> None:
    room = _Room()
    room.send(1)

    room.connection.end(UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))

    assert room.in_flight == []
    assert room.answers == [(1, ErrorCode.STALE_BROKER_EPOCH)]


def test_send_of_what_cannot_be_encoded_goes_on_with_the_next(logged_faults: list[str]) -> None:
    room = _Room()
    room.channels.send(BROKER, UPDATE_METADATA, UpdateMetadataRequest(controller_id=1 << 40), 8)

    room.send(2)

    assert room.in_flight == [2]
    assert "could not be written" in logged_faults.pop()


def test_send_to_a_newer_registration_closes_the_former_connection() -> None:
    room = _Room()
    room.send(1)
    former = room.connection

    room.send(2, RETURNED)

    assert former.is_closed
    assert room.in_flight == [2]


def test_keep_closes_the_queues_of_dead_brokers_and_of_former_registrations() -> None:
    room = _Room()
    room.send(1)
    room.channels.keep({2: BROKER})
    assert not room.connection.is_closed

    room.channels.keep({2: RETURNED})
    assert room.connection.is_closed

    room.send(2, RETURNED)
    room.channels.keep({})
    assert room.connection.is_closed


def test_drop_waiting_keeps_the_request_in_flight_and_the_connection() -> None:
    room = _Room()
    room.send(1)
    room.send(2)

    room.channels.drop_waiting()
    room.send(3)
    room.connection.end(UpdateMetadataResponse())

    assert room.in_flight == [3]
    assert len(room.brokers.channels[2]) == 1


def test_drop_waiting_keeps_the_deletions_of_replicas() -> None:
    room = _Room()
    room.send(1)
    room.send(2)
    room.channels.send(BROKER, STOP_REPLICA, StopReplicaRequest(), 4)
    room.send(3)

    room.channels.drop_waiting()
    room.connection.end(UpdateMetadataResponse())

    assert [each.kind for each in room.connection.requests] == [STOP_REPLICA]
    room.connection.end(StopReplicaResponse())
    assert room.in_flight == []


def test_drop_waiting_while_a_request_waits_to_be_repeated_drops_it() -> None:
    room = _Room()
    room.send(1)
    room.connection.end(None)

    room.channels.drop_waiting()
    room.send(2)
    room.timers.pass_time(RETRY_BACK_OFF_MS)

    assert room.in_flight == [2]


def test_close_ends_the_repetition() -> None:
    room = _Room()
    room.send(1)
    room.connection.end(None)

    room.channels.close()
    room.timers.pass_time(RETRY_BACK_OFF_MS)

    assert room.connection.is_closed
    assert room.in_flight == []
