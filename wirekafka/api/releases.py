"""The releases of Apache Kafka as which a listener can behave, and their API versions.

Source: `releases.txt`, which says how it was made. KAFKA-18659 (Produce since 4.0).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from wirekafka.config import ConfigError

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig

SETTING = "wirekafka.api.release"

FIRST_WITH_FEATURES = (4, 0)
"""Brokers with ZooKeeper have no features, and the clients of older releases look at none."""


@cache
def release_versions() -> dict[str, dict[int, range]]:
    """Returns the versions of each API, by key, of each release, by its name, such as 2.8."""
    table = {}
    for line in files("wirekafka.api").joinpath("releases.txt").read_text("ascii").splitlines():
        if not line.startswith("#"):
            name, _, *apis = line.split()
            table[name] = dict(map(_versions_of, apis))
    return table


def _versions_of(text: str) -> tuple[int, range]:
    key, _, versions = text.partition(":")
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
    """Whether a listener that behaves as a release tells clients the broker's features; None is a listener without a release."""
    return release is None or tuple(map(int, release.split("."))) >= FIRST_WITH_FEATURES
