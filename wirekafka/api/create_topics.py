"""CreateTopics: creates topics with their settings.

Behaviour:
    Each topic succeeds or fails by itself. -1 partitions mean `num.partitions`, or the partitions of the assignments.
    `validate_only` checks everything and changes nothing. A name that occurs twice is refused.
    Without `zookeeper.connect`, a topic is on disk and can be used when the response is sent; `timeout_ms` has no effect. The
    replication factor is 1 or -1, because there is one broker.
    In a cluster, the controller spreads the replicas over brokers and racks; a replication factor of -1 means
    `default.replication.factor`. The response is sent when all partitions have leaders, or after `timeout_ms` with
    REQUEST_TIMED_OUT for the topics that lack leaders, which exist all the same. Other members answer NOT_CONTROLLER for each
    topic.

Versions:
    0: topics, assignments, settings. 1: `validate_only`, error messages. 2: throttle time. 3: as 2.
    4: -1 for the defaults of the broker (KIP-464).
    5: flexible; partitions, replication factor and settings in the answer (KIP-525).
    6: may be throttled (KIP-599). 7: topic ids in the answer (KIP-516).

Differs from Apache Kafka:
    If two names in one request differ in `.` and `_` only, the second topic is refused; Apache Kafka with KRaft creates both.
    Without `zookeeper.connect`, `default.replication.factor` has no effect. The broker has no policies and no quotas.
    In a cluster, topics are assigned in parts of 50, and other work of the controller goes on between them. Settings that
    wirekafka does not honour are not in the response.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from wirekafka.api.controller_events import active_controller, enter_each, not_controller
from wirekafka.api.registry import Call, serves_type
from wirekafka.config import BrokerConfig
from wirekafka.config.cluster_table import RELEASES
from wirekafka.config.topic_table import WITHOUT_FEATURE
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.described_configs import describe_topic_settings
from wirekafka.metadata.operations import CLUSTER, Operation, Resource
from wirekafka.metadata.topics import MAX_RECORDS_AT_ONCE, check_assignment
from wirekafka.names import CLUSTER_METADATA_TOPIC, ZERO_TOPIC_ID, new_topic_id
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
    from wirekafka.controller.administration import CreatedTopic, NewTopic
    from wirekafka.controller.local_controller import Event
    from wirekafka.membership.member import Member
    from wirekafka.membership.topic_waits import Condition


@serves_type(CREATE_TOPICS)
def create_topics(broker: Broker, call: Call[CreateTopicsRequest]) -> CreateTopicsResponse | Pending[Any]:
    """Answers one CreateTopics request; without a cluster, the topics of one slice are synced to the disk together."""
    if broker.member is not None:
        return broker.slices.run(_creation_in_cluster(broker, broker.member, call))
    return broker.slices.run(_creation(broker, call), around=broker.topics.together, outlives_client=True)


def _creation(broker: Broker, call: Call[CreateTopicsRequest]) -> Work[CreateTopicsResponse]:
    request = call.request
    times = Counter(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    try:
        _check_request_size(broker.config, request, is_partition_a_record=True)
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


def _check_request_size(config: BrokerConfig, request: CreateTopicsRequest, *, is_partition_a_record: bool) -> None:
    """Raises unless the request is small enough.

    Args:
        is_partition_a_record: whether partitions are written one by one; in ZooKeeper, all partitions of a topic are one znode.

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
    record_count = sum(1 + len(topic.configs) for topic in request.topics)
    if record_count + partition_count * is_partition_a_record > MAX_RECORDS_AT_ONCE:
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


def _check_allowed(call: Call[CreateTopicsRequest], name: str) -> None:
    """Raises unless the client may create the topic.

    Raises:
        KafkaError: TOPIC_AUTHORIZATION_FAILED; INVALID_REQUEST for the topic that nobody may create.
    """
    if not call.is_authorized(Operation.CREATE, CLUSTER):
        call.authorize(Operation.CREATE, Resource.topic(name))
    if name == CLUSTER_METADATA_TOPIC:
        message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _result(
    broker: Broker, call: Call[CreateTopicsRequest], asked: CreatableTopic, settings: DescribedSettings
) -> Work[CreatableTopicResult]:
    try:
        _check_allowed(call, asked.name)
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


# In a cluster


def _creation_in_cluster(
    broker: Broker, member: Member, call: Call[CreateTopicsRequest]
) -> Work[CreateTopicsResponse | Pending[Any]]:
    """Lets the controller of this broker create the topics that the client may create, and waits for their leaders.

    Source: KafkaApis.handleCreateTopicsRequest, ZkAdminManager.createTopics.
    """
    request = call.request
    controller = active_controller(member)
    if controller is None:
        refused = yield from collect(_failure(topic.name, not_controller()) for topic in request.topics)
        return CreateTopicsResponse(topics=refused)
    times = Counter(topic.name for topic in request.topics)
    results: dict[str, CreatableTopicResult | None] = dict.fromkeys(times)
    wanted: list[NewTopic] = []
    try:
        _check_request_size(broker.config, request, is_partition_a_record=False)
    except KafkaError as error:
        return CreateTopicsResponse(topics=(yield from collect(_failure(name, error) for name in times)))
    for topic in request.topics:
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            wanted.append(_new_topic(broker, member, call, topic))
        except KafkaError as error:
            results[topic.name] = _failure(topic.name, error)
        yield
    created = enter_each(controller, wanted, partial(_event_of, broker, request))
    answer = _ClusterAnswer(broker, member, call, wanted, results)
    return created.map(lambda outcomes: broker.slices.run(answer.wait(outcomes)))


def _new_topic(broker: Broker, member: Member, call: Call[CreateTopicsRequest], asked: CreatableTopic) -> NewTopic:
    """Returns a topic as the controller creates it.

    Raises:
        KafkaError: the client may not create the topic, or the topic exists, or its settings are not valid.
    """
    from wirekafka.controller.administration import NewTopic
    from wirekafka.membership.stored_configs import stored_topic

    _check_allowed(call, asked.name)
    if asked.name in member.image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{asked.name}' already exists.")
    overrides = _overrides(asked.configs)
    stored_topic(broker.config, {}).check(overrides)
    partition_count, replication_factor = asked.num_partitions, asked.replication_factor
    if asked.assignments and (partition_count, replication_factor) != (-1, -1):
        message = (
            "Both numPartitions or replicationFactor and replicasAssignments were set. Both cannot be used at the same time."
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if partition_count == -1:
        partition_count = broker.config.integer("num.partitions")
    if replication_factor == -1:
        replication_factor = broker.config.integer("default.replication.factor")
    assignments = _assignments(asked) if asked.assignments else None
    return NewTopic(asked.name, partition_count, replication_factor, assignments, overrides)


def _assignments(asked: CreatableTopic) -> dict[int, tuple[int, ...]]:
    assignments: dict[int, tuple[int, ...]] = {}
    for assignment in asked.assignments:
        if assignment.partition_index in assignments:
            message = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        assignments[assignment.partition_index] = tuple(assignment.broker_ids)
    return assignments


def _event_of(broker: Broker, request: CreateTopicsRequest, topics: Sequence[NewTopic]) -> Event[list[CreatedTopic | KafkaError]]:
    from wirekafka.controller.administration import Dice, create_topics

    has_ids = RELEASES.index(broker.config.inter_broker_release) >= RELEASES.index("2.8")
    dice = Dice(below=random.randrange, topic_id=new_topic_id if has_ids else lambda: None)
    return lambda context, batch: create_topics(context, topics, dice, validate_only=request.validate_only)


class _ClusterAnswer:
    """The response of the controller to a CreateTopics request."""

    def __init__(
        self,
        broker: Broker,
        member: Member,
        call: Call[CreateTopicsRequest],
        wanted: list[NewTopic],
        results: dict[str, CreatableTopicResult | None],
    ) -> None:
        self._broker = broker
        self._member = member
        self._call = call
        self._wanted = wanted
        self._results = results

    def wait(self, outcomes: Sequence[CreatedTopic | KafkaError]) -> Work[Pending[Any]]:
        """Makes the results of the topics, and waits for the leaders of those that were created."""
        from wirekafka.membership.topic_waits import has_leaders

        request = self._call.request
        settings = DescribedSettings(self._broker.config)
        created: dict[str, Condition] = {}
        for topic, outcome in zip(self._wanted, outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                self._results[topic.name] = _failure(topic.name, outcome)
            else:
                created[topic.name] = has_leaders(range(outcome.partition_count))
                self._results[topic.name] = self._described(topic, outcome, settings)
            yield
        awaited = {} if request.validate_only else created
        late = self._member.topic_waits.wait(awaited, request.timeout_ms, self._broker.clock)
        return late.map(self._response)

    def _described(self, topic: NewTopic, created: CreatedTopic, settings: DescribedSettings) -> CreatableTopicResult:
        topic_id = None if self._call.request.validate_only else created.topic_id
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id or ZERO_TOPIC_ID,
            error_message=None,
            num_partitions=created.partition_count,
            replication_factor=created.replication_factor,
            configs=settings.of({name: value for name, value in topic.configs.items() if name not in WITHOUT_FEATURE}),
        )
        _authorize_description(self._call, result)
        return result

    def _response(self, late: set[str]) -> CreateTopicsResponse:
        """Returns the response.

        Args:
            late: the topics that lack leaders.
        """
        for name in late:
            result = self._results[name]
            assert result is not None, "the topic was created"
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.num_partitions, result.replication_factor, result.configs = -1, -1, []
            result.topic_config_error_code = ErrorCode.NONE
        return CreateTopicsResponse(topics=[result for result in self._results.values() if result is not None])
