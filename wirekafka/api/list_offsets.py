"""ListOffsets: the first and last offsets of partitions, and the offsets of timestamps.

Behaviour:
    A timestamp of 0 or more finds the first record with this timestamp or a later one. If no such record exists, or it cannot be
    fetched yet, offset and timestamp are -1. Negative timestamps have special meanings: -2 the log start offset, -1 the high
    watermark, -3 the record with the largest timestamp, -4 the earliest offset on the broker's own disk, -5 the last offset in
    tiered storage, -6 the first offset that is not in tiered storage yet. With `isolation_level` 1 (read_committed), records can
    be fetched up to the last stable offset, which is also the result for -1. A negative timestamp that the version lacks gets
    UNSUPPORTED_VERSION, a partition that is named twice gets INVALID_REQUEST. For a replica the log end offset takes the place of
    the high watermark; the replica id -2, of tools, also finds the offsets of followers. Until the high watermark of a new leader
    has passed the first offset of its epoch, a consumer gets OFFSET_NOT_AVAILABLE, before version 5 LEADER_NOT_AVAILABLE, in
    place of an offset that it cannot fetch yet.

Versions:
    0: up to `max_num_offsets` base offsets of segments whose files were last written before the timestamp, newest first; the log
       end offset counts as one more. 1: one offset and its timestamp (KIP-79). 2: `isolation_level` (KIP-98).
    3: as 2. 4: leader epochs (KIP-320). 5: OFFSET_NOT_AVAILABLE (KIP-207). 6: flexible. 7: -3 (KIP-734). 8: -4 (KIP-405).
    9: -5 (KIP-1005). 10: `timeout_ms` for tiered storage (KIP-1075). 11: -6 (KIP-1023).

Differs from Apache Kafka:
    Tiered storage does not exist: -4 is the same as -2, -5 and -6 give offset -1, and `timeout_ms` has no effect. Apache Kafka
    answers the same if tiered storage is disabled.
    Version 0, which Apache Kafka 4 dropped, is served.

Source: KafkaApis.handleListOffsetRequest, Partition.fetchOffsetForTimestamp, UnifiedLog.fetchOffsetByTimestamp,
UnifiedLog.legacyFetchOffsetsBefore.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wirekafka.api.registry import Call, serves_type
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import log_once
from wirekafka.log.timestamps import RecordScan, Search, TimestampAndOffset
from wirekafka.metadata.operations import Operation, Resource
from wirekafka.names import NO_LEADER_EPOCH
from wirekafka.pending import Pending, Work
from wirekafka.slices import collect
from wirekafka.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from wirekafka.workers import Job, rest

if TYPE_CHECKING:
    from wirekafka.broker import Broker
    from wirekafka.replication.leader_replica import LeaderReplica
    from wirekafka.replication.partition import Partition

SECONDS_ON_LOOP = 0.01
"""The seconds that one request may search records on the loop. Workers do its further searches."""

READ_COMMITTED = 1

CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
"""The replica id of tools, which may ask followers too."""

FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE = 5

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSIONS = {EARLIEST: 0, LATEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The first version in which each negative timestamp has a meaning (ReplicaManager.isListOffsetsTimestampUnsupported)."""


@serves_type(LIST_OFFSETS)
def list_offsets(broker: Broker, call: Call[ListOffsetsRequest]) -> ListOffsetsResponse | Pending[Any]:
    """Answers for each partition by itself, after searches that need much CPU have ended in threads."""
    searches = TimestampSearches(broker)
    topics = call.request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        # The usual request, for one partition, is answered without a generator.
        answer = _answer(broker, call, topics[0].name, topics[0].partitions[0], False, searches)
        return searches.answer(ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topics[0].name, partitions=[answer])]))
    response = broker.slices.run(_lookup(broker, call, searches))
    return searches.answer_late(response) if isinstance(response, Pending) else searches.answer(response)


def _lookup(broker: Broker, call: Call[ListOffsetsRequest], searches: TimestampSearches) -> Work[ListOffsetsResponse]:
    response = ListOffsetsResponse()
    for asked_topic in call.request.topics:
        name = asked_topic.name
        repeated = _repeated(asked_topic.partitions)
        answers = yield from collect(
            _answer(broker, call, name, asked, asked.partition_index in repeated, searches) for asked in asked_topic.partitions
        )
        response.topics.append(ListOffsetsTopicResponse(name=name, partitions=answers))
        yield
    return response


def _repeated(asked: list[ListOffsetsPartition]) -> set[int]:
    if len(asked) == 1:
        return set()
    counts = Counter(each.partition_index for each in asked)
    return {index for index, count in counts.items() if count > 1}


def _answer(
    broker: Broker,
    call: Call[ListOffsetsRequest],
    topic: str,
    asked: ListOffsetsPartition,
    is_repeated: bool,
    searches: TimestampSearches,
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    answer = ListOffsetsPartitionResponse(partition_index=index)
    try:
        call.authorize(Operation.DESCRIBE, Resource.topic(topic))
        if is_repeated and call.version:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a partition is named twice")
        if asked.timestamp < 0 and call.version < FIRST_VERSIONS.get(asked.timestamp, call.version + 1):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        partition = _find_partition(broker, call.request.replica_id, topic, asked)
        if call.version == 0:
            answer.old_style_offsets = _segment_offsets(partition, asked, call)
        else:
            leader = broker.leader_replicas.get(partition)
            if leader is not None:
                answer.error_code = _late_error(leader, call)
            _find_offset(partition, asked.timestamp, call.request, answer, searches)
    except KafkaError as error:
        answer.error_code = error.code
    return answer


def _find_partition(broker: Broker, replica_id: int, topic: str, asked: ListOffsetsPartition) -> Partition:
    """Returns the partition, of which a tool may ask any replica.

    Raises:
        KafkaError: see `Broker.find_partition` and `Broker.check_hosts`.
    """
    if replica_id != DEBUGGING_REPLICA_ID:
        return broker.find_partition(topic, asked.partition_index, asked.current_leader_epoch)
    partition = broker.topics.find_partition(topic, asked.partition_index)
    broker.check_hosts(partition, asked.current_leader_epoch)
    return partition


def _late_error(leader: LeaderReplica, call: Call[ListOffsetsRequest]) -> ErrorCode:
    """Returns the error for offsets that a consumer cannot fetch yet; NONE if there are no such offsets.

    The high watermark of a new leader may be less than the one that consumers have seen from the former leader. Offsets up to it
    must not seem to go back.

    Source: KIP-207; Partition.fetchOffsetForTimestamp.
    """
    if call.request.replica_id != CONSUMER_REPLICA_ID:
        return ErrorCode.NONE
    if leader.leadership.epoch_start_offset <= leader.partition.log.high_watermark:
        return ErrorCode.NONE
    has_code = call.version >= FIRST_VERSION_WITH_OFFSET_NOT_AVAILABLE
    return ErrorCode.OFFSET_NOT_AVAILABLE if has_code else ErrorCode.LEADER_NOT_AVAILABLE


def _find_offset(
    partition: Partition,
    timestamp: int,
    request: ListOffsetsRequest,
    answer: ListOffsetsPartitionResponse,
    searches: TimestampSearches,
) -> None:
    """Finds the offset of a timestamp, and puts it into the answer, now or later.

    Args:
        request: has the isolation level, and the id of a replica, which can fetch up to the end of the log.
        answer: has the error for the case that the client cannot fetch the record yet.

    Raises:
        KafkaError: KAFKA_STORAGE_ERROR.
    """
    source = partition.log
    if request.replica_id != CONSUMER_REPLICA_ID:
        end_offset = source.log_end_offset
    else:
        end_offset = source.last_stable_offset if request.isolation_level == READ_COMMITTED else source.high_watermark
    if timestamp == LATEST:
        if answer.error_code:
            return
        answer.offset, leader_epoch = end_offset, partition.leader_epoch
        answer.leader_epoch = leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        earliest_epoch = partition.earliest_epoch
        answer.error_code = ErrorCode.NONE
        answer.offset = source.log_start_offset
        answer.leader_epoch = NO_LEADER_EPOCH if earliest_epoch is None else earliest_epoch
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        answer.error_code = ErrorCode.NONE
    else:
        search = source.search_timestamp(None if timestamp == MAX_TIMESTAMP else timestamp)
        searches.run(TimestampSearch(search, end_offset, answer))


@dataclass(slots=True)
class TimestampSearch:
    """The search in one partition.

    Attributes:
        scans: the remaining scans; None stands for a pause.
        end_offset: one past the last record that can be fetched; later records are not in the answer.
        answer: takes the result.
        next_scan: the scan that a thread runs next; None before the first scan, and in a pause.
    """

    scans: Search
    end_offset: int
    answer: ListOffsetsPartitionResponse
    next_scan: RecordScan | None = None

    def advance(self) -> bool:
        """Goes to the next scan or pause; returns False if none is left."""
        for scan in self.scans:
            self.next_scan = scan
            return True
        return False

    def run_next(self) -> TimestampAndOffset | None:
        """Runs the next scan in a thread; a pause finds nothing."""
        return None if self.next_scan is None else self.next_scan.run(rest)

    def take(self, found: TimestampAndOffset | None) -> bool:
        """Takes the result of a scan; returns False if the search continues."""
        if found is None:
            return False
        if found.offset < self.end_offset:
            self.answer.error_code = ErrorCode.NONE
            self.answer.offset, self.answer.timestamp = found.offset, found.timestamp
            self.answer.leader_epoch = NO_LEADER_EPOCH if found.leader_epoch is None else found.leader_epoch
        return True


class TimestampSearches:
    """The searches of one request: light searches run at once, the others run in threads, one after the other.

    After a pause, a search continues at once if the request may still use the loop, otherwise after an empty job of a worker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._end = perf_counter() + SECONDS_ON_LOOP
        self._waiting: deque[TimestampSearch] = deque()
        self._job: Job | None = None

    def run(self, search: TimestampSearch) -> None:
        """Searches on the loop, as far as that costs little.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        while search.advance():
            scan = search.next_scan
            if perf_counter() > self._end or (scan is not None and not scan.is_light):
                self._waiting.append(search)
                return
            if scan is not None and search.take(scan.run()):
                return

    def answer(self, response: ListOffsetsResponse) -> ListOffsetsResponse | Pending[ListOffsetsResponse]:
        """Returns the response, or a Pending of it until all searches are done."""
        if not self._waiting:
            return response
        pending: Pending[ListOffsetsResponse] = Pending(on_abandon=self._abandon)
        self._run_next(pending, response)
        return pending

    def answer_late(self, late: Pending[Any]) -> Pending[Any]:
        """Returns a Pending of a response that is made in slices, with the results of all its searches."""

        def abandon() -> None:
            late.abandon()
            self._abandon()

        pending: Pending[Any] = Pending(on_abandon=abandon)

        def take(response: ListOffsetsResponse | Exception) -> None:
            if isinstance(response, Exception):
                pending.complete(response)
            else:
                self._run_next(pending, response)

        late.then(take)
        return pending

    def _abandon(self) -> None:
        self._waiting.clear()
        if self._job is not None:
            self._job.cancel()

    def _run_next(self, pending: Pending[ListOffsetsResponse], response: ListOffsetsResponse) -> None:
        if not self._waiting:
            pending.complete(response)
            return
        search = self._waiting[0]
        self._job = self._broker.workers.submit(search.run_next, partial(self._done, pending, response))

    def _done(
        self,
        pending: Pending[ListOffsetsResponse],
        response: ListOffsetsResponse,
        found: TimestampAndOffset | BaseException | None,
    ) -> None:
        """Takes the result of a scan or a pause, and starts the next one."""
        search = self._waiting[0]
        is_finished = True
        try:
            if isinstance(found, BaseException):
                raise found
            is_finished = search.take(found) or not search.advance()
        except KafkaError as error:
            search.answer.error_code = error.code
        except Exception as error:  # noqa: BLE001 - costs the answer for this partition only
            log_once(error, "A search for a timestamp failed")
            search.answer.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
        if is_finished:
            self._waiting.popleft()
        self._run_next(pending, response)


def _segment_offsets(partition: Partition, asked: ListOffsetsPartition, call: Call[ListOffsetsRequest]) -> list[int]:
    """Returns the base offsets of segments that were last written before the timestamp, newest first (version 0).

    Source: UnifiedLog.legacyFetchOffsetsBefore, Partition.legacyFetchOffsetsForTimestamp.
    """
    source = partition.log
    found = [(max(segment.base_offset, source.log_start_offset), segment.last_modified_ms) for segment in source.segments]
    if source.segments.active.size:
        found.append((source.log_end_offset, call.now_ms))
    match asked.timestamp:
        case -1:
            pass
        case -2:
            del found[1:]
        case time_ms:
            while found and found[-1][1] > time_ms:
                found.pop()
    newest_first = [min(offset, source.high_watermark) for offset, _ in reversed(found)]
    return sorted(newest_first[: max(0, asked.max_num_offsets)], reverse=True)
