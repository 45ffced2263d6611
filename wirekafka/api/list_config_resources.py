"""ListConfigResources: the names of what has settings.

Behaviour:
    Topics, this broker, and the groups that have settings of their own; of the types that are asked for, of all of them if
    none is. A type that is not known is UNSUPPORTED_VERSION.

Versions:
    0: client metrics subscriptions alone, then named ListClientMetricsResources (KIP-714); there are none. 1: the other types
    (KIP-1142).

Differs from Apache Kafka:
    The broker is not listed a second time for its loggers: their levels are not settings here (UNSUPPORTED_VERSION).

Source: KafkaApis.handleListConfigResources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.config_resources import ResourceType
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.wire.types import Int8, Int16, Int32, Message, String, since

if TYPE_CHECKING:
    from wirekafka.broker import Broker

CLIENT_METRICS = 16
"""ConfigResource.Type of a subscription to clients' metrics."""


class ListConfigResourcesRequest(Message):
    resource_types: Annotated[list[Int8], since(1)] = []


class ConfigResource(Message):
    resource_name: String = ""
    resource_type: Annotated[Int8, since(1)] = CLIENT_METRICS


class ListConfigResourcesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []


FIRST_VERSION_WITH_TYPES = 1


@serves(74, ListConfigResourcesRequest, ListConfigResourcesResponse, versions=range(2), flexible_since=0)
def list_config_resources(broker: Broker, call: Call[ListConfigResourcesRequest]) -> ListConfigResourcesResponse:
    """Lists the resources of the types that are asked for.

    Raises:
        KafkaError: UNSUPPORTED_VERSION, there is no such type.
    """
    call.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
    if call.version < FIRST_VERSION_WITH_TYPES:
        return ListConfigResourcesResponse()
    names: dict[int, list[str]] = {
        ResourceType.TOPIC: [topic.name for topic in broker.topics],
        ResourceType.BROKER: [str(broker.node_id)],
        CLIENT_METRICS: [],
        ResourceType.GROUP: broker.topics.group_configs.group_ids,
    }
    wanted = call.request.resource_types or list(names)
    unknown = [type_ for type_ in wanted if type_ not in names]
    if unknown:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"settings of resources of type {unknown[0]} are not listed")
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=type_) for type_ in dict.fromkeys(wanted) for name in names[type_]
        ]
    )
