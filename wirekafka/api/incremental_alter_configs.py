"""IncrementalAlterConfigs: changes single settings of topics, brokers and groups.

Behaviour:
    Each change sets a setting, takes it back to its default, or adds to or takes from a list. Each resource succeeds or fails by
    itself and as a whole; the new settings are on disk and hold when the answer is sent. `validate_only` checks everything and
    changes nothing. A broker is named by its id, all brokers by "". A resource, or a setting of one, that occurs twice is
    refused.

Versions:
    0: as described (KIP-339). 1: flexible.

Differs from Apache Kafka:
    A broker's settings that no code reads are refused instead of kept, and so are those of its listeners, max.connections,
    max.connections.per.ip and its overrides, log.cleaner.threads and num.recovery.threads.per.data.dir, which are fixed here
    while it runs. BROKER_LOGGER and CLIENT_METRICS are refused with INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.cluster.config_resources import Change, apply_changes, check_changes, find_resource
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class AlterableConfig(Message):
    name: String = ""
    config_operation: Int8 = 0
    value: Annotated[NullableString, nullable(0)] = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


@serves(44, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, versions=range(2), flexible_since=1)
def incremental_alter_configs(broker: Broker, call: Call[IncrementalAlterConfigsRequest]) -> IncrementalAlterConfigsResponse:
    """Answers one IncrementalAlterConfigs request."""
    request = call.request
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    return IncrementalAlterConfigsResponse(
        responses=[
            _result(broker, resource, request.validate_only, times[resource.resource_type, resource.resource_name])
            for resource in request.resources
        ]
    )


def _result(broker: Broker, resource: AlterConfigsResource, validate_only: bool, times: int) -> AlterConfigsResourceResponse:
    response = AlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if times > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        _alter(broker, resource, validate_only)
    except KafkaError as error:
        response.error_code = error.code
        response.error_message = error.message
    return response


def _alter(broker: Broker, resource: AlterConfigsResource, validate_only: bool) -> None:
    changes = [Change(config.name, config.config_operation, config.value) for config in resource.configs]
    check_changes(changes)
    target = find_resource(broker.topics, broker.node_id, resource.resource_type, resource.resource_name)
    configs = apply_changes(target, changes)
    if validate_only:
        target.check(configs)
    else:
        target.replace(configs)
