"""Requests of the controller that arrive late, after requests that were sent later."""

from __future__ import annotations

import pytest

from wirekafka.replication.controller_order import ControllerOrder
from wirekafka.wire.messages.stop_replica import StopReplicaRequest

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


def take(requests: ControllerOrder, request: tuple[int, int, int]) -> bool:
    controller_epoch, broker_epoch, correlation_id = request
    return requests.take(StopReplicaRequest(controller_epoch=controller_epoch, broker_epoch=broker_epoch), correlation_id)


@pytest.mark.parametrize(("former", "later"), [case[:2] for case in ORDERED], ids=[case[2] for case in ORDERED])
def test_requests_in_order_are_taken(former: tuple[int, int, int], later: tuple[int, int, int]) -> None:
    requests = ControllerOrder()

    assert take(requests, former)
    assert take(requests, later)


@pytest.mark.parametrize(
    ("former", "later"),
    [case[:2] for case in ORDERED if case[0] != case[1]],
    ids=[case[2] for case in ORDERED if case[0] != case[1]],
)
def test_request_that_was_overtaken_is_not_taken(former: tuple[int, int, int], later: tuple[int, int, int]) -> None:
    requests = ControllerOrder()

    assert take(requests, later)
    assert not take(requests, former)


def test_request_of_a_version_without_broker_epochs_is_ordered_by_its_number() -> None:
    requests = ControllerOrder()

    assert [take(requests, each) for each in ((1, 9, 5), (1, -1, 6), (1, -1, 4))] == [True, True, False]


def test_request_that_was_overtaken_does_not_hide_later_ones() -> None:
    requests = ControllerOrder()
    take(requests, (1, 7, 6))
    take(requests, (1, 7, 5))

    assert take(requests, (1, 7, 7))
