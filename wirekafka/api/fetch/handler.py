"""Fetch: reads records from the offsets that a consumer names, or waits until there are enough.

Behaviour:
    Each partition gets whole batches as they were stored, sent from the file: from the batch that holds the fetch offset up to
    the high watermark. `max_bytes` (at most `fetch.max.bytes`) limits the response, and `partition_max_bytes` limits each
    partition.
    The first batch of the first partition with records is sent whatever its size (KIP-74). With fewer than `min_bytes` the fetch
    waits, for at most `max_wait_ms` (`replication.purgatory.DelayedFetch` has the cases). An error in one partition does not
    affect the others, but ends the wait.
    A session stores the partitions of a consumer (KIP-227). Epoch 0 opens a session, epoch -1 uses none, and any other epoch
    continues one with a request that names only changed partitions. The response then has only partitions with records, errors or
    new offsets. Partitions that had records move to the end of the order. `max.incremental.fetch.session.cache.slots` limits the
    number of sessions.
    Before version 4, clients do not know record batches: the batches are converted to message sets of magic 0 or 1, at most some
    50,000 records of a partition at once.
    With `isolation_level` 1 (read_committed), a partition gets records up to its last stable offset, and only these count for
    `min_bytes`. `aborted_transactions` lists the aborted transactions, whose records the client must skip up to their markers.
    Markers take an offset each and are sent with either isolation level.
    A follower gets records up to the end of the log, committed or not, and waits for appends. Its offset says what it has, and
    its `last_fetched_epoch` whether its log diverges. Its session is privileged: no session of a consumer evicts it.
    In a cluster, a consumer reads from any replica since version 11, from a follower up to the high watermark that the follower
    knows. With the rack-aware `replica.selector.class`, a leader in another rack than the consumer names an in-sync follower of
    that rack as `preferred_read_replica`, in place of records.

Versions:
    0-1: message sets of magic 0; 1 adds `throttle_time_ms`. 2: magic 1.
    3: `max_bytes`, and the first batch is sent whatever its size (KIP-74). Up to version 2 the last message may be cut off.
    4: record batches, `isolation_level`, `last_stable_offset`, `aborted_transactions` (KIP-98).
    5: `log_start_offset` (KIP-107). 6: KAFKA_STORAGE_ERROR (KIP-112). 7: sessions (KIP-227).
    8: as 7. 9: `current_leader_epoch` (KIP-320). 10: zstd (KIP-110). 11: `rack_id` (KIP-392).
    12: flexible; `last_fetched_epoch` and `diverging_epoch` (KIP-595). 13: topic ids (KIP-516). 14: as 13 (KIP-405).
    15: `replica_state` (KIP-903). 16: leaders and their addresses in errors (KIP-951). 17: `replica_directory_id` (KIP-853).
    18: `high_watermark` of a replica (KIP-1166).

Differs from Apache Kafka:
    A broker without other brokers has no followers: a fetch with a replica id gets NOT_LEADER_OR_FOLLOWER, and
    `rack_id` has no effect.
    In a session, a leader names a nearer replica when the partition has news, and not while the consumer waits for records.
    If retention moves the log start offset of a partition, a session learns the new offset with the partition's next change, and
    not at once.
    All sessions and waiting fetches together name at most 262,144 partitions. A session that would exceed this is not opened,
    or is closed with FETCH_SESSION_ID_NOT_FOUND, and a fetch that would exceed it does not wait.
    Versions 0 to 3, which Apache Kafka 4 dropped, are served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.fetch.conversion import FIRST_VERSION_WITH_BATCHES, convert
from wirekafka.api.fetch.fetch_pass import FetchPass, failure_of
from wirekafka.api.fetch.full import fetch_all
from wirekafka.api.fetch.incremental import fetch_news
from wirekafka.api.fetch.one_partition import Reply
from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode
from wirekafka.metadata.operations import CLUSTER, Operation
from wirekafka.replication.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID, FetchSession
from wirekafka.wire.messages.fetch import FETCH, FetchableTopicResponse, FetchRequest, FetchResponse

if TYPE_CHECKING:
    from wirekafka.broker import Broker


@serves_type(FETCH)
def fetch(broker: Broker, call: Call[FetchRequest]) -> Reply:
    """Reads the partitions, or waits until there are enough records."""
    request = call.request
    if request.replica_id >= 0 or (request.replica_state is not None and request.replica_state.replica_id >= 0):
        return _fetch_for_replica(broker, call) if broker.leader_replicas else _refuse_replica(request)
    pass_type = FetchPass if broker.member is None else _member_pass()
    session_epoch = request.session_epoch
    if session_epoch != FINAL_EPOCH and session_epoch != INITIAL_EPOCH:
        return fetch_news(broker, call, pass_type, FetchSession)
    if request.session_id != NO_SESSION_ID:
        broker.fetch_sessions.remove(request.session_id)
    response = fetch_all(broker, call, pass_type)
    return response if call.version >= FIRST_VERSION_WITH_BATCHES else convert(broker, call, response)


def _member_pass() -> type[FetchPass]:
    """Returns the pass for the consumers of a member of a cluster."""
    # Imported here, because a broker without other brokers imports nothing of replication.
    from wirekafka.api.fetch.member_pass import MemberFetchPass

    return MemberFetchPass


def _fetch_for_replica(broker: Broker, call: Call[FetchRequest]) -> Reply:
    """Reads for a follower, up to the ends of the logs.

    Raises:
        KafkaError: CLUSTER_AUTHORIZATION_FAILED.
    """
    # Imported here, because a broker without other brokers imports nothing of replication.
    from wirekafka.api.fetch.replica_pass import ReplicaFetchPass
    from wirekafka.replication.replica_sessions import ReplicaSession

    call.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    request = call.request
    if request.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        return fetch_news(broker, call, ReplicaFetchPass, ReplicaSession)
    if request.session_id != NO_SESSION_ID:
        broker.fetch_sessions.remove(request.session_id)
    response = fetch_all(broker, call, ReplicaFetchPass)
    return response if call.version >= FIRST_VERSION_WITH_BATCHES else convert(broker, call, response)


def _refuse_replica(request: FetchRequest) -> FetchResponse:
    """Refuses a fetch of a follower, because this broker leads no partition with other replicas."""
    responses = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[failure_of(asked.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER) for asked in topic.partitions],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=responses)
