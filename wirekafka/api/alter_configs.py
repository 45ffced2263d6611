"""AlterConfigs: replaces all settings that a topic, a broker or a group sets itself.

Behaviour:
    A setting that the request does not name returns to its default. Each resource succeeds or fails as a whole, independently of
    the others. The new settings are on disk and in effect when the response is sent. `validate_only` checks everything and
    changes nothing. A broker is named by its id; "" names all brokers. A resource that is named twice is refused, and so is a
    setting.
    In a cluster the settings are in ZooKeeper when the response is sent, and every broker applies them soon after. Groups have
    settings once group.version or share.version is finalized; before that they are refused with INVALID_REQUEST.

Versions:
    0: as described (KIP-133). 1: as 0. 2: flexible. Kafka advises IncrementalAlterConfigs instead.

Differs from Apache Kafka:
    Settings of a broker that wirekafka does not read are refused; Apache Kafka stores them. Also refused are settings of
    listeners, max.connections, max.connections.per.ip and its overrides, log.cleaner.threads and
    num.recovery.threads.per.data.dir, which are fixed while wirekafka runs. CLIENT_METRICS is refused with INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from wirekafka.api.registry import Call, serves
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.metadata.config_resources import (
    AlterConfigOp,
    Change,
    ChangedResource,
    apply_changes,
    check_changes,
    find_resource,
    protected_resource,
)
from wirekafka.metadata.operations import Operation
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member


class AlterableConfig(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class AlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


@serves(33, AlterConfigsRequest, AlterConfigsResponse, versions=range(3), flexible_since=2)
def alter_configs(broker: Broker, call: Call[AlterConfigsRequest]) -> AlterConfigsResponse | Pending[Any]:
    """Answers one AlterConfigs request; the changes of one slice are synced to the disk together."""
    if broker.member is not None:
        return broker.slices.run(_alteration_in_cluster(broker.member, call))
    return broker.slices.run(_alteration(broker, call), around=broker.topics.together)


def _alteration(broker: Broker, call: Call[AlterConfigsRequest]) -> Work[AlterConfigsResponse]:
    wanted = yield from _wanted(call)
    validate_only = call.request.validate_only
    responses = yield from alter_each(broker, call, wanted, keeps_others=False, validate_only=validate_only)
    return AlterConfigsResponse(responses=responses)


def _alteration_in_cluster(member: Member, call: Call[AlterConfigsRequest]) -> Work[Pending[Any]]:
    wanted = yield from _wanted(call)
    validate_only = call.request.validate_only
    responses = yield from alter_in_cluster(member, call, wanted, keeps_others=False, validate_only=validate_only)
    return responses.map(lambda found: AlterConfigsResponse(responses=found))


def _wanted(call: Call[AlterConfigsRequest]) -> Work[list[WantedChanges]]:
    return collect(
        WantedChanges(
            each.resource_type, each.resource_name, [Change(it.name, AlterConfigOp.SET, it.value) for it in each.configs]
        )
        for each in call.request.resources
    )


class WantedChanges(NamedTuple):
    """The changes that a request makes to the settings of one resource."""

    resource_type: int
    resource_name: str
    changes: list[Change]


def alter_each(
    broker: Broker, call: Call[Any], wanted: Sequence[WantedChanges], *, keeps_others: bool, validate_only: bool
) -> Work[list[AlterConfigsResourceResponse]]:
    """Changes the settings of each resource, one resource in each step, or only checks the changes.

    An error of a resource is in the response of that resource.

    Args:
        keeps_others: settings that the request does not name keep their values, and do not return to their defaults.
        validate_only: the changes are checked, and nothing changes.
    """
    times = yield from _count(wanted)
    responses = []
    for type_, name, changes in wanted:
        response = AlterConfigsResourceResponse(error_message=None, resource_type=type_, resource_name=name)
        responses.append(response)
        try:
            _check(call, type_, name, times)
            check_changes(changes)
            target = find_resource(broker.topics, broker.node_id, type_, name)
            configs = apply_changes(target, changes, keeps_others=keeps_others)
            if validate_only:
                target.check(configs)
            else:
                target.replace(configs)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        yield
    return responses


def alter_in_cluster(
    member: Member, call: Call[Any], wanted: Sequence[WantedChanges], *, keeps_others: bool, validate_only: bool
) -> Work[Pending[list[AlterConfigsResourceResponse]]]:
    """Changes the settings of each resource in ZooKeeper, as `alter_each` changes them in the journal."""
    times = yield from _count(wanted)
    responses: list[AlterConfigsResourceResponse] = []
    allowed: dict[int, ChangedResource] = {}
    for type_, name, changes in wanted:
        response = AlterConfigsResourceResponse(error_message=None, resource_type=type_, resource_name=name)
        try:
            _check(call, type_, name, times)
            allowed[len(responses)] = ChangedResource(type_, name, changes, keeps_others, validate_only)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        responses.append(response)
        yield

    def answer(errors: list[KafkaError | None]) -> list[AlterConfigsResourceResponse]:
        for index, error in zip(allowed, errors, strict=True):
            if error is not None:
                responses[index].error_code, responses[index].error_message = error.code, error.message
        return responses

    return member.configs.alter(list(allowed.values())).map(answer)


def _count(wanted: Sequence[WantedChanges]) -> Work[Counter[tuple[int, str]]]:
    times: Counter[tuple[int, str]] = Counter()
    for each in wanted:
        times[each.resource_type, each.resource_name] += 1
        yield
    return times


def _check(call: Call[Any], type_: int, name: str, times: Counter[tuple[int, str]]) -> None:
    """Raises unless the client may change the resource, and names it once."""
    if times[type_, name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    call.authorize(Operation.ALTER_CONFIGS, protected_resource(type_, name))
