"""Features: the versions of protocols that span several APIs, which a cluster switches on as a whole.

A feature stands here once everything that it promises is served. This broker is the whole cluster, so each is finalised at its
newest version from the start. Clients decide by it how they go about transactions and groups (KIP-584, KIP-890, KIP-848).

Source: org.apache.kafka.server.common.Feature and TransactionVersion; BrokerFeatures.
"""

from __future__ import annotations

from typing import NamedTuple

FINALIZED_EPOCH = 0
"""Grows whenever a finalised version changes, which none ever does. A client takes a negative one for "not known yet"."""


class FeatureVersions(NamedTuple):
    """The versions of a feature that can be had; 0 is to be without it."""

    least: int
    most: int


GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
TRANSACTION_VERSION = "transaction.version"

FEATURES: dict[str, FeatureVersions] = {
    # 1: consumer groups (KIP-848).
    GROUP_VERSION: FeatureVersions(0, 1),
    # 1: share groups (KIP-932).
    SHARE_VERSION: FeatureVersions(0, 1),
    # 1: the coordinator writes flexible records. 2: transactions v2, an epoch for each transaction (KIP-890).
    TRANSACTION_VERSION: FeatureVersions(0, 2),
}
"""Every feature that is served, by name; finalised at `most`."""
