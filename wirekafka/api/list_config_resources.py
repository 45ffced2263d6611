"""ListConfigResources: the names of the resources that have settings.

Behaviour:
    The response has the topics, this broker, and the groups that have settings of their own: the types that the request names, or
    all types if it names none. An unknown type gets UNSUPPORTED_VERSION.

Versions:
    0: client metrics subscriptions alone, as ListClientMetricsResources (KIP-714); wirekafka has none. 1: the other types
    (KIP-1142).

Differs from Apache Kafka:
    The type for the broker's loggers gets UNSUPPORTED_VERSION, because the levels of loggers are not settings in wirekafka.

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
"""The number of a client metrics subscription in ConfigResource.Type."""


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
    """Lists the resources of the requested types.

    Raises:
        KafkaError: UNSUPPORTED_VERSION if a type is unknown.
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
