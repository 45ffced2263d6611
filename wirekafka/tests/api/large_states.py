"""Requests that cost much because the broker holds much: large groups, transactions, topics and share groups.

`largest_requests.py` has the requests that are large by themselves. Here a broker is filled first (`fill`), and each request of
`requests_on` names as much of what it holds as a request may.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trio

from wirekafka.api.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from wirekafka.api.registry import Api, all_apis
from wirekafka.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from wirekafka.coordinator.groups.requests import CommitRequest, JoinRequest, JoinResult, PartitionCommit
from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity
from wirekafka.errors import ErrorCode
from wirekafka.names import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from wirekafka.pending import Pending
from wirekafka.server.dispatch import Dispatcher
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.largest_requests import measure
from wirekafka.tests.api.longest_step import answer_of
from wirekafka.tests.server.frames import request
from wirekafka.wire.codec import encode, fields_of

COUNT = 19_900
"""The elements of one array, a little less than `MOST_ELEMENTS`, which counts the elements of all arrays of a request."""

REBALANCE_TIMEOUT_MS = 500

MOST_AT_ONCE = 5000
"""The partitions that are added in one step."""

SETTINGS = {
    "group_initial_rebalance_delay_ms": "500",
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
    "share_coordinator_state_topic_num_partitions": "1",
    "group_share_max_size": "1000",
    "group_max_session_timeout_ms": "1800000",
}
"""Few partitions of the internal topics, so that all state is in one of them."""


def frame(api: Api, version: int, values: dict[str, Any]) -> bytes:
    """A framed request of an API; a dict in `values` is a nested structure."""
    is_flexible = api.is_flexible(version)
    message = _filled(api.request, version, is_flexible, values)
    return request(api.key, version, 1, b"\0" * is_flexible + encode(message, version, is_flexible))


def _filled(message: Any, version: int, is_flexible: bool, values: dict[str, Any]) -> Any:
    made = message()
    structs = {field.name: field.element or field for field in fields_of(message, version, is_flexible)}
    for name, value in values.items():
        struct = structs[name].struct
        if struct is not None and isinstance(value, list):
            value = [_filled(struct, version, is_flexible, each) for each in value]
        setattr(made, name, value)
    return made


class Filled:
    """What a broker was filled with.

    Attributes:
        producer: id and epoch of the transactional producer `pilot`, whose transaction has all partitions.
        members: the ids of the members of the classic group `classic`, the leader first.
        partition_count: of the topic `large`.
        member_count: of each large group.
    """

    def __init__(self, caller: Caller, partition_count: int, member_count: int) -> None:
        self.caller = caller
        self.partition_count = partition_count
        self.member_count = member_count
        self.members: list[str] = []
        self.producer = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

    @property
    def topic_id(self) -> bytes:
        """The id of the topic `large`."""
        return self.caller.broker.topics.get("large").topic_id


async def fill(caller: Caller, partition_count: int, member_count: int, count: int = COUNT) -> Filled:
    """Fills a broker with a topic, groups of all types, transactional ids and settings of groups."""
    filled = Filled(caller, partition_count, member_count)
    broker = caller.broker
    with broker.topics.together():
        large = broker.topics.create("large", min(partition_count, MOST_AT_ONCE))
        while len(large.partitions) < partition_count:
            broker.topics.add_partitions(large, min(partition_count, len(large.partitions) + MOST_AT_ONCE))
        for number in range(100):
            broker.topics.create(f"small-{number}", 1)
        for number in range(count):
            broker.topics.group_configs.alter(f"configured-{number}", {"share.session.timeout.ms": "46000"})
    await _fill_classic(filled)
    for number in range(count):
        broker.groups.commit_offsets(CommitRequest(f"simple-{number}", [PartitionCommit("large", 0, 5)]))
    for start in range(0, partition_count, 1000):
        partitions = range(start, min(start + 1000, partition_count))
        broker.groups.commit_offsets(CommitRequest("offsets", [PartitionCommit("large", each, 5) for each in partitions]))
    for number in range(count):
        broker.transactions.init_producer_id(InitRequest(f"id-{number}", 60_000))
    filled.producer = broker.transactions.init_producer_id(InitRequest("pilot", 60_000))
    everything = [TopicPartition("large", index) for index in range(partition_count)]
    broker.transactions.add_partitions("pilot", filled.producer, everything)
    for number in range(member_count):
        await _joined(
            caller,
            ConsumerGroupHeartbeatRequest(
                group_id="consumers",
                member_id=f"m{number:04}" + "-" * 17,
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["large"],
                topic_partitions=[],
            ),
            1,
        )
    for number in range(min(member_count, 1000)):
        await _joined(
            caller,
            ShareGroupHeartbeatRequest(
                group_id="sharers", member_id=f"s{number:04}", member_epoch=0, subscribed_topic_names=["large"]
            ),
            1,
        )
    return filled


async def _joined(caller: Caller, asked: Any, version: int) -> None:
    await answer_of(caller.ask(asked, version))
    await trio.lowlevel.checkpoint()


async def _fill_classic(filled: Filled) -> None:
    """Makes a group whose members all join within the initial delay of a group."""
    groups = filled.caller.broker.groups
    joined: list[JoinResult] = []
    all_joined: Pending[None] = Pending()

    def note(result: JoinResult) -> None:
        joined.append(result)
        if len(joined) == filled.member_count:
            all_joined.complete(None)

    for number in range(filled.member_count):
        asked = JoinRequest(
            "classic", "", "client", "/host", 1_800_000, 60_000, "consumer", [("range", bytes(100))], f"i{number}"
        )
        asked.is_member_id_required = False
        groups.join(asked).then(note)
    await answer_of(all_joined)
    assert {result.error for result in joined} == {ErrorCode.NONE}
    leader = next(result.member_id for result in joined if result.members)
    filled.members = [leader, *(result.member_id for result in joined if result.member_id != leader)]


Case = tuple[str, str, int, dict[str, Any]]
"""A name, an API, a version and the values of the request."""


def requests_on(filled: Filled, count: int = COUNT) -> Iterator[Case]:
    """The requests, in an order in which none spoils what a later one needs."""
    yield from _requests_on_settings_and_listings(count)
    yield from _requests_on_transactions(filled, count)
    yield from _requests_on_offsets(filled, count)
    yield from _requests_on_consumer_groups(filled, count)
    yield from _requests_on_share_groups(count)
    yield from _requests_on_share_partitions(filled, count)
    yield from _requests_on_the_classic_group(filled, count)
    yield from _requests_on_partitions(filled, count)
    yield from _requests_that_end_states(filled, count)


def _requests_on_settings_and_listings(count: int) -> Iterator[Case]:
    """Requests that describe and alter settings, and list everything."""
    numbers = range(count)
    last = count
    large = {"name": "large"}
    yield "all topics", "Metadata", 13, {"topics": None}
    yield "topic many times", "Metadata", 12, {"topics": [large] * count}
    for documentation in (False, True):
        yield (
            f"groups{' with documentation' * documentation}",
            "DescribeConfigs",
            4,
            {
                "resources": [
                    {"resource_type": 32, "resource_name": f"configured-{each}", "configuration_keys": None} for each in numbers
                ],
                "include_synonyms": True,
                "include_documentation": documentation,
            },
        )
    yield (
        "one topic, many keys",
        "DescribeConfigs",
        4,
        {"resources": [{"resource_type": 2, "resource_name": "large", "configuration_keys": [f"k{each}" for each in numbers]}]},
    )
    yield (
        "groups",
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [
                {
                    "resource_type": 32,
                    "resource_name": f"configured-{each}",
                    "configs": [{"name": "share.session.timeout.ms", "value": "47000"}],
                }
                for each in range(count // 2)
            ]
        },
    )
    yield (
        "one topic",
        "IncrementalAlterConfigs",
        1,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "large",
                    "configs": [{"name": f"retention.{each}", "value": "47000"} for each in numbers],
                }
            ]
        },
    )
    yield (
        "groups",
        "AlterConfigs",
        2,
        {
            "resources": [
                {
                    "resource_type": 32,
                    "resource_name": f"configured-{each}",
                    "configs": [{"name": "share.session.timeout.ms", "value": "48000"}],
                }
                for each in range(count // 2)
            ]
        },
    )
    yield "all", "ListConfigResources", 1, {"resource_types": [2, 4, 32]}
    yield "all", "ListGroups", 5, {}
    yield "with filters", "ListGroups", 5, {"states_filter": ["Empty", *(f"s{each}" for each in range(last - 2))]}


def _requests_on_transactions(filled: Filled, count: int) -> Iterator[Case]:
    """Requests that list transactions, and add to them."""
    some = [*range(filled.partition_count)][:count]
    numbers = range(count)
    last = count
    yield "all", "ListTransactions", 2, {}
    yield "by producer", "ListTransactions", 2, {"producer_id_filters": [*range(1_000_000, 1_000_000 + last)]}
    yield "by pattern", "ListTransactions", 2, {"transactional_id_pattern": "id-.*"}
    yield "one", "DescribeTransactions", 0, {"transactional_ids": ["pilot"]}
    yield "all", "DescribeTransactions", 0, {"transactional_ids": [f"id-{each}" for each in numbers]}
    yield (
        "in one transaction",
        "AddPartitionsToTxn",
        5,
        {
            "transactions": [
                {
                    "transactional_id": "pilot",
                    "producer_id": filled.producer.producer_id,
                    "producer_epoch": filled.producer.producer_epoch,
                    "topics": [{"name": "large", "partitions": some}],
                }
            ]
        },
    )
    yield (
        "verified",
        "AddPartitionsToTxn",
        5,
        {
            "transactions": [
                {
                    "transactional_id": "pilot",
                    "producer_id": filled.producer.producer_id,
                    "producer_epoch": filled.producer.producer_epoch,
                    "verify_only": True,
                    "topics": [{"name": "large", "partitions": some}],
                }
            ]
        },
    )
    yield (
        "new transaction",
        "AddPartitionsToTxn",
        3,
        {
            "v3_and_below_transactional_id": "id-0",
            "v3_and_below_producer_id": 0,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "large", "partitions": some}],
        },
    )
    yield (
        "large group",
        "TxnOffsetCommit",
        5,
        {
            "transactional_id": "pilot",
            "group_id": "offsets",
            "producer_id": filled.producer.producer_id,
            "producer_epoch": filled.producer.producer_epoch,
            "topics": [
                {
                    "name": "large",
                    "partitions": [
                        {"partition_index": index, "committed_offset": 1, "committed_metadata": "x" * 1000} for index in some
                    ],
                }
            ],
        },
    )


def _requests_on_offsets(filled: Filled, count: int) -> Iterator[Case]:
    """Requests on the offsets of groups, and requests that describe groups."""
    some = [*range(filled.partition_count)][:count]
    numbers = range(count)
    yield (
        "large group",
        "OffsetCommit",
        9,
        {
            "group_id": "offsets",
            "topics": [
                {
                    "name": "large",
                    "partitions": [
                        {"partition_index": index, "committed_offset": 1, "committed_metadata": "x" * 1000} for index in some
                    ],
                }
            ],
        },
    )
    yield "all of one group", "OffsetFetch", 9, {"groups": [{"group_id": "offsets", "topics": None}]}
    yield "all of one group by id", "OffsetFetch", 10, {"groups": [{"group_id": "offsets", "topics": None}]}
    yield "all of many groups", "OffsetFetch", 9, {"groups": [{"group_id": f"simple-{each}", "topics": None} for each in numbers]}
    yield (
        "one group",
        "OffsetDelete",
        0,
        {"group_id": "offsets", "topics": [{"name": "large", "partitions": [{"partition_index": each} for each in some]}]},
    )
    yield "large group", "DescribeGroups", 6, {"groups": ["classic"]}
    yield "many groups", "DescribeGroups", 6, {"groups": [f"simple-{each}" for each in numbers]}
    yield "large group", "ConsumerGroupDescribe", 1, {"group_ids": ["consumers"]}
    yield "large group", "ShareGroupDescribe", 1, {"group_ids": ["sharers"]}
    yield "large group", "DescribeShareGroupOffsets", 1, {"groups": [{"group_id": "sharers", "topics": None}]}
    yield (
        "large topic",
        "DescribeShareGroupOffsets",
        1,
        {"groups": [{"group_id": "sharers", "topics": [{"topic_name": "large", "partitions": some}]}]},
    )


def _requests_on_consumer_groups(filled: Filled, count: int) -> Iterator[Case]:
    """Heartbeats of consumer groups."""
    some = [*range(filled.partition_count)][:count]
    numbers = range(count)
    yield (
        "many names",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "names",
            "member_id": "a" * 22,
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": [f"n{each}" for each in numbers],
        },
    )
    yield (
        "many names of a large group",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "consumers",
            "member_id": "a" * 22,
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": [f"n{each}" for each in numbers],
        },
    )
    yield (
        "new member of a large group",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "consumers",
            "member_id": "b" * 22,
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": ["large"],
        },
    )
    yield (
        "a first member",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "alone",
            "member_id": "b" * 22,
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": ["large"],
        },
    )
    yield (
        "all owned",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "alone",
            "member_id": "b" * 22,
            "member_epoch": 1,
            "topic_partitions": [{"topic_id": filled.topic_id, "partitions": some}],
        },
    )
    yield (
        "owned once more",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "alone",
            "member_id": "b" * 22,
            "member_epoch": 2,
            "topic_partitions": [{"topic_id": filled.topic_id, "partitions": some}],
        },
    )
    yield (
        "all that do not exist",
        "ConsumerGroupHeartbeat",
        1,
        {
            "group_id": "alone",
            "member_id": "b" * 22,
            "member_epoch": 1,
            "topic_partitions": [{"topic_id": each.to_bytes(16, "big"), "partitions": []} for each in numbers],
        },
    )
    yield "leaves", "ConsumerGroupHeartbeat", 1, {"group_id": "alone", "member_id": "b" * 22, "member_epoch": -1}


def _requests_on_share_groups(count: int) -> Iterator[Case]:
    """Heartbeats of share groups."""
    numbers = range(count)
    yield (
        "many names",
        "ShareGroupHeartbeat",
        1,
        {"group_id": "share-names", "member_id": "a", "subscribed_topic_names": [f"n{each}" for each in numbers]},
    )
    yield (
        "many names of a large group",
        "ShareGroupHeartbeat",
        1,
        {"group_id": "sharers", "member_id": "a", "subscribed_topic_names": [f"n{each}" for each in numbers]},
    )
    yield (
        "a first member",
        "ShareGroupHeartbeat",
        1,
        {"group_id": "share-alone", "member_id": "a", "subscribed_topic_names": ["large"]},
    )
    yield (
        "a second heartbeat",
        "ShareGroupHeartbeat",
        1,
        {"group_id": "share-alone", "member_id": "a", "member_epoch": 1, "subscribed_topic_names": ["large"]},
    )


def _requests_on_share_partitions(filled: Filled, count: int) -> Iterator[Case]:
    """Requests of the one member of a share group, and its last one."""
    some = [*range(filled.partition_count)][:count]
    last = count
    named = [{"topic_id": filled.topic_id, "partitions": [{"partition_index": index} for index in some]}]
    yield (
        "all partitions",
        "ShareFetch",
        2,
        {
            "group_id": "share-alone",
            "member_id": "a",
            "share_session_epoch": 0,
            "max_wait_ms": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": named,
        },
    )
    said = [
        {"partition_index": index, "acknowledgement_batches": [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]}
        for index in some[: count // 3]
    ]
    yield (
        "all partitions again",
        "ShareFetch",
        2,
        {
            "group_id": "share-alone",
            "member_id": "a",
            "share_session_epoch": 1,
            "max_wait_ms": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
        },
    )
    yield (
        "all partitions",
        "ShareAcknowledge",
        2,
        {
            "group_id": "share-alone",
            "member_id": "a",
            "share_session_epoch": 2,
            "topics": [{"topic_id": filled.topic_id, "partitions": said}],
        },
    )
    yield (
        "one long range",
        "ShareAcknowledge",
        2,
        {
            "group_id": "share-alone",
            "member_id": "a",
            "share_session_epoch": 3,
            "topics": [
                {
                    "topic_id": filled.topic_id,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "acknowledgement_batches": [
                                {"first_offset": 0, "last_offset": last - 10, "acknowledge_types": [1] * (last - 9)}
                            ],
                        }
                    ],
                }
            ],
        },
    )
    yield "end of the session", "ShareAcknowledge", 2, {"group_id": "share-alone", "member_id": "a", "share_session_epoch": -1}
    yield "leaves", "ShareGroupHeartbeat", 1, {"group_id": "share-alone", "member_id": "a", "member_epoch": -1}
    yield (
        "all partitions",
        "AlterShareGroupOffsets",
        0,
        {
            "group_id": "share-alone",
            "topics": [{"topic_name": "large", "partitions": [{"partition_index": index, "start_offset": 0} for index in some]}],
        },
    )
    yield "all partitions", "DeleteShareGroupOffsets", 0, {"group_id": "share-alone", "topics": [{"topic_name": "large"}]}


def _requests_on_the_classic_group(filled: Filled, count: int) -> Iterator[Case]:
    """Requests of the members of a classic group."""
    last = count
    yield (
        "all members",
        "SyncGroup",
        5,
        {
            "group_id": "classic",
            "generation_id": 1,
            "member_id": filled.members[0],
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": each, "assignment": bytes(1000)} for each in filled.members],
        },
    )
    yield (
        "many protocols of a large group",
        "JoinGroup",
        9,
        {
            "group_id": "classic",
            "session_timeout_ms": 1_800_000,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "protocol_type": "consumer",
            "group_instance_id": "late",
            "protocols": [
                {"name": "range", "metadata": b""},
                *({"name": f"p{each}", "metadata": bytes(100)} for each in range(last - 2)),
            ],
        },
    )
    yield "all members", "LeaveGroup", 5, {"group_id": "classic", "members": [{"member_id": each} for each in filled.members]}


def _requests_on_partitions(filled: Filled, count: int) -> Iterator[Case]:
    """Requests on all partitions of the large topic."""
    some = [*range(filled.partition_count)][:count]
    large = {"name": "large"}
    yield "large topic", "DescribeTopicPartitions", 0, {"topics": [large]}
    yield "large topic", "DescribeLogDirs", 4, {"topics": [{"topic": "large", "partitions": some}]}
    yield "large topic", "DescribeProducers", 0, {"topics": [{"name": "large", "partition_indexes": some}]}
    yield (
        "large topic",
        "ListOffsets",
        10,
        {"topics": [{"name": "large", "partitions": [{"partition_index": each, "timestamp": 5} for each in some]}]},
    )
    yield (
        "large topic",
        "OffsetForLeaderEpoch",
        4,
        {"topics": [{"topic": "large", "partitions": [{"partition": each} for each in some]}]},
    )
    yield (
        "large topic",
        "DeleteRecords",
        2,
        {"topics": [{"name": "large", "partitions": [{"partition_index": each, "offset": -1} for each in some]}]},
    )
    yield "large topic", "ElectLeaders", 2, {"topic_partitions": [{"topic": "large", "partitions": some}]}
    yield "large topic", "ListPartitionReassignments", 0, {"topics": [{"name": "large", "partition_indexes": some}]}
    yield (
        "large topic to a path that is none",
        "AlterReplicaLogDirs",
        2,
        {"dirs": [{"path": "/nowhere", "topics": [{"name": "large", "partitions": some}]}]},
    )
    yield (
        "large topic, all moved",
        "AlterReplicaLogDirs",
        2,
        {
            "dirs": [
                {"path": str(filled.caller.broker.logs.directories[0].path), "topics": [{"name": "large", "partitions": some}]}
            ]
        },
    )
    yield (
        "large topic",
        "WriteTxnMarkers",
        2,
        {"markers": [{"producer_id": 5, "topics": [{"name": "large", "partition_indexes": some}]}]},
    )


def _requests_that_end_states(filled: Filled, count: int) -> Iterator[Case]:
    """Requests that end what the others needed."""
    numbers = range(count)
    yield "many", "DeleteGroups", 2, {"groups_names": [f"simple-{each}" for each in numbers]}
    yield (
        "large transaction",
        "EndTxn",
        5,
        {
            "transactional_id": "pilot",
            "producer_id": filled.producer.producer_id,
            "producer_epoch": filled.producer.producer_epoch,
            "committed": True,
        },
    )


async def measured(caller: Caller, partition_count: int, member_count: int) -> list[tuple[float, str, str]]:
    """Fills a broker, and measures all requests; returns the longest step of each in ms, its name and its outcome."""
    filled = await fill(caller, partition_count, member_count)
    apis = {api.name: api for api in all_apis()}
    dispatcher = Dispatcher(caller.broker)
    rows = []
    for what, name, version, values in requests_on(filled):
        longest_ms, outcome = await measure(dispatcher, frame(apis[name], version, values))
        rows.append((longest_ms, f"{name}: {what}", outcome))
    return rows
