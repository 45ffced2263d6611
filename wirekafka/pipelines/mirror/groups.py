"""Translates the offsets of consumer groups, and commits them at the target.

Only groups without members at the target get offsets, as with MirrorMaker 2's `sync.group.offsets`. The target's broker refuses
them if a member joins in between. Source: KIP-545, org.apache.kafka.connect.mirror.MirrorCheckpointTask.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wirekafka.names import TopicPartition
from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster
from wirekafka.pipelines.mirror.options import MirrorOptions
from wirekafka.pipelines.mirror.places import OffsetMap
from wirekafka.pipelines.mirror.topics import asked
from wirekafka.pipelines.mirror.translation import Action, Translation, action_for

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

LEFT_OUT_GROUPS = re.compile(r"wirekafka\..*|spark-kafka-.*")
"""Groups of the pipelines themselves."""

Committed = dict[TopicPartition, tuple[int, str]]
"""The offset and the metadata that a group has committed for each partition."""


class GroupTranslator:
    """Translates the groups of one mirror."""

    def __init__(self, options: MirrorOptions, offsets: OffsetMap) -> None:
        assert options.groups is not None
        self._options = options
        self._pattern = re.compile(options.groups)
        self._offsets = offsets
        self._empty_until: dict[TopicPartition, int] = {}

    def table(self) -> list[Translation]:
        """Returns each offset that a selected group has committed at the source for a mirrored topic, translated.

        Raises:
            PipelineError: a cluster does not answer, or refuses.
        """
        self._offsets.refresh()
        source, target = self._options.source, self._options.target
        groups = [group for group in group_states(source) if self._is_selected(group)]
        states = group_states(target)
        found = []
        for group, committed in committed_offsets(source, groups).items():
            mirrored = {partition: place for partition, place in committed.items() if partition.topic in self._offsets.topics}
            there = committed_offsets(target, [group]).get(group, {}) if mirrored and group in states else {}
            is_in_use = states.get(group, "EMPTY") not in ("EMPTY", "DEAD")
            found += [
                self._translation(group, partition, *mirrored[partition], there, is_in_use) for partition in sorted(mirrored)
            ]
        return found

    def _is_selected(self, group: str) -> bool:
        return self._pattern.fullmatch(group) is not None and LEFT_OUT_GROUPS.fullmatch(group) is None

    def _translation(
        self, group: str, source: TopicPartition, offset: int, metadata: str, there: Committed, is_in_use: bool
    ) -> Translation:
        target = TopicPartition(self._offsets.topics[source.topic], source.partition)
        places = self._offsets.places(source, offset)
        translated = places.target_offset(offset)
        if translated is None and self._has_no_records(source, places.next_source_offset, offset):
            translated = places.target_offset(offset, mirrored_until=offset)
        committed = there[target][0] if target in there else None
        action = action_for(translated, committed, is_in_use=is_in_use, allows_backwards=self._options.allows_group_rewind)
        return Translation(group, source, target, offset, translated, committed, metadata, action)

    def _has_no_records(self, partition: TopicPartition, first: int, end: int) -> bool:
        """Whether the source has no record from `first` to `end`, so that what a group committed behind it is mirrored.

        A group has often committed the offset after the marker of a transaction, which is no record and has no mirror.
        """
        if self._empty_until.get(partition, 0) < end:
            if has_records(self._options.source, partition, first, end, isolation=self._options.isolation):
                return False
            self._empty_until[partition] = end
        return True

    def commit(self, translations: Iterable[Translation]) -> int:
        """Commits the offsets whose action is COMMIT; returns how many.

        Raises:
            PipelineError: the target does not answer, or refuses.
        """
        by_group: dict[str, list[Translation]] = defaultdict(list)
        for translation in translations:
            if translation.action is Action.COMMIT:
                by_group[translation.group].append(translation)
        return sum(self._commit(group, each) for group, each in by_group.items())

    def _commit(self, group: str, translations: Sequence[Translation]) -> int:
        if asked(self._options.target, lambda admin: _commit(admin, group, translations)):
            return len(translations)
        for translation in translations:
            translation.action = Action.IN_USE
        return 0


def group_states(cluster: Cluster) -> dict[str, str]:
    """Returns the state of each group of a cluster.

    Raises:
        PipelineError: the cluster does not answer.
    """

    def ask(admin: AdminClient) -> dict[str, str]:
        from confluent_kafka import KafkaException

        listed = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result()
        if listed.errors:
            raise listed.errors[0] if isinstance(listed.errors[0], KafkaException) else KafkaException(listed.errors[0])
        return {group.group_id: group.state.name for group in listed.valid}

    return dict(asked(cluster, ask))


def committed_offsets(cluster: Cluster, groups: Iterable[str]) -> dict[str, Committed]:
    """Returns what each group has committed; groups that were deleted in between are left out.

    Raises:
        PipelineError: the cluster does not answer, or refuses.
    """
    return dict(asked(cluster, lambda admin: _committed_offsets(admin, list(groups))))


def _committed_offsets(admin: AdminClient, groups: list[str]) -> dict[str, Committed]:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

    # The client takes one group in a request.
    requests: dict[str, Any] = {}
    for group in groups:
        requests |= admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_TIMEOUT_S)
    found = {}
    for group, answer in requests.items():
        try:
            places = answer.result().topic_partitions
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            continue
        found[group] = {
            TopicPartition(place.topic, place.partition): (place.offset, place.metadata or "")
            for place in places
            if place.error is None and place.offset >= 0
        }
    return found


def _commit(admin: AdminClient, group: str, translations: Sequence[Translation]) -> bool:
    """Returns False if the group has members by now."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
    from confluent_kafka import TopicPartition as ClientPartition

    places = [
        ClientPartition(each.target.topic, each.target.partition, each.target_offset, each.metadata) for each in translations
    ]
    request = ConsumerGroupTopicPartitions(group, places)
    answer = admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)[group]
    try:
        errors = [place.error for place in answer.result().topic_partitions if place.error is not None]
    except KafkaException as error:
        errors = [error.args[0]]
    if any(error.code() == KafkaError.UNKNOWN_MEMBER_ID for error in errors):
        return False
    if errors:
        raise KafkaException(errors[0])
    return True


def has_records(cluster: Cluster, partition: TopicPartition, first: int, end: int, *, isolation: str) -> bool:
    """Whether a partition has a record with an offset from `first` up to `end`, excluded.

    Raises:
        PipelineError: the cluster does not answer.
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException
    from confluent_kafka import TopicPartition as ClientPartition

    settings = {"group_id": "wirekafka.reader", "isolation_level": isolation, "auto_offset_reset": "earliest"}
    config = cluster.client_config(**settings, enable_auto_commit=False, enable_partition_eof=True, fetch_wait_max_ms=10)
    consumer = Consumer(config)
    try:
        consumer.assign([ClientPartition(partition.topic, partition.partition, first)])
        message = consumer.poll(REQUEST_TIMEOUT_S)
        if message is None:
            raise UnreachableError(f"no broker answers at {cluster.bootstrap}: {partition} was not read in {REQUEST_TIMEOUT_S} s")
        error = message.error()
        if error is None:
            return bool(message.offset() < end)
        if error.code() == KafkaError._PARTITION_EOF:
            return False
        if error.retriable() or error.code() < 0:
            raise UnreachableError(f"no broker answers at {cluster.bootstrap}: {error.str()}")
        raise PipelineError(f"{partition} of {cluster.bootstrap} cannot be read: {error.str()}")
    except KafkaException as failure:
        raise UnreachableError(f"no broker answers at {cluster.bootstrap}: {failure.args[0].str()}") from None
    finally:
        consumer.close()


def columns(translations: Iterable[Translation]) -> list[Mapping[str, object]]:
    """Returns the rows of the table that is printed."""
    return [
        {
            "group": each.group,
            "source": str(each.source),
            "source offset": each.source_offset,
            "target": str(each.target),
            "target offset": each.target_offset,
            "committed there": each.committed_offset,
            "action": each.action.value,
        }
        for each in translations
    ]
