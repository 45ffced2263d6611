"""The releases of Apache Kafka and of Redpanda, and the services, as which a listener can behave, and their API versions.

Source: `releases.txt`, `redpanda.txt` and `services.txt`, which say how they were made. KAFKA-18659 (Produce since Kafka 4.0).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING

from wirekafka.config import ConfigError

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig

SETTING = "wirekafka.api.release"

FIRST_WITH_FEATURES = (4, 0)
"""Brokers with ZooKeeper have no features, and the clients of older releases look at none."""

TABLES = ["releases.txt", "redpanda.txt", "services.txt"]

ALL_VERSIONS = range(1 << 15)
"""A version is an INT16."""


@cache
def release_versions() -> dict[str, dict[int, range]]:
    """Returns the versions of each API, by key, of each release, by its name, such as 2.8 or redpanda-24.3."""
    folder = files("wirekafka.api")
    table = {}
    for line in chain.from_iterable(folder.joinpath(name).read_text("ascii").splitlines() for name in TABLES):
        if not line.startswith("#"):
            name, _, *apis = line.split()
            table[name] = dict(map(_versions_of, apis))
    return table


def _versions_of(text: str) -> tuple[int, range]:
    key, _, versions = text.partition(":")
    if not versions:
        return int(key), ALL_VERSIONS
    first, _, last = versions.partition("-")
    return int(key), range(int(first), int(last) + 1)


def releases_of(config: BrokerConfig) -> dict[str, str]:
    """Returns the release as which each listener behaves, by the name of the listener.

    Raises:
        ConfigError: there is no such release or listener, or the broker is a member of a cluster.
    """
    given = config.items(SETTING)
    if not given:
        return {}
    if config.is_member:
        raise ConfigError(SETTING, ",".join(given), "nothing in a cluster, whose brokers need the requests of all versions")
    names = [listener.name for listener in config.listeners]
    found: dict[str, str] = {}
    for item in given:
        listener, _, release = item.rpartition(":")
        if release not in release_versions():
            raise ConfigError(SETTING, item, ", ".join(release_versions()))
        if listener and listener not in names:
            raise ConfigError(SETTING, item, f"the names of listeners: {', '.join(names)}")
        found |= dict.fromkeys([listener] if listener else names, release)
    return found


def has_features(release: str | None) -> bool:
    """Whether a listener that behaves as a release tells clients the broker's features; None is a listener without a release.

    Source: api_versions_handler of Redpanda, which sets no features.
    """
    if release is None:
        return True
    return release[0].isdecimal() and tuple(map(int, release.split("."))) >= FIRST_WITH_FEATURES
