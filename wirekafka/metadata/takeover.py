"""Takes over topics of Apache Kafka whose folders were moved into a data directory.

The folder of a partition has the records and the topic's id, but not the topic's settings. In KRaft mode the settings are in the
metadata log beside the folders, in ZooKeeper mode they are in ZooKeeper. A topic with wrong settings loses records: retention
deletes records of a compacted topic, for example. So a takeover reads the metadata log, or a file with the settings. It refuses
to begin if something would be lost, unless `wirekafka.takeover.without` names that kind of loss.

How it works: the content of the metadata log is written to the journal of `store`, and the block of producer ids is written last.
The file with that block marks the takeover as complete. After that the metadata log is never read again, because it is out of
date after the first change. A crash before that repeats the takeover.

Source: org.apache.kafka.image.MetadataImage (what a cluster's metadata holds); kafka.admin.ConfigCommand (the file of settings).
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from wirekafka.config import BrokerConfig, ConfigError, LogConfig
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.group_table import check_group
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata import producer_ids
from wirekafka.metadata.features import METADATA_VERSION, supported_features
from wirekafka.metadata.internal_topics import INTERNAL
from wirekafka.metadata.kraft_log import (
    BROKER_RESOURCE,
    FOLDER,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    KraftImage,
    KraftTopic,
    read_kraft_log,
)
from wirekafka.metadata.kraft_records import RecordType
from wirekafka.metadata.store import MetadataStore
from wirekafka.names import TopicPartition, format_topic_id, new_topic_id

log = structlog.get_logger(__name__)

Folders = Mapping[int, bytes | None]
"""The folders of a topic, by partition: the topic id that each folder names, None if it names none."""

SETTINGS, PARTITIONS, ACLS, USERS, QUOTAS = "settings", "partitions", "acls", "users", "quotas"
KEPT_FOR_INTERNAL = ("cleanup.policy", "retention.ms")
"""The settings that an internal topic keeps in any case."""
_MOST_NAMED = 10

_OTHER_LOSSES = {
    RecordType.ACCESS_CONTROL_ENTRY: (ACLS, "access control entries, because wirekafka has no authorizer"),
    RecordType.USER_SCRAM_CREDENTIAL: (USERS, "SCRAM credentials, because wirekafka has no SASL"),
    RecordType.DELEGATION_TOKEN: (USERS, "delegation tokens, because wirekafka has no SASL"),
    RecordType.CLIENT_QUOTA: (QUOTAS, "client quotas, because wirekafka has no quotas"),
}
_REMOVALS = {
    RecordType.ACCESS_CONTROL_ENTRY: RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
    RecordType.USER_SCRAM_CREDENTIAL: RecordType.REMOVE_USER_SCRAM_CREDENTIAL,
    RecordType.DELEGATION_TOKEN: RecordType.REMOVE_DELEGATION_TOKEN,
}


@dataclass(slots=True)
class NewTopic:
    """A topic that the takeover writes to the journal."""

    topic_id: bytes
    partition_count: int
    overrides: dict[str, str]


@dataclass(slots=True)
class Takeover:
    """The metadata that a takeover writes, and what it loses.

    Attributes:
        losses: descriptions of what is lost, by kind of loss.
    """

    topics: dict[str, NewTopic] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    losses: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def refusal(self, accepted: Sequence[str]) -> str | None:
        """Returns why the takeover may not begin; None if all losses are of the kinds in `accepted`."""
        kinds = [kind for kind in self.losses if kind not in accepted]
        if not kinds:
            return None
        lines = [f"  {kind}: {_listed(self.losses[kind])}" for kind in kinds]
        flag = ",".join(sorted({*kinds, *accepted}))
        return "\n".join(
            [
                f"The topics {_listed(sorted(self.topics))} were not created by this broker. Taking them over would lose:",
                *lines,
                f"To start without these: --set wirekafka.takeover.without={flag}. docs/takeover.md says how to keep them",
            ]
        )


def take_over(folders: Mapping[str, Folders], config: BrokerConfig, storage: Storage, store: MetadataStore) -> None:
    """Writes the topics of these folders, and the other content of the metadata log, to the journal.

    Args:
        folders: by the name of the topic; none of the topics is in the journal.

    Durability: on disk when it returns.

    Raises:
        KafkaError: INVALID_CONFIG if something would be lost; INCONSISTENT_TOPIC_ID if folders of one topic name different
            topic ids; KAFKA_STORAGE_ERROR if the metadata log cannot be read or the journal cannot be written.
    """
    block_path = os.path.join(config.log_dirs[0], producer_ids.FILE_NAME)
    folder = None if os.path.exists(block_path) else find_kraft_log(config)
    image = None if folder is None else read_kraft_log(folder, storage)
    takeover = plan_takeover(folders, image, config, read_settings_file(config, storage), known=store.topics)
    refusal = takeover.refusal(config.items("wirekafka.takeover.without"))
    if refusal is not None:
        outdated = find_kraft_log(config) if folder is None else None
        if outdated is not None:
            refusal += f"\n{outdated} is not read: {block_path} shows that wirekafka has used the directory since"
        raise KafkaError(ErrorCode.INVALID_CONFIG, refusal)
    with store.together():
        for broker, configs in takeover.broker_configs.items():
            store.put_broker_configs(broker, configs)
        for group_id, configs in takeover.group_configs.items():
            store.put_group_configs(group_id, configs)
        if image is not None:
            store.put_features(_feature_levels(image, config), image.end_offset)
        for name, topic in takeover.topics.items():
            store.put_topic(name, topic.topic_id, topic.partition_count, topic.overrides)
    if image is not None:
        producer_ids.write_block(storage, block_path, node_id=config.node_id, next_id=image.next_producer_id)
    log.warning(
        "Took over topics of another broker",
        topics=sorted(takeover.topics),
        metadata_log=folder,
        lost={kind: _listed(reasons) for kind, reasons in takeover.losses.items()},
    )


def find_kraft_log(config: BrokerConfig) -> str | None:
    """Returns the folder of KRaft's metadata log, in `metadata.log.dir` or one of `log.dirs`; None if it does not exist."""
    metadata_dir = config.get("metadata.log.dir")
    for directory in [*([str(metadata_dir)] if metadata_dir else []), *config.log_dirs]:
        folder = os.path.join(directory, FOLDER)
        if os.path.isdir(folder):
            return folder
    return None


def plan_takeover(
    folders: Mapping[str, Folders],
    image: KraftImage | None,
    config: BrokerConfig,
    settings: Mapping[str, Mapping[str, str]],
    *,
    known: Collection[str] = (),
) -> Takeover:
    """Returns the metadata to write for these folders, and what is lost.

    Args:
        image: the content of the metadata log; None without a metadata log.
        settings: the settings of topics from the operator's file, for topics that are not in the metadata log.
        known: the topics that are in the journal already, from a takeover that did not complete.

    Raises:
        KafkaError: INCONSISTENT_TOPIC_ID if folders of one topic name different topic ids.
    """
    takeover = Takeover()
    named = {topic.name: topic for topic in image.topics.values()} if image is not None else {}
    for name, found in folders.items():
        topic_id = _topic_id(name, found, named.get(name))
        partition_count = max(found) + 1
        if image is not None and name in named:
            partition_count = max(partition_count, len(named[name].replicas))
            given: Mapping[str, str] | None = image.configs.get((TOPIC_RESOURCE, name), {})
        else:
            given = settings.get(name)
        overrides = _topic_overrides(name, given, config, takeover)
        takeover.topics[name] = NewTopic(topic_id, partition_count, overrides)
    if image is not None:
        _plan_image(image, folders, config, takeover)
    _note_partitions(folders, {name: named[name] for name in named.keys() - known}, config.node_id, takeover)
    return takeover


def _topic_id(name: str, folders: Folders, named: KraftTopic | None) -> bytes:
    topic_id = named.topic_id if named is not None else next(filter(None, folders.values()), None)
    for index, found in folders.items():
        if found is not None and found != topic_id:
            assert topic_id is not None, "a folder names a topic id"
            raise topic_id_mismatch(TopicPartition(name, index), found, topic_id)
    return topic_id or new_topic_id()


def topic_id_mismatch(name: TopicPartition, found: bytes, expected: bytes) -> KafkaError:
    """Returns the error for a folder that belongs to another topic of the same name."""
    message = (
        f"the folder {name} belongs to topic id {format_topic_id(found)}, but topic {name.topic} has {format_topic_id(expected)}"
    )
    return KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, message)


def _topic_overrides(name: str, given: Mapping[str, str] | None, config: BrokerConfig, takeover: Takeover) -> dict[str, str]:
    """Returns the settings of a topic that wirekafka honours; `given` is None if the topic's settings are not known."""
    internal = INTERNAL.get(name)
    if given is None:
        if internal is None:
            takeover.losses[SETTINGS].append(f"the settings of {name}, which are neither in a metadata log nor in a file")
            return {}
        return {key: internal.overrides[key] for key in KEPT_FOR_INTERNAL if key in internal.overrides}
    overrides = {}
    for key, value in given.items():
        try:
            LogConfig.of(config, {key: value})
            overrides[key] = value
        except ConfigError as error:
            takeover.losses[SETTINGS].append(f"{key}={value} of topic {name} ({error})")
    return overrides


def _plan_image(image: KraftImage, folders: Mapping[str, Folders], config: BrokerConfig, takeover: Takeover) -> None:
    for (resource, name), settings in image.configs.items():
        if resource == BROKER_RESOURCE and name in ("", str(config.node_id)):
            takeover.broker_configs[name] = _broker_configs(name, settings, takeover)
        elif resource == GROUP_RESOURCE and settings:
            try:
                check_group(config, settings)
                takeover.group_configs[name] = settings
            except ConfigError as error:
                takeover.losses[SETTINGS].append(f"the settings of group {name} ({error})")
        elif resource not in (TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE) and settings:
            takeover.losses[SETTINGS].append(f"the settings of {name} (resource type {resource})")
    for type_, (kind, what) in _OTHER_LOSSES.items():
        count = image.others[type_] - image.others[_REMOVALS[type_]] if type_ in _REMOVALS else image.others[type_]
        if count > 0:
            takeover.losses[kind].append(f"{count} {what}")


def _broker_configs(broker: str, settings: Mapping[str, str], takeover: Takeover) -> dict[str, str]:
    kept = {}
    for name, value in settings.items():
        setting = BROKER_SETTINGS.get(name)
        try:
            if setting is None or not setting.is_dynamic:
                raise ConfigError(name, None, "the settings marked dynamic in docs/configuration.md")
            setting.parse(value)
            kept[name] = value
        except ConfigError:
            takeover.losses[SETTINGS].append(
                f"{name} of broker {broker or '<default>'}, which is not a dynamic setting in wirekafka"
            )
    return kept


def _note_partitions(folders: Mapping[str, Folders], named: Mapping[str, KraftTopic], node_id: int, takeover: Takeover) -> None:
    """Adds the partitions whose records are not on this broker to the losses."""
    for name, found in folders.items():
        missing = [index for index in range(takeover.topics[name].partition_count) if index not in found]
        if missing:
            takeover.losses[PARTITIONS].append(f"the records of {name} in partitions {', '.join(map(str, missing))}")
    absent = sorted(name for name in named if name not in folders)
    if absent:
        takeover.losses[PARTITIONS].append(f"the topics {_listed(absent)}, of which no partition is on broker {node_id}")


def _feature_levels(image: KraftImage, config: BrokerConfig) -> dict[str, int]:
    """Returns the cluster's finalized levels, at most the newest that wirekafka supports; 0 for a feature without a record."""
    levels = {}
    for name, supported in supported_features(config).items():
        if name != METADATA_VERSION:
            levels[name] = min(max(image.feature_levels.get(name, 0), supported.least), supported.most)
    return levels


_HEADING = re.compile(r"Dynamic configs for topic (\S+) are:")
_SETTING = re.compile(r"\s+([a-z0-9._-]+)=(.*) sensitive=(?:true|false) synonyms=\{.*\}")


def read_settings_file(config: BrokerConfig, storage: Storage) -> dict[str, dict[str, str]]:
    """Returns the settings of topics in `wirekafka.takeover.settings`, by topic; empty if the setting is unset.

    The file is the output of `kafka-configs.sh --describe --entity-type topics`.

    Raises:
        KafkaError: INVALID_CONFIG if the file cannot be read or names no topic.
    """
    path = config.get("wirekafka.takeover.settings")
    if not path:
        return {}
    try:
        text = storage.read_file(str(path)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"wirekafka.takeover.settings: cannot read {path}: {error}") from None
    settings: dict[str, dict[str, str]] = {}
    topic: dict[str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if heading := _HEADING.fullmatch(line.strip()):
            topic = settings.setdefault(heading[1], {})
        elif topic is not None and (found := _SETTING.fullmatch(line)):
            topic[found[1]] = found[2]
        elif line.strip():
            message = f"wirekafka.takeover.settings: line {number} of {path} is not output of kafka-configs.sh --describe"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return settings


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else shown
