"""The connections of a member to other brokers: their addresses, names and limits."""

from __future__ import annotations

from typing import Any

from wirekafka.membership.peers import MOST_RESPONSE_BYTES, Address, Peers
from wirekafka.metadata.image import ClusterImage, Endpoint, LiveBroker


class Opened:
    """Notes what is opened."""

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self.others: list[tuple[str, int, int]] = []

    def open(self, address: Address, client_id: str, timeout_ms: int, most_response_bytes: int) -> Any:
        self.addresses.append(address)
        self.others.append((client_id, timeout_ms, most_response_bytes))


def peers_of(image: ClusterImage, opened: Opened) -> Peers:
    return Peers(
        9,
        image,
        opened.open,
        listener_name="INTERNAL",
        timeout_ms=1,
        fetch_timeout_ms=2,
        most_fetched_bytes=MOST_RESPONSE_BYTES + 3,
    )


def test_connections_have_the_names_and_limits_of_their_purpose() -> None:
    opened = Opened()
    peers = peers_of(ClusterImage(), opened)
    peers.connect(1, "markers")
    peers.fetcher_channel(2, 7)
    assert opened.others == [
        ("broker-9-markers", 1, MOST_RESPONSE_BYTES),
        ("broker-9-fetcher-7", 2, MOST_RESPONSE_BYTES + 3),
    ]


def test_address_is_that_of_the_image_at_each_attempt() -> None:
    image, opened = ClusterImage(), Opened()
    peers_of(image, opened).connect(1, "markers")
    [address] = opened.addresses
    found = [address()]
    for endpoints in (
        {"CLIENTS": Endpoint("a", 1, "PLAINTEXT")},
        {"CLIENTS": Endpoint("a", 1, "PLAINTEXT"), "INTERNAL": Endpoint("b", 2, "PLAINTEXT")},
        {"INTERNAL": Endpoint("c", 3, "PLAINTEXT")},
    ):
        image.brokers = {1: LiveBroker(1, endpoints, None)}
        found.append(address())
    image.brokers = {}
    assert [*found, address()] == [None, None, ("b", 2), ("c", 3), None]
