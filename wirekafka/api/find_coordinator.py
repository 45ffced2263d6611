"""FindCoordinator: the broker that coordinates a group, a transactional id or a share partition.

Behaviour:
    This broker coordinates every group (key type 0), transactional id (1) and share partition (2, group:topic id:partition). The
    response has the same address as Metadata. If the partition with the coordinator's state is offline, the error is
    COORDINATOR_NOT_AVAILABLE. Any other key type gets INVALID_REQUEST with a message, and so does a key of type 2 that is
    malformed or comes before version 6.
    A member of a cluster answers with the leader of the partition that has the state of the group or the transactional id, by
    the cluster's image. If the topic does not exist, the controller is asked to create it, and the error is
    COORDINATOR_NOT_AVAILABLE, as it is without a live leader that the client can reach. There are no coordinators of shares.

Versions:
    0: a group id. 1: the key's type, and a message with an error. 2: as 1 (KIP-219). 3: flexible. 4: several keys at once
    (KIP-699). 5: TRANSACTION_ABORTABLE, which is never answered (KIP-890). 6: share partitions (KIP-932).

Differs from Apache Kafka:
    __consumer_offsets, __transaction_state and __share_group_state are created when the first state is stored, and not by
    the first FindCoordinator.

Source: KafkaApis.getCoordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.hashing import partition_for
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import CLUSTER, Operation, Resource
from wirekafka.names import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int8, Int16, Int32, Message, NullableString, String, nullable, since, until

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member

SHARE = 2
STATE_TOPICS = {0: GROUP_METADATA_TOPIC, 1: TRANSACTION_STATE_TOPIC, SHARE: SHARE_STATE_TOPIC}
"""The topics with the state of groups, of transactional ids and of share partitions, by the type of the key."""

FIRST_VERSION_WITH_SEVERAL_KEYS = 4
FIRST_VERSION_WITH_SHARE_PARTITIONS = 6


class FindCoordinatorRequest(Message):
    key: Annotated[String, until(3)] = ""
    key_type: Annotated[Int8, since(1)] = 0
    coordinator_keys: Annotated[list[String], since(4)] = []


class Coordinator(Message):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(4)] = ""


class FindCoordinatorResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Annotated[Int16, until(3)] = 0
    error_message: Annotated[NullableString, since(1), until(3), nullable(1)] = ""
    node_id: Annotated[Int32, until(3)] = 0
    host: Annotated[String, until(3)] = ""
    port: Annotated[Int32, until(3)] = 0
    coordinators: Annotated[list[Coordinator], since(4)] = []


@serves(10, FindCoordinatorRequest, FindCoordinatorResponse, versions=range(7), flexible_since=3)
def find_coordinator(
    broker: Broker, call: Call[FindCoordinatorRequest]
) -> FindCoordinatorResponse | Pending[FindCoordinatorResponse]:
    """Answers with this broker as the coordinator of each key; until version 3 a request has one key."""
    request = call.request
    if call.version >= FIRST_VERSION_WITH_SEVERAL_KEYS:
        return broker.slices.run(_coordinators(broker, call))
    found = _coordinator(broker, call, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code, error_message=found.error_message, node_id=found.node_id, host=found.host, port=found.port
    )


def _coordinators(broker: Broker, call: Call[FindCoordinatorRequest]) -> Work[FindCoordinatorResponse]:
    response = FindCoordinatorResponse()
    for key in call.request.coordinator_keys:
        response.coordinators.append(_coordinator(broker, call, key))
        yield
    return response


def _coordinator(broker: Broker, call: Call[FindCoordinatorRequest], key: str) -> Coordinator:
    try:
        call.authorize(*_needed(call.request.key_type, key))
    except KafkaError as error:
        return _nobody(key, error.code, None)
    if broker.member is not None:
        return _leader(broker, broker.member, call, key)
    match call.request.key_type:
        case 0:
            is_available, kind = broker.groups.is_available(key), "group"
        case 1:
            is_available, kind = broker.transactions.is_available(key), "transactional id"
        case 2 if call.version >= FIRST_VERSION_WITH_SHARE_PARTITIONS:
            try:
                is_available, kind = broker.share_groups.states.is_available(ShareKey.parse(key)), "share partition"
            except ValueError as error:
                return _nobody(key, ErrorCode.INVALID_REQUEST, str(error))
        case other:
            return _nobody(key, ErrorCode.INVALID_REQUEST, f"this broker has no coordinators of type {other}")
    if not is_available:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the partition that holds the {kind} is offline")
    host, port = broker.advertised_address(call.client)
    return Coordinator(key=key, node_id=broker.node_id, host=host, port=port, error_message=None)


def _leader(broker: Broker, member: Member, call: Call[FindCoordinatorRequest], key: str) -> Coordinator:
    """Returns the leader of the partition that has the state of a key, by the image of the cluster."""
    key_type = call.request.key_type
    name = STATE_TOPICS.get(key_type)
    if name is None or (key_type == SHARE and call.version < FIRST_VERSION_WITH_SHARE_PARTITIONS):
        return _nobody(key, ErrorCode.INVALID_REQUEST, f"this cluster has no coordinators of type {key_type}")
    if key_type == SHARE:
        if not broker.topics.features.level(SHARE_VERSION):
            return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups are off in this cluster")
        try:
            ShareKey.parse(key)
        except ValueError as error:
            return _nobody(key, ErrorCode.INVALID_REQUEST, str(error))
    partition_count = member.image.partition_count(name)
    if partition_count is None:
        member.controller_requests.create_topics([name])
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the topic {name} is being created")
    state = member.image.find_partition(name, partition_for(key, partition_count))
    node = None if state is None else member.image.node(state.leader, call.client.listener)
    if node is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the partition of {name} has no leader that can be reached")
    return Coordinator(key=key, node_id=node.broker_id, host=node.host, port=node.port, error_message=None)


def _needed(key_type: int, key: str) -> tuple[Operation, Resource]:
    """Returns the permission that a client needs to find the coordinator of a key.

    Source: KafkaApis.getCoordinator.
    """
    match key_type:
        case 0:
            return Operation.DESCRIBE, Resource.group(key)
        case 1:
            return Operation.DESCRIBE, Resource.transactional_id(key)
        case _:
            return Operation.CLUSTER_ACTION, CLUSTER


def _nobody(key: str, error: ErrorCode, message: str | None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message)
