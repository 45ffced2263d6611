"""What a client may do with a topic or with the cluster, as the bits in which clients are told.

Rule of this file: without an authorizer everybody may do everything, and Kafka says so by setting the bit of every operation
that the kind of resource knows.

Source: KIP-430; org.apache.kafka.security.authorizer.AclEntry.supportedOperations, AclOperation (the bits).
"""

from __future__ import annotations

from enum import IntEnum

NOT_ASKED = -(2**31)
"""What stands in a response whose request did not ask for the operations."""


class Operation(IntEnum):
    """An operation, by the number of its bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
"""Everything that can be done with a topic."""

GROUP_OPERATIONS = _bits(
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
"""Everything that can be done with a group."""

CLUSTER_OPERATIONS = _bits(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
"""Everything that can be done with the cluster."""
