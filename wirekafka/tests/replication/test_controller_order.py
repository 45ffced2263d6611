"""Requests of the controller that arrive late, after requests that were sent later."""

from __future__ import annotations

import pytest

from wirekafka.errors import ProtocolError
from wirekafka.replication.controller_order import ControllerOrder
from wirekafka.wire.messages.stop_replica import StopReplicaRequest

FORMER, LATER = 4, 9
"""The numbers of two connections."""

ORDERED = [
    ((1, 7, 5), (1, 7, 6), "a later number"),
    ((1, 7, 5), (1, 7, 5), "the same number"),
    ((1, 7, 5), (1, 9, 0), "a newer registration of the broker, over a new connection"),
    ((1, 7, 5), (2, 7, 0), "a newer controller"),
    ((1, 9, 5), (2, 7, 0), "a newer controller that does not know the newest registration"),
    ((1, 7, 2**31 - 9), (1, 7, -(2**31)), "the number after the greatest one"),
    ((1, 7, -1), (1, 7, 0), "the number after the negative ones"),
    ((1, -1, 5), (1, -1, 6), "a later number, of versions without broker epochs"),
]


def take(requests: ControllerOrder, request: tuple[int, int, int], connection: int = 0) -> bool:
    """Returns whether the request is taken, and does not end its connection."""
    controller_epoch, broker_epoch, correlation_id = request
    sent = StopReplicaRequest(controller_epoch=controller_epoch, broker_epoch=broker_epoch)
    try:
        return requests.take(sent, correlation_id, connection)
    except ProtocolError:
        return False


@pytest.mark.parametrize("connection", [FORMER, LATER])
@pytest.mark.parametrize(("former", "later"), [case[:2] for case in ORDERED], ids=[case[2] for case in ORDERED])
def test_requests_in_order_are_taken(former: tuple[int, int, int], later: tuple[int, int, int], connection: int) -> None:
    requests = ControllerOrder()

    assert take(requests, former, FORMER)
    assert take(requests, later, connection)


@pytest.mark.parametrize(
    ("former", "later"),
    [case[:2] for case in ORDERED if case[0] != case[1]],
    ids=[case[2] for case in ORDERED if case[0] != case[1]],
)
def test_request_that_was_overtaken_is_not_taken(former: tuple[int, int, int], later: tuple[int, int, int]) -> None:
    requests = ControllerOrder()

    assert take(requests, later, LATER)
    assert not take(requests, former, FORMER)


def test_request_that_was_overtaken_ends_its_connection_and_one_of_a_deposed_controller_does_not() -> None:
    requests = ControllerOrder()
    take(requests, (2, 7, 6), LATER)

    assert not requests.take(StopReplicaRequest(controller_epoch=1, broker_epoch=7), 8, FORMER)
    with pytest.raises(ProtocolError):
        requests.take(StopReplicaRequest(controller_epoch=2, broker_epoch=7), 5, FORMER)


def test_request_of_a_version_without_broker_epochs_is_ordered_by_its_number() -> None:
    requests = ControllerOrder()

    assert [take(requests, (1, 9, 5), FORMER), take(requests, (1, -1, 6), LATER)] == [True, True]
    assert not take(requests, (1, -1, 4), FORMER)


def test_request_that_was_overtaken_does_not_hide_later_ones() -> None:
    requests = ControllerOrder()
    take(requests, (1, 7, 6), LATER)
    take(requests, (1, 7, 5), FORMER)

    assert take(requests, (1, 7, 7), LATER)


@pytest.mark.parametrize("forged", [(1, 7, 2**30), (1, 7, -(2**31)), (1, 2**63 - 1, 0), (1, 8, 0)])
def test_controller_that_connects_again_is_heard_after_a_forged_request(forged: tuple[int, int, int]) -> None:
    requests = ControllerOrder()
    take(requests, (1, 7, 5), FORMER)
    take(requests, forged, LATER)

    assert not take(requests, (1, 7, 6), FORMER)
    assert take(requests, (1, 7, 7), LATER + 1)
    assert take(requests, (1, 7, 8), LATER + 1)
