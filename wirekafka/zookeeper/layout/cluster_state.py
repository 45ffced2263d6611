"""The znodes with the state of the whole cluster: finalized features, and the last block of producer ids.

Source: kafka.zk.{FeatureZNode, ProducerIdBlockZNode} of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import JsonObject, write_object

FEATURES_DISABLED, FEATURES_ENABLED = 0, 1
_FEATURE_STATUSES = (FEATURES_DISABLED, FEATURES_ENABLED)


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """The content of `/feature`. The version of the znode is the epoch of the features.

    Attributes:
        features: the level of each feature.
        status: FEATURES_ENABLED, or FEATURES_DISABLED if the levels mean nothing.
        version: 2, or 1 for clusters whose `inter.broker.protocol.version` is below 3.3.
        unknown: the keys that this version does not know.
    """

    features: Mapping[str, int]
    status: int = FEATURES_ENABLED
    version: int = 2
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> FinalizedFeatures:
        """Reads the content.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        values = JsonObject.parse(paths.FEATURE, data)
        version, status = values.integer("version"), values.integer("status")
        if version not in (1, 2) or status not in _FEATURE_STATUSES:
            values.refuse(f"version {version} with status {status} is not known")
        features = values.object("features")
        levels = {name: _read_level(features.object(name), version) for name in features}
        return cls(levels, status, version, values.without(("features", "version", "status")))

    def write(self) -> bytes:
        """Returns the content."""
        levels = {
            name: {"max_version_level": level} | ({"min_version_level": level} if self.version == 1 else {})
            for name, level in self.features.items()
        }
        return write_object({"features": levels, "version": self.version, "status": self.status}, self.unknown)


def _read_level(values: JsonObject, version: int) -> int:
    level = values.integer("max_version_level")
    lowest = values.integer("min_version_level") if version == 1 else 1
    if not 1 <= lowest <= level:
        values.refuse(f"the levels {lowest} to {level} of a feature are not positive and in order")
    return level


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The content of `/latest_producer_id_block`.

    Attributes:
        broker_id: the broker that took the block.
        first: the first producer id of the block.
        last: the last producer id of the block.
        unknown: the keys that this version does not know.
    """

    broker_id: int
    first: int
    last: int
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> ProducerIdBlock | None:
        """Reads the content; None if no block was taken yet.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        if not data:
            return None
        values = JsonObject.parse(paths.PRODUCER_ID_BLOCK, data)
        unknown = values.without(("version", "broker", "block_start", "block_end"))
        return cls(values.integer("broker"), values.long_text("block_start"), values.long_text("block_end"), unknown)

    def write(self) -> bytes:
        """Returns the content, in version 1."""
        values = {"version": 1, "broker": self.broker_id, "block_start": str(self.first), "block_end": str(self.last)}
        return write_object(values, self.unknown)
