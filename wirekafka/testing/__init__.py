"""Brokers for tests, and parts of a broker for tests: for your tests and for wirekafka's own.

    EmbeddedBroker        a broker in a thread of your program
    open_embedded         the same inside a trio program
    EmbeddedCluster       several brokers and a ZooKeeper in a thread of your program
    open_cluster          the same inside a trio program
    open_control          the control port of a broker, for tests in other languages
    open_cluster_control  the control port of a cluster
    WirekafkaContainer    a broker in a container, for testcontainers
    data_plane            a broker without sockets; requests and responses pass the codec
    faulty_storage        a disk that crashes, tears a write, fills up or fails where a test says so
    remembering_storage   a disk that can build every state that a crash may leave
    memory_log            the log of a partition, in memory

Each part passes the same tests as the real part (`wirekafka/tests/testing`). Only `pytest_plugin` needs
pytest, and only `WirekafkaContainer` needs testcontainers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirekafka.testing.advancing_clock import AdvancingClock
    from wirekafka.testing.async_broker import AsyncEmbeddedBroker, Snapshot, open_embedded
    from wirekafka.testing.cluster import open_cluster
    from wirekafka.testing.containers import WirekafkaContainer
    from wirekafka.testing.control.port import open_cluster_control, open_control
    from wirekafka.testing.embedded import EmbeddedBroker
    from wirekafka.testing.embedded_cluster import EmbeddedCluster
    from wirekafka.testing.faults import ActiveFault, FaultSpec
    from wirekafka.testing.groups import GroupView, MemberView
    from wirekafka.testing.stored_records import StoredRecord

_HOMES = {
    "ActiveFault": "faults",
    "AdvancingClock": "advancing_clock",
    "AsyncEmbeddedBroker": "async_broker",
    "EmbeddedBroker": "embedded",
    "EmbeddedCluster": "embedded_cluster",
    "FaultSpec": "faults",
    "GroupView": "groups",
    "MemberView": "groups",
    "Snapshot": "async_broker",
    "StoredRecord": "stored_records",
    "WirekafkaContainer": "containers",
    "open_cluster": "cluster",
    "open_cluster_control": "control.port",
    "open_control": "control.port",
    "open_embedded": "async_broker",
}

__all__ = [
    "ActiveFault",
    "AdvancingClock",
    "AsyncEmbeddedBroker",
    "EmbeddedBroker",
    "EmbeddedCluster",
    "FaultSpec",
    "GroupView",
    "MemberView",
    "Snapshot",
    "StoredRecord",
    "WirekafkaContainer",
    "open_cluster",
    "open_cluster_control",
    "open_control",
    "open_embedded",
]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: a part of the package does not import the whole broker."""
    if name not in _HOMES:
        raise AttributeError(f"module 'wirekafka.testing' has no attribute {name!r}")
    return getattr(import_module(f"wirekafka.testing.{_HOMES[name]}"), name)
