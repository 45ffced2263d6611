"""Limits the bytes that reassignments copy in a second, for the time of a with-block.

How it works: brokers get the rates, and topics the lists of their throttled replicas, by IncrementalAlterConfigs. Dynamic values
that were set before come back at the end; other settings are deleted.

Rules of this file: the end of the block always tries to remove every setting, whatever ended the block. The caller keeps signals
from ending it. The settings of a broker are sent to that broker, as Apache Kafka requires.

Source: KIP-73; org.apache.kafka.tools.reassign.ReassignPartitionsCommand (calculateLeaderThrottles, calculateFollowerThrottles).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from wirekafka.api.alter_configs import AlterConfigsResourceResponse
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wirekafka.cli.cluster.balancing import Proposal
from wirekafka.cli.cluster.client import ClusterClient, request_type
from wirekafka.cli.cluster.errors import ClusterCommandError
from wirekafka.cli.cluster.snapshot import DESCRIBE_CONFIGS, error_text, in_batches
from wirekafka.config import ConfigSource
from wirekafka.errors import ErrorCode
from wirekafka.metadata.config_resources import AlterConfigOp, ResourceType
from wirekafka.names import TopicPartition

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
TOPICS_AT_ONCE = 500

INCREMENTAL_ALTER_CONFIGS = request_type(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse)
DYNAMIC = (ConfigSource.TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)

Resource = tuple[ResourceType, str]
Settings = dict[str, str | None]
"""Values by name; None for a setting to delete."""


def throttle_settings(
    proposal: Proposal, before: Mapping[TopicPartition, tuple[int, ...]], bytes_per_s: int, live: Iterable[int]
) -> dict[Resource, Settings]:
    """Returns the settings that throttle a reassignment: rates of brokers, and lists of replicas of topics.

    Leaders are throttled for all replicas that a partition has before, because each may lead it meanwhile; followers for those
    that are new.

    Args:
        before: the replicas of the partitions before the reassignment.
        live: the brokers that can be told a rate.
    """
    leaders: dict[str, list[str]] = defaultdict(list)
    followers: dict[str, list[str]] = defaultdict(list)
    brokers: set[int] = set()
    for name, after in proposal.items():
        old = before[name]
        new = [each for each in after if each not in old]
        leaders[name.topic] += [f"{name.partition}:{each}" for each in old]
        followers[name.topic] += [f"{name.partition}:{each}" for each in new]
        brokers.update(old, new)
    settings: dict[Resource, Settings] = {
        (ResourceType.BROKER, str(each)): dict.fromkeys(RATES, str(bytes_per_s)) for each in sorted(brokers & set(live))
    }
    for topic in leaders:
        lists: Settings = {LEADER_REPLICAS: ",".join(leaders[topic]), FOLLOWER_REPLICAS: ",".join(followers[topic])}
        settings[ResourceType.TOPIC, topic] = lists
    return settings


@contextmanager
def throttled(client: ClusterClient, settings: dict[Resource, Settings]) -> Iterator[None]:
    """Sets the settings for as long as the block lasts.

    Raises:
        ClusterCommandError: a broker refuses the settings, or could not be told to remove them.
    """
    former = _former(client, settings)
    try:
        alter(client, settings)
        yield
    finally:
        _remove(client, former)


def _former(client: ClusterClient, settings: Mapping[Resource, Settings]) -> dict[Resource, Settings]:
    """Returns the dynamic values before; None for those that are not set."""
    former: dict[Resource, Settings] = {resource: dict.fromkeys(names) for resource, names in settings.items()}
    for broker_id, resources in _by_receiver(settings):
        asked = [
            DescribeConfigsResource(resource_type=type_, resource_name=name, configuration_keys=[*settings[type_, name]])
            for type_, name in resources
        ]
        response = client.ask(DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=asked), broker_id)
        for result in response.results:
            known = former.get((ResourceType(result.resource_type), result.resource_name), {})
            known.update({each.name: each.value for each in result.configs if each.config_source in DYNAMIC})
    return former


def _remove(client: ClusterClient, former: dict[Resource, Settings]) -> None:
    """Brings the former values back, of as many resources as possible.

    Raises:
        ClusterCommandError: some settings could not be changed.
    """
    failures = []
    for resource, settings in former.items():
        try:
            alter(client, {resource: settings})
        except ClusterCommandError as error:
            failures.append(str(error))
    if failures:
        names = ",".join((*RATES, LEADER_REPLICAS, FOLLOWER_REPLICAS))
        raise ClusterCommandError(
            f"the throttle could not be removed everywhere ({'; '.join(failures[:3])}): remove it with kafka-configs "
            f"--alter --delete-config {names}"
        )


def alter(client: ClusterClient, settings: dict[Resource, Settings]) -> None:
    """Sets and deletes settings.

    Raises:
        ClusterCommandError: a broker does not answer, or refuses a setting.
    """
    for broker_id, resources in _by_receiver(settings):
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=type_, resource_name=name, configs=[_change(*each) for each in settings[type_, name].items()]
                )
                for type_, name in resources
            ]
        )
        for response in client.ask(INCREMENTAL_ALTER_CONFIGS, request, broker_id).responses:
            # A topic that was deleted meanwhile needs no throttle.
            if response.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise ClusterCommandError(_refusal(response))


def _change(name: str, value: str | None) -> AlterableConfig:
    operation = AlterConfigOp.DELETE if value is None else AlterConfigOp.SET
    return AlterableConfig(name=name, config_operation=operation, value=value)


def _refusal(response: AlterConfigsResourceResponse) -> str:
    kind = "topic" if response.resource_type == ResourceType.TOPIC else "broker"
    reason = response.error_message or error_text(response.error_code)
    return f"the throttle of {kind} {response.resource_name} is refused: {reason}"


def _by_receiver(settings: Iterable[Resource]) -> Iterator[tuple[int | None, list[Resource]]]:
    """Yields the resources with the broker to tell; None stands for any broker."""
    topics = []
    for resource in settings:
        if resource[0] is ResourceType.BROKER:
            yield int(resource[1]), [resource]
        else:
            topics.append(resource)
    for batch in in_batches(topics, TOPICS_AT_ONCE):
        yield None, batch
