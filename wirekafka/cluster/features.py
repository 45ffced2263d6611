"""Features: the versions of protocols that span several APIs, which a cluster switches on as a whole.

A feature stands here once everything that it promises is served. This broker is the whole cluster, so each is finalised at its
newest version from the start. Clients decide by it how they go about transactions and groups (KIP-584, KIP-890, KIP-848).

Source: org.apache.kafka.server.common.Feature and TransactionVersion; BrokerFeatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FINALIZED_EPOCH = 0
"""Grows whenever a finalised version changes, which none ever does. A client takes a negative one for "not known yet"."""

GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
TRANSACTION_VERSION = "transaction.version"

PRODUCE, END_TXN, TXN_OFFSET_COMMIT = 0, 26, 28
CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT = 68, 76


class FeatureVersions(NamedTuple):
    """The versions of a feature that can be had; 0 is to be without it."""

    least: int
    most: int


_NEEDS: dict[str, tuple[dict[int, int], ...]] = {
    # 1: consumer groups (KIP-848).
    GROUP_VERSION: ({CONSUMER_GROUP_HEARTBEAT: 0},),
    # 1: share groups (KIP-932).
    SHARE_VERSION: ({SHARE_GROUP_HEARTBEAT: 1},),
    # 1: the coordinator writes flexible records. 2: transactions v2, an epoch for each transaction (KIP-890).
    TRANSACTION_VERSION: ({}, {PRODUCE: 12, END_TXN: 5, TXN_OFFSET_COMMIT: 5}),
}
"""What each version of a feature, from 1 on, asks of the APIs by their keys: a version that must be served."""


def served_features(versions: Mapping[int, range]) -> dict[str, FeatureVersions]:
    """Every feature that is served, by name; it is finalised at its `most`.

    A broker that hides versions of its APIs is without the features that need them, or clients would look for what is hidden.

    Args:
        versions: the versions of each API that are served, by its key.
    """
    features = {}
    for name, needs in _NEEDS.items():
        most = 0
        for need in needs:
            if not all(version in versions.get(key, ()) for key, version in need.items()):
                break
            most += 1
        if most:
            features[name] = FeatureVersions(0, most)
    return features
