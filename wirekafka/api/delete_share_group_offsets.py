"""DeleteShareGroupOffsets: deletes the state of topics in a share group without members.

Behaviour:
    When the group subscribes to the topic again, it begins at share.auto.offset.reset. The errors are NON_EMPTY_GROUP while the
    group has members, GROUP_ID_NOT_FOUND if no share group has this id, and INVALID_GROUP_ID for an empty id. A topic that does
    not exist, or of which the group has no state, gets UNKNOWN_TOPIC_OR_PARTITION.

Versions:
    0: as described (KIP-932).

Differs from Apache Kafka:
    Nothing.

Source: GroupCoordinatorShard.initiateDeleteShareGroupOffsets, GroupMetadataManager.sharePartitionsEligibleForOffsetDeletion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wirekafka.api.registry import Call, serves
from wirekafka.coordinator.share_state.persister import gather
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.features import SHARE_VERSION
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.pending import Pending, Work
from wirekafka.wire.types import Int16, Int32, Message, NullableString, String, Uuid, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(Message):
    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: String = ""
    topic_id: Uuid = ZERO_TOPIC_ID
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None


class DeleteShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []


@serves(92, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse, versions=range(1), flexible_since=0)
def delete_share_group_offsets(
    broker: Broker, call: Call[DeleteShareGroupOffsetsRequest]
) -> DeleteShareGroupOffsetsResponse | Pending[DeleteShareGroupOffsetsResponse]:
    """Deletes one group's state of each topic."""
    broker.topics.features.require(SHARE_VERSION)
    request = call.request
    call.authorize(Operation.DELETE, Resource.group(request.group_id))
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "The group id is invalid.")
    broker.share_groups.check_can_delete(request.group_id)
    return broker.reply_gate.run_in_slices(broker.slices, lambda: _deletion(broker, call))


Deleting = list[tuple[DeleteShareGroupOffsetsResponseTopic, Pending[KafkaError | None]]]
"""The topics whose states other brokers delete."""


def _deletion(
    broker: Broker, call: Call[DeleteShareGroupOffsetsRequest]
) -> Work[DeleteShareGroupOffsetsResponse | Pending[DeleteShareGroupOffsetsResponse]]:
    response = DeleteShareGroupOffsetsResponse()
    deleting: Deleting = []
    for topic in call.request.topics:
        response.responses.append((yield from _deleted(broker, call, call.request.group_id, topic.topic_name, deleting)))
        yield
    if not deleting:
        return response
    by_name = {each.topic_name: (each, pending) for each, pending in deleting}

    def note(errors: dict[str, KafkaError | None]) -> DeleteShareGroupOffsetsResponse:
        for name, error in errors.items():
            if error is not None:
                _refuse(by_name[name][0], error)
        return response

    return gather({name: pending for name, (_, pending) in by_name.items()}).map(note)


def _deleted(
    broker: Broker, call: Call[DeleteShareGroupOffsetsRequest], group_id: str, name: str, deleting: Deleting
) -> Work[DeleteShareGroupOffsetsResponseTopic]:
    response = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
    try:
        call.authorize(Operation.READ, Resource.topic(name))
        topic = broker.topics.get(name)
        is_known = yield from broker.share_groups.delete_offsets(group_id, topic)
    except KafkaError as error:
        _refuse(response, error)
        return response
    if isinstance(is_known, Pending):
        deleting.append((response, is_known))
    if is_known:
        response.topic_id = topic.topic_id
    else:
        response.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response.error_message = "There is no offset information to delete."
    return response


def _refuse(response: DeleteShareGroupOffsetsResponseTopic, error: KafkaError) -> None:
    response.error_code, response.error_message = error.code, error.message
