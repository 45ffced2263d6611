"""One run of a broker, from its start to a crash: its session, its logs, its partitions, and the requests that it serves.

How it works: the broker opens its logs, and registers in ZooKeeper. The controller tells it by LeaderAndIsr which partitions it
leads and which it follows, and the real `ClusterReplicas` and `ReplicaFetchers` execute that. This module replaces the handlers
of a real broker: it refuses requests for an earlier registration, and looks partitions up for clients and followers.

Source: kafka.server.KafkaApis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from wirekafka.api.produce.messages import PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse
from wirekafka.config import BrokerConfig
from wirekafka.controller.alter_partition import alter_partition
from wirekafka.controller.controlled_shutdown import shut_down
from wirekafka.controller.controller import Controller
from wirekafka.controller.settings import ControllerSettings
from wirekafka.errors import ErrorCode, KafkaError, ProtocolError
from wirekafka.log.storage import FileRegion
from wirekafka.metadata.image import ClusterImage
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.replication.cluster_replicas import ClusterReplicas
from wirekafka.replication.controller_queue import ControllerQueue
from wirekafka.replication.controller_requests import is_broker_epoch_stale, refusal
from wirekafka.replication.fetcher import FetcherSettings
from wirekafka.replication.leader_replica import LeaderReplica, ReplicaFetch, ReplicaRead
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_fetcher import ReplicaFetchers
from wirekafka.simulation.clients import NO_REPLICA
from wirekafka.simulation.cluster import Cluster
from wirekafka.simulation.disk import Disk
from wirekafka.simulation.events import MS, Act
from wirekafka.simulation.exchange import PRODUCE, VERSIONS, Received, read_request, write_response
from wirekafka.simulation.history import LeaderSeen
from wirekafka.simulation.hosting import HostedPartitions, PeerChannel, ProcessTimers, SimulatedSlices
from wirekafka.simulation.leading import ConsumerRead, Leading, WaitingFetch
from wirekafka.simulation.logs import BrokerLogs, log_config
from wirekafka.simulation.network import Reply
from wirekafka.simulation.node import Node
from wirekafka.simulation.proposals import Proposals
from wirekafka.simulation.registration import Registration
from wirekafka.wire.messages.alter_partition import ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse
from wirekafka.wire.messages.api_versions import API_VERSIONS, ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from wirekafka.wire.messages.controlled_shutdown import (
    CONTROLLED_SHUTDOWN,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from wirekafka.wire.messages.fetch import (
    FETCH,
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR, LeaderAndIsrRequest, LeaderAndIsrResponse
from wirekafka.wire.messages.list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from wirekafka.wire.messages.stop_replica import STOP_REPLICA, StopReplicaRequest, StopReplicaResponse
from wirekafka.wire.messages.update_metadata import UPDATE_METADATA, UpdateMetadataRequest, UpdateMetadataResponse
from wirekafka.wire.messages.write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout.membership import BrokerRegistration
from wirekafka.zookeeper.session import SessionState

EARLIEST = -2
"""The timestamp of ListOffsets for the start of a log."""
READ_COMMITTED = 1
"""An isolation level."""


class _Asked(NamedTuple):
    """A partition of a follower's fetch."""

    topic: str
    topic_id: bytes
    partition: FetchPartition


class Broker(Node):
    """One run of a broker, which begins when the object is made.

    Attributes:
        replicas: the partitions in the controller's requests.

    Raises:
        OSError: the disk is full, or a log is damaged; the run has ended.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker_id: int,
        disk: Disk,
        *,
        number: int,
        has_lost_power: bool,
        clock_ms: Callable[[], int],
        halt: Act,
    ) -> None:
        super().__init__(cluster, broker_id, number=number, clock_ms=clock_ms, end=halt)
        self._image = ClusterImage()
        self._led: dict[tuple[str, int], int] = {}
        """The newest leader epoch in which the broker led each partition."""
        self.logs = BrokerLogs(disk, self.process, self.dice, self.options, has_lost_power=has_lost_power, clock_ms=clock_ms)
        try:
            self.logs.open()
        except OSError:
            self.process.end()
            raise
        self._note_logs()
        self._slices = SimulatedSlices(self)
        self._controller_queue = ControllerQueue(self._slices)
        self._partitions = HostedPartitions(log_config(self.options))
        self._leaders: dict[Partition, LeaderReplica] = {}
        self._proposals = Proposals(self)
        self.replicas = self._make_replicas()
        self.registration = Registration(
            self.broker_id,
            self.process,
            cluster.zookeeper,
            self.dice,
            self.options,
            now_ms=lambda: cluster.events.now_ms,
            on_registered=self._note_registered,
            on_state=self._note_session,
        )
        self.controller = self._make_controller()
        self.replicas.start()

    def _make_controller(self) -> Controller:
        return Controller(
            self.registration.client,
            self._connect_as_controller,
            ProcessTimers(self.process),
            ControllerSettings(self.broker_id),
            now_ms=self.clock_ms,
            call_soon=lambda act: self.process.call_later(0, act),
            on_change=lambda: self.note("is the controller" if self.controller.is_active else "is not the controller any more"),
            seconds=lambda: 0.0,
        )

    def _connect_as_controller(self, broker_id: int, registration: BrokerRegistration) -> PeerChannel:
        return PeerChannel(self.new_peer(broker_id), self.options.request_timeout_ms * MS)

    def _note_logs(self) -> None:
        for log in self.logs:
            reader = log.reader
            self.note(f"opened {log.topic_partition}: end {reader.log_end_offset}, high watermark {reader.high_watermark}")

    def _make_replicas(self) -> ClusterReplicas:
        timers, options = ProcessTimers(self.process), self.options
        settings = FetcherSettings(
            self.broker_id,
            lambda: self.sent_epoch,
            max_wait_ms=options.fetch_wait_ms,
            max_bytes=options.fetch_max_bytes,
            back_off_ms=options.back_off_ms,
        )
        fetchers = ReplicaFetchers(settings, fetcher_count=1, connect=self._connect, timers=timers, slices=self._slices)
        return ClusterReplicas(
            BrokerConfig({"replica.lag.time.max.ms": str(options.replica_lag_time_max_ms)}),
            timers,
            self.logs,
            self._partitions,
            fetchers,
            self._slices,
            node_id=self.broker_id,
            propose=self._proposals.sender.propose,
            live_brokers=self.broker_epochs,
            configs=self._partitions,
            leader_replicas=self._leaders,
        )

    def _connect(self, leader_id: int, number: int) -> PeerChannel:
        return PeerChannel(self.new_peer(leader_id), (self.options.fetch_wait_ms + self.options.request_timeout_ms) * MS)

    # ZooKeeper

    def _note_registered(self) -> None:
        # A controller that connects earlier tries again, until the broker knows its epoch.
        self.cluster.network.listen(self.address, self.process, self._serve)
        self.broker_epochs[self.broker_id] = self.registration.epoch
        self.controller.note_registered()

    def _note_session(self, state: SessionState) -> None:
        self.controller.note_session(state)

    # Requests

    def _serve(self, frame: memoryview, reply: Reply, connection: int) -> None:
        received = read_request(frame, connection)
        handlers: dict[RequestType[Any, Any], Callable[[Any, Callable[[Any], None]], None]] = {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            LEADER_AND_ISR: partial(self._take_leaders, received),
            STOP_REPLICA: partial(self._stop_replicas, received),
            UPDATE_METADATA: partial(self._take_metadata, received),
            WRITE_TXN_MARKERS: self._write_markers,
            ALTER_PARTITION: self._alter_partition,
            CONTROLLED_SHUTDOWN: self._shut_down_broker,
            API_VERSIONS: _answer_versions,
        }
        handlers[received.type](received.message, lambda response: self._answer(received, response, reply))

    def _answer(self, received: Received, response: Any, reply: Reply) -> None:
        if self.process.is_alive:
            reply(write_response(received, response))

    # Requests of the controller

    def _controller_error(
        self, request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest, received: Received
    ) -> ErrorCode:
        """Returns the error with which a controller's request is refused as a whole; NONE if it is not."""
        if self._is_stale(request.broker_epoch):
            return ErrorCode.STALE_BROKER_EPOCH
        try:
            is_next = self.replicas.controller_order.take(request, received.correlation_id, received.connection)
        except ProtocolError:  # the connection is broken: its client gets no answer
            is_next = False
        return ErrorCode.NONE if is_next else ErrorCode.STALE_CONTROLLER_EPOCH

    def _execute(self, work: Work[Any], answer: Callable[[Any], None]) -> None:
        """Executes a request of a controller after those before it, and answers it."""
        response = self._controller_queue.run(work)
        if isinstance(response, Pending):
            response.then(answer)
        else:
            answer(response)

    def _is_stale(self, broker_epoch: int) -> bool:
        return is_broker_epoch_stale(broker_epoch, self.sent_epoch, is_kraft_controller=False)

    def _take_metadata(
        self, received: Received, request: UpdateMetadataRequest, answer: Callable[[UpdateMetadataResponse], None]
    ) -> None:
        self._execute(self._update_metadata(received, request), answer)

    def _update_metadata(self, received: Received, request: UpdateMetadataRequest) -> Work[UpdateMetadataResponse]:
        error = self._controller_error(request, received)
        if error is ErrorCode.NONE:
            try:
                yield from self._image.update(request)
            except KafkaError as refused:
                error = ErrorCode(refused.code)
            else:
                self._take_live_brokers()
        return UpdateMetadataResponse(error_code=error)

    def _take_live_brokers(self) -> None:
        self._proposals.note_controller(self._image.controller_id)
        live = self._image.brokers.keys()
        for broker_id in [each for each in self.broker_epochs if each not in live and each != self.broker_id]:
            del self.broker_epochs[broker_id]
        for broker_id in sorted(live - self.broker_epochs.keys()):
            self.broker_epochs[broker_id] = None
        self.replicas.note_brokers()

    def _take_leaders(
        self, received: Received, request: LeaderAndIsrRequest, answer: Callable[[LeaderAndIsrResponse], None]
    ) -> None:
        def end(response: LeaderAndIsrResponse) -> None:
            self._note_leaders(response)
            answer(response)

        self._execute(self._apply(received, request), end)

    def _apply(self, received: Received, request: LeaderAndIsrRequest) -> Work[LeaderAndIsrResponse | Pending[Any]]:
        error = self._controller_error(request, received)
        if error is not ErrorCode.NONE:
            self.note(f"refuses the controller's request: {error.name}")
            return (yield from refusal(request, error))
        return (yield from self.replicas.apply(request, lambda: self._is_stale(request.broker_epoch)))

    def _stop_replicas(
        self, received: Received, request: StopReplicaRequest, answer: Callable[[StopReplicaResponse], None]
    ) -> None:
        self._execute(self._stop(received, request), answer)

    def _stop(self, received: Received, request: StopReplicaRequest) -> Work[StopReplicaResponse]:
        error = self._controller_error(request, received)
        if error is not ErrorCode.NONE:
            self.note(f"refuses the controller's request: {error.name}")
            return StopReplicaResponse(error_code=error)
        return (yield from self.replicas.stop(request))

    def _note_leaders(self, response: LeaderAndIsrResponse) -> None:
        """Adds the partitions that the broker leads to the history. If its only disk has failed, the broker stops."""
        if any(each.error_code == ErrorCode.KAFKA_STORAGE_ERROR for each in response.partition_errors):
            self.halt("a partition cannot take its role")
        for replica in self.replicas:
            # A topic that is created again begins with epoch 0 again.
            topic = replica.name.topic if replica.topic_id == self.cluster.topic_id else replica.topic_id.decode()
            led, epoch = (topic, replica.name.partition), replica.leader_epoch
            if replica.leader is not None and self._led.get(led) != epoch:
                self._led[led] = epoch
                self.cluster.record(LeaderSeen(*led, epoch, self.broker_id))

    # Requests to the controller

    def _alter_partition(self, request: AlterPartitionRequest, answer: Callable[[AlterPartitionResponse], None]) -> None:
        def end(result: AlterPartitionResponse | KafkaError) -> None:
            answer(AlterPartitionResponse(error_code=result.code) if isinstance(result, KafkaError) else result)

        version = VERSIONS[ALTER_PARTITION]
        self.controller.enter(lambda context, batch: alter_partition(context, batch, request, version), end)

    def _shut_down_broker(self, request: ControlledShutdownRequest, answer: Callable[[ControlledShutdownResponse], None]) -> None:
        def end(result: ControlledShutdownResponse | KafkaError) -> None:
            answer(ControlledShutdownResponse(error_code=result.code) if isinstance(result, KafkaError) else result)

        self.controller.enter(lambda context, batch: shut_down(context, batch, batch.settings, request), end)

    # Requests of clients and followers

    def _leading(self, topic: str, partition: int) -> Leading | None:
        hosted = self._partitions.by_name.get(TopicPartition(topic, partition))
        leader = None if hosted is None else self._leaders.get(hosted)
        return None if leader is None else Leading(self, leader)

    def _produce(self, request: ProduceRequest, answer: Callable[[Any], None]) -> None:
        topic = request.topic_data[0].name
        from_client = request.topic_data[0].partition_data[0]

        def respond(error: ErrorCode, base_offset: int) -> None:
            partition = PartitionProduceResponse(index=from_client.index, error_code=error, base_offset=base_offset)
            answer(ProduceResponse(responses=[TopicProduceResponse(name=topic, partition_responses=[partition])]))

        leading = self._leading(topic, from_client.index)
        if leading is None:
            respond(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            leading.produce(from_client.records, request.acks, request.timeout_ms, respond)

    def _write_markers(self, request: WriteTxnMarkersRequest, answer: Callable[[WriteTxnMarkersResponse], None]) -> None:
        marker = request.markers[0]
        topic = marker.topics[0]
        index = topic.partition_indexes[0]

        def respond(error: ErrorCode, _offset: int) -> None:
            partition = WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
            topics = [WritableTxnMarkerTopicResult(name=topic.name, partitions=[partition])]
            answer(WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)]))

        leading = self._leading(topic.name, index)
        if leading is None:
            respond(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        else:
            leading.write_marker(marker, self.options.request_timeout_ms, respond)

    def _fetch(self, request: FetchRequest, answer: Callable[[FetchResponse], None]) -> None:
        if request.replica_state is not None:
            self._fetch_for_replica(request, request.replica_state, answer)
            return
        topic = request.topics[0]
        asked = topic.partitions[0]

        def respond(data: PartitionData) -> None:
            data.partition_index = asked.partition
            answer(FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[data])]))

        leading = self._leading(self.cluster.topic_names[topic.topic_id], asked.partition)
        if leading is None:
            respond(PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            self._answer_consumer(
                leading.fetch_for_consumer(asked, is_read_committed=request.isolation_level == READ_COMMITTED), respond
            )

    def _fetch_for_replica(self, request: FetchRequest, replica: ReplicaState, answer: Callable[[FetchResponse], None]) -> None:
        """Answers a follower, at once or when there are records. It gets no fetch session."""
        names = self.cluster.topic_names
        asked = [_Asked(names[topic.topic_id], topic.topic_id, each) for topic in request.topics for each in topic.partitions]

        def read(*, is_noted: bool) -> list[ReplicaRead | ErrorCode]:
            return [self._read_for_replica(replica, each, is_noted=is_noted) for each in asked]

        found = read(is_noted=False)
        if asked and request.max_wait_ms and all(_has_nothing(each) for each in found):
            partitions = [self._partitions.by_name[TopicPartition(each.topic, each.partition.partition)] for each in asked]
            WaitingFetch(
                partitions, self.process, request.max_wait_ms, lambda: self._answer_replica(asked, read(is_noted=True), answer)
            )
        else:
            self._answer_replica(asked, found, answer)

    def _read_for_replica(self, replica: ReplicaState, from_follower: _Asked, *, is_noted: bool) -> ReplicaRead | ErrorCode:
        asked = from_follower.partition
        leading = self._leading(from_follower.topic, asked.partition)
        if leading is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        fetch = ReplicaFetch(
            replica.replica_id,
            asked.current_leader_epoch,
            asked.fetch_offset,
            None if asked.last_fetched_epoch < 0 else asked.last_fetched_epoch,
            asked.log_start_offset,
            None if replica.replica_epoch < 0 else replica.replica_epoch,
        )
        return leading.fetch_for_replica(fetch, asked.partition_max_bytes, is_noted=is_noted)

    def _answer_replica(
        self, asked: list[_Asked], found: list[ReplicaRead | ErrorCode], answer: Callable[[FetchResponse], None]
    ) -> None:
        partitions = [_replica_data(each.partition.partition, read) for each, read in zip(asked, found, strict=True)]
        regions = [b"" if isinstance(read, ErrorCode) else read.records for read in found]
        topics: dict[bytes, FetchableTopicResponse] = {}
        for each, data in zip(asked, partitions, strict=True):
            topic = topics.setdefault(each.topic_id, FetchableTopicResponse(topic_id=each.topic_id, partitions=[]))
            topic.partitions.append(data)
        self._send_records(partitions, regions, lambda: answer(FetchResponse(responses=[*topics.values()])))

    def _answer_consumer(self, found: ConsumerRead | ErrorCode, respond: Callable[[PartitionData], None]) -> None:
        if isinstance(found, ErrorCode):
            respond(PartitionData(error_code=found))
            return
        data = PartitionData(
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            aborted_transactions=[
                AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in found.aborted
            ],
        )
        self._send_records([data], [found.records], lambda: respond(data))

    def _send_records(
        self, partitions: Sequence[PartitionData], regions: Sequence[FileRegion | bytes], respond: Callable[[], None]
    ) -> None:
        """Sends records. A region of a file may be read later than it was found, as by sendfile.

        If the region has become shorter, no response is sent. A real broker ends the connection.
        """

        def send() -> None:
            for data, records in zip(partitions, regions, strict=True):
                content = records if isinstance(records, bytes) else records.read()
                if len(content) != len(records):
                    return
                data.records = memoryview(content)
            respond()

        if self.dice.chance(self.options.late_read_rate):
            self.process.call_later(self.dice.between(1, 20) * MS, send)
        else:
            send()

    def _list_offsets(self, request: ListOffsetsRequest, answer: Callable[[ListOffsetsResponse], None]) -> None:
        topics = []
        for topic in request.topics:
            partitions = [self._answer_offset(request, topic.name, asked) for asked in topic.partitions]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        answer(ListOffsetsResponse(topics=topics))

    def _answer_offset(
        self, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition
    ) -> ListOffsetsPartitionResponse:
        partition = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        try:
            partition.offset, partition.leader_epoch = self._find_offset(request, topic, asked)
        except KafkaError as refusal:
            partition.error_code = refusal.code
        return partition

    def _find_offset(self, request: ListOffsetsRequest, topic: str, asked: ListOffsetsPartition) -> tuple[int, int]:
        """Returns the start or the end of a partition, as far as the client may read it, and the leader epoch."""
        leading = self._leading(topic, asked.partition_index)
        if leading is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = leading.partition
        partition.check_leader_epoch(asked.current_leader_epoch)
        if asked.timestamp == EARLIEST:
            return partition.log.log_start_offset, partition.leader_epoch
        if request.replica_id == NO_REPLICA:
            return leading.end_offset(is_read_committed=request.isolation_level == READ_COMMITTED), partition.leader_epoch
        return partition.log.log_end_offset, partition.leader_epoch


def _answer_versions(request: ApiVersionsRequest, answer: Callable[[ApiVersionsResponse], None]) -> None:
    versions = [ApiVersion(api_key=kind.key, min_version=version, max_version=version) for kind, version in VERSIONS.items()]
    answer(ApiVersionsResponse(api_keys=versions))


def _has_nothing(found: ReplicaRead | ErrorCode) -> bool:
    return not isinstance(found, ErrorCode) and found.diverging_epoch is None and not len(found.records)


def _replica_data(index: int, found: ReplicaRead | ErrorCode) -> PartitionData:
    """Returns the answer to a follower for one partition, without the records."""
    if isinstance(found, ErrorCode):
        return PartitionData(partition_index=index, error_code=found)
    diverging = found.diverging_epoch
    return PartitionData(
        partition_index=index,
        high_watermark=found.high_watermark,
        log_start_offset=found.log_start_offset,
        diverging_epoch=None if diverging is None else EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
    )
