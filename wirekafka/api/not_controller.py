"""The refusal of requests that only the controller of a cluster answers.

A member of a cluster with ZooKeeper refuses them, and the client asks the controller that Metadata names.

Source: KafkaApis of Apache Kafka 3.9, where `zkSupport.controller.isActive` decides.
"""

from __future__ import annotations

from wirekafka.errors import ErrorCode, KafkaError


def not_controller() -> KafkaError:
    """Returns the error of a member for a request that only the controller answers."""
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster.")
