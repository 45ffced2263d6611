"""What the requests and the responses of the control port hold; each class is a schema of the OpenAPI document."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wirekafka.testing.async_broker import TIMEOUT_SECONDS
from wirekafka.testing.faults import MOST_HITS, FaultSpec, Hit

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.testing.faults import ActiveFault
    from wirekafka.testing.groups import GroupView
    from wirekafka.testing.stored_records import StoredRecord

MOST_RECORD_BYTES = 4 << 20
"""A response has no more keys, values and headers than this, whatever the limit of its records."""

LISTED_HITS = 3
"""A list of faults has so many hits of each: a fault may have 10,000, and there may be 1,000 faults."""

# What requests hold


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that is created.

    Attributes:
        name: of the topic.
        partitions: how many.
        settings: of the topic, with Kafka's names.
    """

    name: str
    partitions: int = 1
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advance:
    """How far the time is moved.

    Attributes:
        seconds: 0 or more.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class NewFork:
    """A broker that is forked.

    Attributes:
        snapshot: the id of the snapshot whose data it gets; the data of this moment without one.
    """

    snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class RecordsQuery:
    """Which records are shown.

    Attributes:
        partition: one partition only.
        limit: the most records, at most 10,000.
    """

    partition: int | None = None
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class RecordsWait:
    """How many committed records are waited for.

    Attributes:
        count: at least so many.
        partition: one partition only.
        timeout_s: the most seconds.
    """

    count: int
    partition: int | None = None
    timeout_s: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class GroupWait:
    """What is waited for until a group is stable.

    Attributes:
        members: exactly so many; any number but 0 without it.
        timeout_s: the most seconds.
    """

    members: int | None = None
    timeout_s: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class CommitWait:
    """The committed offset that is waited for.

    Attributes:
        topic, partition: the partition.
        offset: this one or a later one.
        timeout_s: the most seconds.
    """

    topic: str
    offset: int
    partition: int = 0
    timeout_s: float = TIMEOUT_SECONDS


# What responses hold


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused or has failed.

    Attributes:
        error: for people.
        kafka_error: the name of Kafka's error code, if there is one.
    """

    error: str
    kafka_error: str | None = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """Whether clients can use the broker.

    Attributes:
        live: the broker's loop turns.
        ready: clients can use it.
        reason: why they cannot.
    """

    live: bool
    ready: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Liveness:
    """Whether the broker's loop turns.

    Attributes:
        live: it does.
    """

    live: bool


@dataclass(frozen=True, slots=True)
class Version:
    """What serves the port.

    Attributes:
        name: wirekafka.
        version: its release.
    """

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class BrokerForm:
    """The broker.

    Attributes:
        bootstrap: what clients take as `bootstrap.servers`.
        node_id, cluster_id: as in Metadata.
        keeps_data: the data is not that of a test: it is neither emptied nor copied.
        can_advance: its time can be moved.
    """

    bootstrap: str
    node_id: int
    cluster_id: str
    keeps_data: bool
    can_advance: bool


@dataclass(frozen=True, slots=True)
class NodeForm:
    """A broker of a cluster.

    Attributes:
        id: as in Metadata.
        is_running: it was started and not stopped.
        bootstrap: its address; null if it does not run.
    """

    id: int
    is_running: bool
    bootstrap: str | None


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """A cluster.

    Attributes:
        bootstrap: the addresses of the brokers that run, as in `bootstrap.servers`.
        brokers: by id.
    """

    bootstrap: str
    brokers: list[NodeForm]


@dataclass(frozen=True, slots=True)
class FaultForm:
    """A fault that was ordered.

    Attributes:
        id: by which it is found and ended.
        fault: what was ordered.
        is_over: it has hit as many requests as it was ordered for.
        hit_count: the number of all requests that it has hit.
        hits: the requests that it has hit, in order; the first 10,000, and the first 3 in a list of all faults.
    """

    id: int
    fault: FaultSpec
    is_over: bool
    hit_count: int
    hits: list[Hit]

    @classmethod
    def of(cls, number: int, fault: ActiveFault, most_hits: int = MOST_HITS) -> FaultForm:
        """Returns the form of a fault."""
        return cls(number, fault.spec, fault.is_over, fault.hit_count, fault.hits[:most_hits])


@dataclass(frozen=True, slots=True)
class ClockForm:
    """The broker's time.

    Attributes:
        now_ms: the milliseconds since 1970, as the broker sees them.
    """

    now_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotForm:
    """A copy of all data.

    Attributes:
        id: by which it is restored and removed.
    """

    id: int


@dataclass(frozen=True, slots=True)
class ForkForm:
    """Another broker.

    Attributes:
        id: by which it is stopped.
        bootstrap: what clients take as `bootstrap.servers`.
        control: the URL of its control port.
    """

    id: int
    bootstrap: str
    control: str


@dataclass(frozen=True, slots=True)
class PartitionForm:
    """A partition.

    Attributes:
        partition: its number.
        log_start_offset: of its first record.
        log_end_offset: of the record that comes next.
    """

    partition: int
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class TopicForm:
    """A topic.

    Attributes:
        name: of the topic.
        partitions: those that this broker has.
    """

    name: str
    partitions: list[PartitionForm]


@dataclass(frozen=True, slots=True)
class HeaderForm:
    """A header of a record.

    Attributes:
        name: of the header.
        value: its text; null if it is null or no text in UTF-8.
        value_base64: its bytes; null if it is null.
    """

    name: str
    value: str | None
    value_base64: str | None


@dataclass(frozen=True, slots=True)
class RecordForm:
    """A record as the log has it.

    Attributes:
        partition, offset: its place in the topic.
        timestamp: in milliseconds since 1970; -1 for none.
        key, value: the text; null if it is null or no text in UTF-8.
        key_base64, value_base64: the bytes; null if it is null.
        headers: in order; names may repeat.
        producer_id, producer_epoch, sequence: of the producer and among its records; -1 without one.
        leader_epoch: of the leader that appended the record.
        is_transactional: it belongs to a transaction.
        is_committed: a consumer with `read_committed` gets it.
        control: the type of a control record, such as "commit" or "abort"; null for a client's record.
    """

    partition: int
    offset: int
    timestamp: int
    key: str | None
    key_base64: str | None
    value: str | None
    value_base64: str | None
    headers: list[HeaderForm]
    producer_id: int
    producer_epoch: int
    sequence: int
    leader_epoch: int
    is_transactional: bool
    is_committed: bool
    control: str | None

    @classmethod
    def of(cls, record: StoredRecord) -> RecordForm:
        """Returns the form of a record."""
        return cls(
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp,
            key=_text(record.key),
            key_base64=_base64(record.key),
            value=_text(record.value),
            value_base64=_base64(record.value),
            headers=[HeaderForm(name, _text(value), _base64(value)) for name, value in record.headers],
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            sequence=record.sequence,
            leader_epoch=record.leader_epoch,
            is_transactional=record.is_transactional,
            is_committed=record.is_committed,
            control=record.control,
        )


@dataclass(frozen=True, slots=True)
class RecordsForm:
    """The records of a topic.

    Attributes:
        records: by partition and offset.
        is_complete: there are no others.
    """

    records: list[RecordForm]
    is_complete: bool

    @classmethod
    def of(cls, records: Iterable[StoredRecord], limit: int) -> RecordsForm:
        """Returns the form of the first records, within the limits; reads one record more than it shows."""
        shown: list[RecordForm] = []
        size = 0
        for record in records:
            size += record.size_bytes
            if len(shown) == limit or size > MOST_RECORD_BYTES:
                return cls(shown, False)
            shown.append(RecordForm.of(record))
        return cls(shown, True)


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """A partition of a member of a group.

    Attributes:
        topic, partition: the partition.
    """

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition.

    Attributes:
        topic, partition: the partition.
        offset: of the record that the group reads next.
    """

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class MemberForm:
    """A member of a group.

    Attributes:
        member_id, client_id, host: as the coordinator knows it.
        instance_id: `group.instance.id`; null for a dynamic member.
        partitions: what is assigned to it.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: list[AssignedPartition]


@dataclass(frozen=True, slots=True)
class GroupForm:
    """A group.

    Attributes:
        group_id: its name.
        type: "Classic", "Consumer" or "Share"; empty if there is no such group.
        state: such as "Stable" or "Empty"; "Dead" if there is no such group.
        is_stable: it has members, and all of them have their partitions.
        members: in the order of the description.
        committed: the committed offsets; empty for a share group.
    """

    group_id: str
    type: str
    state: str
    is_stable: bool
    members: list[MemberForm]
    committed: list[CommittedOffset]

    @classmethod
    def of(cls, group: GroupView) -> GroupForm:
        """Returns the form of a group."""
        members = [
            MemberForm(each.member_id, each.client_id, each.host, each.instance_id, _assigned(each.partitions))
            for each in group.members
        ]
        committed = [CommittedOffset(topic, index, offset) for (topic, index), offset in sorted(group.committed.items())]
        return cls(group.group_id, group.type, group.state, group.is_stable, members, committed)


def topic_forms(broker: Broker) -> list[TopicForm]:
    """Returns the topics, by name."""
    return [
        TopicForm(
            topic.name,
            [PartitionForm(each.index, each.log.log_start_offset, each.log.log_end_offset) for each in topic.partitions],
        )
        for topic in sorted(broker.topics, key=lambda topic: topic.name)
    ]


def _assigned(partitions: Iterable[tuple[str, int]]) -> list[AssignedPartition]:
    return [AssignedPartition(topic, index) for topic, index in sorted(partitions)]


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
