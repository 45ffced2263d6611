"""IncrementalAlterConfigs: changes single settings of topics, brokers and groups.

Behaviour:
    Each change sets a setting, returns it to its default, or adds to or removes from a list. Each resource succeeds or fails as a
    whole, independently of the others. The new settings are on disk and in effect when the response is sent. `validate_only`
    checks everything and changes nothing. A broker is named by its id; "" names all brokers. A resource that is named twice is
    refused, and so is a setting.
    In a cluster the settings are in ZooKeeper when the response is sent, and every broker applies them soon after. Groups have
    settings once group.version or share.version is finalized; before that they are refused with INVALID_REQUEST.

Versions:
    0: as described (KIP-339). 1: flexible.

Differs from Apache Kafka:
    Settings of a broker that wirekafka does not read are refused; Apache Kafka stores them. Also refused are settings of
    listeners, max.connections, max.connections.per.ip and its overrides, log.cleaner.threads and
    num.recovery.threads.per.data.dir, which are fixed while wirekafka runs. BROKER_LOGGER and CLIENT_METRICS are refused with
    INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from wirekafka.api.alter_configs import AlterConfigsResourceResponse, WantedChanges, alter_each, alter_in_cluster
from wirekafka.api.registry import Call, serves
from wirekafka.metadata.config_resources import Change
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.types import Bool, Int8, Int32, Message, NullableString, String, nullable

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.membership.member import Member


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


class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []


@serves(44, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, versions=range(2), flexible_since=1)
def incremental_alter_configs(
    broker: Broker, call: Call[IncrementalAlterConfigsRequest]
) -> IncrementalAlterConfigsResponse | Pending[Any]:
    """Answers one IncrementalAlterConfigs request; the changes of one slice are synced to the disk together."""
    if broker.member is not None:
        return broker.slices.run(_alteration_in_cluster(broker.member, call))
    return broker.slices.run(_alteration(broker, call), around=broker.topics.together)


def _alteration(broker: Broker, call: Call[IncrementalAlterConfigsRequest]) -> Work[IncrementalAlterConfigsResponse]:
    wanted = yield from _wanted(call)
    validate_only = call.request.validate_only
    responses = yield from alter_each(broker, call, wanted, keeps_others=True, validate_only=validate_only)
    return IncrementalAlterConfigsResponse(responses=responses)


def _alteration_in_cluster(member: Member, call: Call[IncrementalAlterConfigsRequest]) -> Work[Pending[Any]]:
    wanted = yield from _wanted(call)
    validate_only = call.request.validate_only
    responses = yield from alter_in_cluster(member, call, wanted, keeps_others=True, validate_only=validate_only)
    return responses.map(lambda found: IncrementalAlterConfigsResponse(responses=found))


def _wanted(call: Call[IncrementalAlterConfigsRequest]) -> Work[list[WantedChanges]]:
    return collect(
        WantedChanges(
            each.resource_type, each.resource_name, [Change(it.name, it.config_operation, it.value) for it in each.configs]
        )
        for each in call.request.resources
    )
