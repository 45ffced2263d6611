"""Forgets how far topics were mirrored, so that they are mirrored from their beginning."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from wirekafka.pipelines.kafka import REQUEST_TIMEOUT_S, Cluster
from wirekafka.pipelines.mirror.compacted import CompactedTopic, write_records
from wirekafka.pipelines.mirror.topics import asked
from wirekafka.pipelines.transactional_sink.options import SinkOptions

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


def forget_topics(target: Cluster, sink: SinkOptions, registry_topic: str, topics: Iterable[str]) -> None:
    """Deletes the progress, the mapped offsets and the registry's record of topics.

    The groups' offsets go first, because a sink takes the progress from them if they exist. The registry's record goes last, so
    that a call that was interrupted is repeated.

    Raises:
        PipelineError: the target does not answer, or refuses.
    """
    forgotten = frozenset(topics)
    if not forgotten:
        return
    progress = _keys(CompactedTopic(target, sink.progress_topic), forgotten)
    identities = [sink.identity(fields["topic"], fields["partition"]) for fields in map(json.loads, progress)]
    if identities:
        asked(target, lambda admin: _delete_groups(admin, identities))
    for name, keys in (
        (sink.progress_topic, progress),
        (sink.runs_topic, _keys(CompactedTopic(target, sink.runs_topic), forgotten)),
        (registry_topic, _keys(CompactedTopic(target, registry_topic), forgotten)),
    ):
        if keys:
            write_records(target, name, dict.fromkeys(keys))


def _keys(records: CompactedTopic, topics: frozenset[str]) -> list[bytes]:
    found: dict[bytes, bool] = {}
    for message in records.new_records():
        if json.loads(message.key())["topic"] in topics:
            found[message.key()] = message.value() is not None
    return [key for key, is_present in found.items() if is_present]


def _delete_groups(admin: AdminClient, groups: list[str]) -> None:
    from confluent_kafka import KafkaError, KafkaException

    for answer in admin.delete_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S).values():
        try:
            answer.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
