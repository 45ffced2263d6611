"""CreateTopics: creates topics with their settings.

Behaviour:
    Each topic succeeds or fails by itself. A topic is on disk and can be used when the response is sent; `timeout_ms` has no
    effect. -1 partitions mean `num.partitions`, or the partitions of the assignments. The replication factor is 1 or -1, because
    a broker without `zookeeper.connect` is the only one. `validate_only` checks everything and changes nothing. A name that
    occurs twice is refused. A member of a cluster answers NOT_CONTROLLER for each topic.

Versions:
    0: topics, assignments, settings. 1: `validate_only`, error messages. 2: throttle time. 3: as 2.
    4: -1 for the defaults of the broker (KIP-464).
    5: flexible; partitions, replication factor and settings in the answer (KIP-525).
    6: may be throttled (KIP-599). 7: topic ids in the answer (KIP-516).

Differs from Apache Kafka:
    If two names in one request differ in `.` and `_` only, the second topic is refused; Apache Kafka creates both.
    Without `zookeeper.connect`, `default.replication.factor` has no effect. The broker has no policies and no quotas.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from wirekafka.api.not_controller import not_controller
from wirekafka.api.registry import Call, serves_type
from wirekafka.config import BrokerConfig
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.described_configs import describe_topic_settings
from wirekafka.metadata.operations import CLUSTER, Operation, Resource
from wirekafka.metadata.topics import MAX_RECORDS_AT_ONCE, check_assignment
from wirekafka.names import CLUSTER_METADATA_TOPIC, ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.messages.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(CREATE_TOPICS)
def create_topics(broker: Broker, call: Call[CreateTopicsRequest]) -> CreateTopicsResponse | Pending[Any]:
    """Answers one CreateTopics request; the topics of one slice are synced to the disk together."""
    if broker.member is not None:
        return CreateTopicsResponse(topics=[_failure(topic.name, not_controller()) for topic in call.request.topics])
    return broker.slices.run(_creation(broker, call), around=broker.topics.together, outlives_client=True)


def _creation(broker: Broker, call: Call[CreateTopicsRequest]) -> Work[CreateTopicsResponse]:
    request = call.request
    times = Counter(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    try:
        _check_request_size(broker.config, request)
    except KafkaError as error:
        return CreateTopicsResponse(topics=(yield from collect(_failure(name, error) for name in times)))
    settings = DescribedSettings(broker.config)
    for topic in request.topics:
        if times[topic.name] == 1:
            results.append((yield from _result(broker, call, topic, settings)))
            yield
    duplicate = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results += [_failure(name, duplicate) for name, count in times.items() if count > 1]
    return CreateTopicsResponse(topics=results)


def _check_request_size(config: BrokerConfig, request: CreateTopicsRequest) -> None:
    """Raises unless the request is small enough.

    Raises:
        KafkaError: POLICY_VIOLATION.

    Source: ReplicationControlManager.validateTotalNumberOfPartitions; QuorumController.MAX_RECORDS_PER_USER_OP.
    """
    default_count = config.integer("num.partitions")
    partition_count = sum(
        len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default_count)
        for topic in request.topics
    )
    if partition_count > MAX_RECORDS_AT_ONCE:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    if partition_count + sum(1 + len(topic.configs) for topic in request.topics) > MAX_RECORDS_AT_ONCE:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


class DescribedSettings:
    """The settings of new topics as one response lists them; topics with the same overrides share one list."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._known: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    def of(self, overrides: dict[str, str]) -> list[CreatableTopicConfigs]:
        """Returns all settings of a topic with these overrides."""
        key = frozenset(overrides.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = [
                CreatableTopicConfigs(
                    name=described.setting.name,
                    value=described.value,
                    config_source=described.source,
                    is_sensitive=described.setting.is_sensitive,
                )
                for described in describe_topic_settings(self._config, overrides)
            ]
        return found


def _result(
    broker: Broker, call: Call[CreateTopicsRequest], asked: CreatableTopic, settings: DescribedSettings
) -> Work[CreatableTopicResult]:
    try:
        if not call.is_authorized(Operation.CREATE, CLUSTER):
            call.authorize(Operation.CREATE, Resource.topic(asked.name))
        result = yield from _create(broker, asked, settings, call.request.validate_only)
        _authorize_description(call, result)
        return result
    except KafkaError as error:
        return _failure(asked.name, error)


def _authorize_description(call: Call[CreateTopicsRequest], result: CreatableTopicResult) -> None:
    """Clears the settings and counts unless the client may describe the topic's settings (KIP-525)."""
    if not call.is_authorized(Operation.DESCRIBE_CONFIGS, Resource.topic(result.name)):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        result.num_partitions, result.replication_factor, result.configs = -1, -1, []


def _failure(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _create(
    broker: Broker, asked: CreatableTopic, settings: DescribedSettings, validate_only: bool
) -> Work[CreatableTopicResult]:
    if asked.name == CLUSTER_METADATA_TOPIC:
        message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    topics = broker.topics
    topics.check_name(asked.name)
    overrides = _overrides(asked.configs)
    topics.resolve(overrides)
    partition_count = _partition_count(asked, broker.config, broker.node_id)
    topic_id = ZERO_TOPIC_ID
    if validate_only:
        topics.check_new(asked.name, partition_count, overrides)
    else:
        topic_id = (yield from topics.creation(asked.name, partition_count, overrides)).topic_id
    return CreatableTopicResult(
        name=asked.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=partition_count,
        replication_factor=1,
        configs=settings.of(overrides),
    )


def _overrides(configs: list[CreatableTopicConfig]) -> dict[str, str]:
    nulls = [config.name for config in configs if config.value is None]
    if nulls:
        message = f"Null value not supported for topic configs: {','.join(nulls)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return {config.name: config.value for config in configs if config.value is not None}


def _partition_count(asked: CreatableTopic, config: BrokerConfig, node_id: int) -> int:
    if asked.assignments:
        return _assigned_count(asked, node_id)
    if asked.replication_factor < -1 or asked.replication_factor == 0:
        message = "Replication factor must be larger than 0, or -1 to use the default value."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if asked.num_partitions < -1 or asked.num_partitions == 0:
        message = "Number of partitions was set to an invalid non-positive value."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if asked.replication_factor > 1:
        message = (
            f"Unable to replicate the partition {asked.replication_factor} time(s): The target replication factor of "
            f"{asked.replication_factor} cannot be reached because only 1 broker(s) are registered."
        )
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return config.integer("num.partitions") if asked.num_partitions == -1 else asked.num_partitions


def _assigned_count(asked: CreatableTopic, node_id: int) -> int:
    if asked.replication_factor != -1:
        message = "A manual partition assignment was specified, but replication factor was not set to -1."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if asked.num_partitions != -1:
        message = "A manual partition assignment was specified, but numPartitions was not set to -1."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    indexes: set[int] = set()
    for assignment in asked.assignments:
        if assignment.partition_index in indexes:
            message = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        check_assignment(assignment.broker_ids, node_id)
        indexes.add(assignment.partition_index)
    if indexes != set(range(len(indexes))):
        message = "partitions should be a consecutive 0-based integer sequence"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return len(indexes)
