"""DescribeConfigs: the settings of topics, brokers and groups, and the source of each setting.

Behaviour:
    A broker id asks for all settings of the broker; the name "" asks for the dynamic settings of all brokers. Each setting has
    its source, its type, whether it is fixed while the broker runs, and whether it is secret (its value is null then); on request
    also the values of other sources (highest first) and the documentation. Each resource fails by itself.
    `configuration_keys` selects settings; null and an empty list ask for all.

Versions:
    0: `is_default` (KIP-133). 1: sources and synonyms (KIP-226). 2: as 1. 3: types and documentation (KIP-569). 4: flexible.

Differs from Apache Kafka:
    A broker has the settings that wirekafka supports, which are not all of Kafka's. Without zookeeper.connect, its
    default.replication.factor is 1.
    BROKER_LOGGER and CLIENT_METRICS are refused with INVALID_REQUEST.
    A resource that the request names twice is described once, for the first entry.
    A resource with a value of more than 32,767 bytes, which other tools may have written to ZooKeeper, gets INVALID_CONFIG,
    because no version has longer texts. Apache Kafka sends what its clients cannot read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.config import ConfigSource
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.config_resources import ResourceType, check_broker_name, find_topic, is_too_long, protected_resource
from wirekafka.metadata.described_configs import (
    DescribedSetting,
    describe_broker_settings,
    describe_default_settings,
    describe_group_settings,
    describe_topic_settings,
)
from wirekafka.metadata.operations import Operation
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, nullable, since, until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: Annotated[list[String] | None, nullable(0)] = []


class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: Annotated[Bool, since(1)] = False
    include_documentation: Annotated[Bool, since(3)] = False


class DescribeConfigsSynonym(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = ""
    read_only: Bool = False
    is_default: Annotated[Bool, until(0)] = False
    config_source: Annotated[Int8, since(1)] = -1
    is_sensitive: Bool = False
    synonyms: Annotated[list[DescribeConfigsSynonym], since(1)] = []
    config_type: Annotated[Int8, since(3)] = 0
    documentation: Annotated[NullableString, since(3), nullable(0)] = ""


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []


@serves(32, DescribeConfigsRequest, DescribeConfigsResponse, versions=range(5), flexible_since=4)
def describe_configs(
    broker: Broker, call: Call[DescribeConfigsRequest]
) -> DescribeConfigsResponse | Pending[DescribeConfigsResponse]:
    """Answers one DescribeConfigs request."""
    if broker.member is not None:
        return _describe_in_cluster(broker, broker.member, call)
    return broker.slices.run(_description(broker, call))


def _describe_in_cluster(
    broker: Broker, member: Member, call: Call[DescribeConfigsRequest]
) -> DescribeConfigsResponse | Pending[DescribeConfigsResponse]:
    """Describes settings after those of topics and groups were read again: other brokers may just have changed them.

    Source: kafka.server.ConfigHelper.describeConfigs.
    """
    topics, groups = (
        {each.resource_name for each in call.request.resources if each.resource_type == type_ and each.resource_name}
        for type_ in (ResourceType.TOPIC, ResourceType.GROUP)
    )
    known = [name for name in topics if broker.topics.find(name) is not None]
    if not known and not groups:
        return broker.slices.run(_description(broker, call))
    return member.configs.read(known, groups).map(
        lambda failure: broker.slices.run(_description(broker, call, is_readable=not isinstance(failure, Exception)))
    )


def _description(
    broker: Broker, call: Call[DescribeConfigsRequest], *, is_readable: bool = True
) -> Work[DescribeConfigsResponse]:
    """Describes each resource, one in each step.

    Args:
        is_readable: Whether the settings of the topics and groups could be read.
    """
    asked: dict[tuple[int, str], DescribeConfigsResource] = {}
    for resource in call.request.resources:
        asked.setdefault((resource.resource_type, resource.resource_name), resource)
        yield
    response = DescribeConfigsResponse()
    for resource in asked.values():
        response.results.append(_result(broker, resource, call, is_readable=is_readable))
        yield
    return response


def _result(
    broker: Broker, resource: DescribeConfigsResource, call: Call[DescribeConfigsRequest], *, is_readable: bool
) -> DescribeConfigsResult:
    try:
        call.authorize(Operation.DESCRIBE_CONFIGS, protected_resource(resource.resource_type, resource.resource_name))
        if not is_readable and resource.resource_type != ResourceType.BROKER:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "The settings in ZooKeeper cannot be read.")
        described = _selected(_described(broker, resource), resource.configuration_keys)
        _check_lengths(described)
    except KafkaError as error:
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_entry(each, call.request) for each in described],
    )


def _described(broker: Broker, resource: DescribeConfigsResource) -> Iterable[DescribedSetting]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        return describe_topic_settings(broker.config, find_topic(broker.topics, name).overrides)
    if resource.resource_type == ResourceType.BROKER:
        check_broker_name(name, broker.node_id)
        return describe_broker_settings(broker.config) if name else describe_default_settings(broker.config)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group_settings(broker.config, broker.topics.group_configs.own(name))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")


def _selected(described: Iterable[DescribedSetting], keys: list[str] | None) -> Iterable[DescribedSetting]:
    return [each for each in described if each.setting.name in keys] if keys else described


def _check_lengths(described: Iterable[DescribedSetting]) -> None:
    """Raises unless a response can have the values.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    for each in described:
        for value in (each.value, *(synonym.value for synonym in each.synonyms)):
            if value is not None and is_too_long(value):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"The value of {each.setting.name} is too long for a response.")


def _entry(described: DescribedSetting, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    setting = described.setting
    synonyms = described.synonyms if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=described.value,
        read_only=described.is_read_only,
        is_default=described.source == ConfigSource.DEFAULT_CONFIG,
        config_source=described.source,
        is_sensitive=setting.is_sensitive,
        synonyms=[DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source) for synonym in synonyms],
        config_type=setting.type,
        documentation=setting.documentation if request.include_documentation else None,
    )
