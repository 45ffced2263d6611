"""The znodes of the members: the id of the cluster, the registrations of brokers, and the controller.

Source: kafka.zk.{ClusterIdZNode, BrokerIdZNode, ControllerZNode, ControllerEpochZNode} of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wirekafka.config.definition import ConfigError
from wirekafka.config.endpoints import Listener, parse_listeners
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import JsonObject, read_integer, write_object
from wirekafka.zookeeper.layout.key_order import immutable_map_order

BROKER_VERSION = 5
"""The version of registrations since Kafka 2.7."""
CONTROLLER_VERSION = 2
NO_KRAFT_CONTROLLER_EPOCH = -1
"""What `kraftControllerEpoch` says while ZooKeeper rules (Kafka's sentinel, which is in the JSON)."""
NO_PORT = -1
"""The top-level port of a broker without a PLAINTEXT listener."""


def read_cluster_id(data: bytes) -> str:
    """Returns the id of the cluster.

    Raises:
        MalformedZnodeError: the content is not Kafka's.
    """
    return JsonObject.parse(paths.CLUSTER_ID, data).text("id")


def write_cluster_id(cluster_id: str) -> bytes:
    """Returns the content of `/cluster/id`."""
    return write_object({"version": "1", "id": cluster_id}, {})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of a broker.

    Attributes:
        listener: its name, host and port.
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
    """

    listener: Listener
    security_protocol: str


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The content of `/brokers/ids/N`. The czxid of the znode is the broker epoch.

    Attributes:
        timestamp_ms: when the broker registered, since 1970; None in content that says no number.
        features: for each feature, `min_version` and `max_version`.
        jmx_port: -1 if there is none.
        unknown: the keys that this version does not know.
    """

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int | None = None
    rack: str | None = None
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    jmx_port: int = -1
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, broker_id: int, data: bytes) -> BrokerRegistration:
        """Reads a registration of any version.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        values = JsonObject.parse(paths.broker(broker_id), data)
        version = values.integer("version")
        if version < 1:
            values.refuse(f"the version of the registration is {version}")
        features = values.object("features") if "features" in values else None
        return cls(
            endpoints=_read_endpoints(values, version),
            timestamp_ms=values.long_text("timestamp") if "timestamp" in values else None,
            rack=values.text("rack") if "rack" in values else None,
            features={} if features is None else {name: _read_range(features.object(name)) for name in features},
            jmx_port=values.integer("jmx_port"),
            unknown=values.without(_BROKER_KEYS),
        )

    def write(self) -> bytes:
        """Returns the content, in version 5."""
        # Clients of Kafka 0.8 read the first PLAINTEXT address at the top.
        plain = next((each.listener for each in self.endpoints if each.security_protocol == "PLAINTEXT"), None)
        protocols = {each.listener.name: each.security_protocol for each in self.endpoints}
        values: dict[str, Any] = {
            "features": self.features,
            "listener_security_protocol_map": {name: protocols[name] for name in immutable_map_order(protocols)},
            "endpoints": [str(each.listener) for each in self.endpoints],
            "rack": self.rack,
            "jmx_port": self.jmx_port,
            "port": NO_PORT if plain is None else plain.port,
            "host": None if plain is None else plain.host,
            "version": BROKER_VERSION,
            "timestamp": str(self.timestamp_ms),
        }
        if self.rack is None:
            del values["rack"]
        if self.timestamp_ms is None:
            del values["timestamp"]
        return write_object(values, self.unknown)


_BROKER_KEYS = (
    "features",
    "listener_security_protocol_map",
    "endpoints",
    "rack",
    "jmx_port",
    "port",
    "host",
    "version",
    "timestamp",
)


def _read_endpoints(values: JsonObject, version: int) -> tuple[Endpoint, ...]:
    if version == 1:
        return (Endpoint(Listener("PLAINTEXT", values.text("host"), values.integer("port")), "PLAINTEXT"),)
    protocols: dict[str, str] | None = None
    if "listener_security_protocol_map" in values:
        named = values.object("listener_security_protocol_map")
        protocols = {name.upper(): named.text(name) for name in named}
    try:
        listeners = parse_listeners("endpoints", values.texts("endpoints"))
    except ConfigError as error:
        values.refuse(str(error))
    # Before version 4, a listener's name is its protocol.
    missing = [each.name for each in listeners if protocols is not None and each.name not in protocols]
    if missing:
        values.refuse(f"listener_security_protocol_map has no protocol of {', '.join(missing)}")
    return tuple(Endpoint(each, each.name if protocols is None else protocols[each.name]) for each in listeners)


def _read_range(values: JsonObject) -> dict[str, int]:
    return {name: values.integer(name) for name in values}


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """The content of `/controller`, an ephemeral znode.

    Attributes:
        timestamp_ms: when the broker became the controller, since 1970; None in content that says no number.
        kraft_controller_epoch: the epoch of the KRaft controller that has taken over; None while ZooKeeper rules.
        unknown: the keys that this version does not know.
    """

    broker_id: int
    timestamp_ms: int | None = None
    kraft_controller_epoch: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, data: bytes) -> ControllerRegistration:
        """Reads the content.

        Raises:
            MalformedZnodeError: the content is not Kafka's.
        """
        values = JsonObject.parse(paths.CONTROLLER, data)
        epoch = values.integer("kraftControllerEpoch") if "kraftControllerEpoch" in values else NO_KRAFT_CONTROLLER_EPOCH
        return cls(
            broker_id=values.integer("brokerid"),
            timestamp_ms=values.long_text("timestamp") if "timestamp" in values else None,
            kraft_controller_epoch=None if epoch == NO_KRAFT_CONTROLLER_EPOCH else epoch,
            unknown=values.without(("version", "brokerid", "timestamp", "kraftControllerEpoch")),
        )

    def write(self) -> bytes:
        """Returns the content, in version 2."""
        epoch = NO_KRAFT_CONTROLLER_EPOCH if self.kraft_controller_epoch is None else self.kraft_controller_epoch
        values: dict[str, Any] = {"version": CONTROLLER_VERSION, "brokerid": self.broker_id}
        if self.timestamp_ms is not None:
            values["timestamp"] = str(self.timestamp_ms)
        return write_object({**values, "kraftControllerEpoch": epoch}, self.unknown)


def read_controller_epoch(data: bytes) -> int:
    """Returns the controller epoch.

    Raises:
        MalformedZnodeError: the content is not a number.
    """
    return read_integer(paths.CONTROLLER_EPOCH, data)


def write_controller_epoch(epoch: int) -> bytes:
    """Returns the content of `/controller_epoch`."""
    return str(epoch).encode()
