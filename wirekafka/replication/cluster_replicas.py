"""The replicas of a member of a cluster, which take their roles from the controller.

How it works: a LeaderAndIsr names partitions with their leaders and in-sync replicas, a StopReplica those that the broker gives
up. Each partition is one step of the work, which changes the role of the partition completely. So a request for 10,000 partitions
does not hold the loop. The settings of topics that are new here are read before their logs are created.

Rules of this file:
    Requests of an old controller change nothing, even if the first request of a newer controller arrives between two steps. The
    caller lets no two requests interleave (`controller_queue`).
    A partition takes a state of a newer leader epoch only. In the same leader epoch a leader takes a state of a newer partition
    epoch, and proposes a change of unknown outcome again (see `leadership`).

Differs from Apache Kafka:
    A replica becomes a follower even if its leader is not among the live brokers, and connects once the leader is. In Apache
    Kafka the partition keeps its former role until the controller sends another leader epoch.
    A leader that is stopped without a deletion does not lead any more. In Apache Kafka it leads until the next request.
    A coordinator whose partition goes offline resigns. In Apache Kafka the coordinator keeps its groups and transactions until
    the broker stops, beside the coordinator of the new leader.
    A partition gets INCONSISTENT_TOPIC_ID if another topic with a replica on this broker has its topic id. Apache Kafka does not
    check this.
    A state of an older partition epoch than the replica has gets STALE_CONTROLLER_EPOCH. Apache Kafka answers NONE, and does not
    take the state either.
    After a pause of the process, the lag of followers is not checked for one second. In Apache Kafka the check races with the
    threads that read the waiting fetches.
    After a LeaderAndIsr of type FULL from any controller, the partitions that it does not name are strays. In Apache Kafka only
    KRaft controllers set the type.

Source: kafka.server.ReplicaManager (becomeLeaderOrFollower, stopReplicas, maybeShrinkIsr, handleLogDirFailure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate, log_once
from wirekafka.metadata.image import MOST_REPLICAS
from wirekafka.metadata.topic_names import check_topic_name, is_valid_topic_name
from wirekafka.names import ZERO_TOPIC_ID, TopicPartition
from wirekafka.pending import Pending, Work
from wirekafka.replication.controller_order import ControllerOrder
from wirekafka.replication.controller_requests import (
    FULL,
    NO_EPOCHS,
    LeaderAndIsrAnswer,
    Stop,
    TopicState,
    few_states,
    refusal,
    stops,
    topic_states,
)
from wirekafka.replication.hosted_replica import HostedReplica, HostedTopics, Roles
from wirekafka.replication.leader_replica import IsrChanges, LeaderReplica, Propose
from wirekafka.replication.leadership import PartitionState
from wirekafka.replication.partition import Partition
from wirekafka.replication.replica_fetcher import Timer, Timers
from wirekafka.replication.topic_ids import TopicIds
from wirekafka.wire.messages.leader_and_isr import LeaderAndIsrPartitionState, LeaderAndIsrRequest, LeaderAndIsrResponse
from wirekafka.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig, LogConfig
    from wirekafka.log.log import Log
    from wirekafka.replication.replica_fetcher import ReplicaFetchers

log = structlog.get_logger(__name__)

MOST_NAMED = 10
"""The most partitions that a line of the log names."""

LAG_FAILURE = "The lag of followers could not be checked"
BROKERS_FAILURE = "The death of a broker could not be taken into account"

OnLeader = Callable[[Partition], object]
OnResigned = Callable[[Partition, int | None], object]
"""Called with the partition, and the leader epoch that ended this broker's role; None if the topic is being deleted."""


class ExpiryTimers(Timers, Protocol):
    """Timers that give a grace after a pause of the process; `wirekafka.clock.Clock`."""

    def expire_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        """Calls back once; after a pause of the process, once the requests that wait were read."""


class Runner(Protocol):
    """Runs work in slices, as `Slices` does."""

    def run(self, work: Work[Any]) -> Any:
        """Runs the work; returns its result, or a Pending of it."""


class HostedLogs(Protocol):
    """The logs of a broker, as far as its replicas need them; `wirekafka.log.manager.LogManager`."""

    @property
    def on_offline(self) -> list[Callable[[list[Log]], object]]:
        """The callbacks that get the logs that have gone offline."""

    def get(self, topic_partition: TopicPartition, /) -> Log | None:
        """Returns the log of a partition; None if there is none."""

    def create(self, topic_partition: TopicPartition, topic_id: bytes, config: LogConfig, *, is_new: bool) -> Log:
        """Creates a log."""

    def assign_topic_id(self, found: Log, topic_id: bytes, /) -> None:
        """Writes the topic id to the folder of a log that names none."""

    def delete(self, topic_partition: TopicPartition, /) -> None:
        """Deletes a log."""

    def finish_deletion(self, topic_partition: TopicPartition, /) -> None:
        """Goes on with a deletion that has failed; does nothing if there is none."""

    def rename_strays(self, assigned: Mapping[TopicPartition, bytes], /) -> Work[list[TopicPartition]]:
        """Renames the folders of partitions that are not assigned, and forgets their logs."""


class TopicConfigs(Protocol):
    """The settings of topics in ZooKeeper."""

    def read(self, topics: Collection[str]) -> Pending[None]:
        """Reads the settings of topics, and gives them to the table of topics. The result is an exception if that fails."""


class ClusterReplicas:
    """The replicas of one broker.

    Args:
        config: `replica.lag.time.max.ms` is read from it.
        topics: the table of topics.
        fetchers: fetch from leaders; their followers write the logs.
        slices: runs long work.
        propose: sends a change of in-sync replicas to the controller.
        live_brokers: the live brokers with their epochs, None for an unknown epoch; its owner keeps it current.
        configs: reads the settings of topics.
        leader_replicas: is filled with the leaders on this broker, by their partitions.

    Attributes:
        controller_epoch: the epoch of the newest controller that has sent a request; 0 if none has.
        controller_order: tells the handlers which requests are older than one that the broker has executed.
        isr_changes: counts the changes of in-sync replicas.
        on_leader: called with each partition that this broker leads and did not lead before.
        on_follower: called with each partition that this broker follows in a new leader epoch, and the epoch.
        on_stopped: called with each partition whose replica is stopped or deleted, and the leader epoch if the request has one;
            and with each partition whose log has gone offline.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: ExpiryTimers,
        logs: HostedLogs,
        topics: HostedTopics,
        fetchers: ReplicaFetchers,
        slices: Runner,
        *,
        node_id: int,
        propose: Propose,
        live_brokers: Mapping[int, int | None],
        configs: TopicConfigs,
        leader_replicas: dict[Partition, LeaderReplica],
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._topics = topics
        self._fetchers = fetchers
        self._slices = slices
        self._node_id = node_id
        self._propose = propose
        self._live_brokers = live_brokers
        self._configs = configs
        self._leader_replicas = leader_replicas
        self._max_lag_ms = config.integer("replica.lag.time.max.ms")
        self._roles = Roles(node_id, topics, fetchers, leader_replicas, self._make_leader)
        self._replicas: dict[TopicPartition, HostedReplica] = {}
        self._failures: dict[str, str] = {}
        """Why partitions did not take their roles, which is not logged yet."""
        self._topic_ids = TopicIds()
        self._lag_timer: Timer | None = None
        self._is_closed = False
        self.controller_epoch = 0
        self.controller_order = ControllerOrder()
        self.isr_changes = IsrChanges()
        self.on_leader: list[OnLeader] = []
        self.on_follower: list[OnResigned] = []
        self.on_stopped: list[OnResigned] = []
        logs.on_offline.append(self._take_offline)

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[HostedReplica]:
        """Iterates over the replicas; the caller may add and remove some meanwhile."""
        return iter([*self._replicas.values()])

    def start(self) -> None:
        """Checks the lag of followers every half of `replica.lag.time.max.ms` from now on."""
        if not self._is_closed:
            # After a pause of this process, the fetches that wait in the sockets are read first.
            self._lag_timer = self._clock.expire_later(self._max_lag_ms / 2, self._check_lag)

    def close(self) -> None:
        """Stops all followers. Later requests take no roles. The partitions close with the table of topics."""
        self._is_closed = True
        if self._lag_timer is not None:
            self._lag_timer.cancel()
        self._fetchers.close()

    def find(self, name: TopicPartition) -> HostedReplica | None:
        """Returns the replica of a partition; None if no request of the controller has named one."""
        return self._replicas.get(name)

    def _make_leader(self, partition: Partition) -> LeaderReplica:
        return LeaderReplica(
            partition,
            replica_lag_time_max_ms=self._max_lag_ms,
            broker_epochs=self._live_brokers,
            propose=self._propose,
            now_ms=self._clock.monotonic_ms,
            isr_changes=self.isr_changes,
        )

    # LeaderAndIsr

    def apply(
        self, request: LeaderAndIsrRequest, is_stale: Callable[[], bool] = lambda: False
    ) -> Work[LeaderAndIsrResponse | Pending[Any]]:
        """Takes the roles of a LeaderAndIsr, one partition in each step.

        Args:
            is_stale: returns whether the request is meant for an earlier registration of this broker. The broker may register
                again while settings are read.

        Returns:
            The response, or a Pending of it if settings must be read first.
        """
        if self._is_old(request):
            return (yield from refusal(request, ErrorCode.STALE_CONTROLLER_EPOCH))
        self.controller_epoch = request.controller_epoch
        if request.type == FULL:
            yield from self._put_strays_aside(request)
        new_topics = yield from self._new_topics(request)
        if not new_topics:
            return (yield from self._apply(request))
        return self._configs.read(new_topics).map(lambda result: self._after_reading(request, is_stale(), result))

    def _new_topics(self, request: LeaderAndIsrRequest) -> Work[Collection[str]]:
        """Returns the topics of which this broker gets partitions that it does not have."""
        found: dict[str, None] = {}
        for topic, states in few_states(request):
            if topic.name not in found and any(self._is_new(topic.name, state) for state in states):
                found[topic.name] = None
            yield
        return found

    def _is_new(self, topic: str, state: LeaderAndIsrPartitionState) -> bool:
        name = TopicPartition(topic, state.partition_index)
        return name not in self._replicas and self._node_id in state.replicas and is_valid_topic_name(topic)

    def _after_reading(self, request: LeaderAndIsrRequest, is_stale: bool, result: object) -> Any:
        if is_stale:
            return self._slices.run(refusal(request, ErrorCode.STALE_BROKER_EPOCH))
        if isinstance(result, Exception):
            log.warning(
                "The broker refused a LeaderAndIsr, because the settings of its new topics cannot be read from ZooKeeper",
                error=str(result),
            )
            return self._slices.run(refusal(request, ErrorCode.UNKNOWN_SERVER_ERROR))
        return self._slices.run(self._apply(request))

    def _is_old(self, request: LeaderAndIsrRequest | StopReplicaRequest) -> bool:
        is_old = request.controller_epoch < self.controller_epoch
        if is_old:
            log.warning(
                "The broker refused the request of an old controller",
                controller=request.controller_id,
                epoch=request.controller_epoch,
                newest=self.controller_epoch,
            )
        return is_old

    def _apply(self, request: LeaderAndIsrRequest) -> Work[LeaderAndIsrResponse]:
        answer = LeaderAndIsrAnswer()
        for topic in topic_states(request):
            for state in topic.partitions:
                answer.add(topic, state.partition_index, self._take_state(request, topic, state))
                yield
        failures, self._failures = self._failures, {}
        if failures:
            first = dict(islice(failures.items(), MOST_NAMED))
            log.warning("Replicas did not take their roles", count=len(failures), first=first)
        count = len(answer.response.partition_errors)
        log.info("The replicas have taken their roles", controller=request.controller_id, partition_count=count)
        return answer.response

    def _take_state(self, request: LeaderAndIsrRequest, topic: TopicState, state: LeaderAndIsrPartitionState) -> ErrorCode:
        """Takes the role of one partition; returns the answer. The replica has stopped if its role cannot be taken.

        A broker that stops takes no role, because its fetchers have ended (ReplicaManager.isShuttingDown).
        """
        name = TopicPartition(topic.name, state.partition_index)
        if self._is_closed or request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        try:
            _check_name(name)
            replica = self._replicas.get(name)
            self._check_topic(name, topic.topic_id)
            if replica is not None and state.leader_epoch == replica.leader_epoch:
                return self._repeat(replica, topic.topic_id, state, is_kraft=request.is_kraft_controller)
            error = self._refusal(replica, state)
            if error:
                return error
            self._take_role(replica or self._host(name, topic.topic_id, is_new=state.is_new), topic.topic_id, state)
        except KafkaError as error:
            self._failures[str(name)] = str(error)
            return ErrorCode(error.code)
        except Exception as error:  # noqa: BLE001 - costs the role of one partition
            log_once(error, "A replica could not take its role", partition=str(name))
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _refusal(self, replica: HostedReplica | None, state: LeaderAndIsrPartitionState) -> ErrorCode:
        """Returns why a state is not taken; NONE if it may be taken."""
        leader_epoch, partition_epoch = (0, 0) if replica is None else (replica.leader_epoch, replica.partition_epoch)
        if state.leader_epoch < leader_epoch or state.partition_epoch < max(partition_epoch, 0):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(state.replicas) > MOST_REPLICAS or len(state.isr) > MOST_REPLICAS:
            return ErrorCode.INVALID_REPLICATION_FACTOR
        return ErrorCode.NONE

    def _check_topic(self, name: TopicPartition, topic_id: bytes) -> None:
        """Raises unless no other topic has the id, and the log of the partition, if there is one, works and belongs to the topic.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, INCONSISTENT_TOPIC_ID.
        """
        self._topic_ids.check(name.topic, topic_id)
        found = self._logs.get(name)
        if found is None:
            return
        found.reader.check_online()
        if topic_id != ZERO_TOPIC_ID and found.reader.topic_id not in (None, topic_id):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"the folder of {name} belongs to another topic of this name")

    def _host(self, name: TopicPartition, topic_id: bytes, *, is_new: bool) -> HostedReplica:
        """Returns a replica without a role yet, with its log, which is created if there is none.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        config = self._topics.log_config_of(name.topic)
        found = self._logs.get(name)
        if found is None:
            found = self._logs.create(name, topic_id, config, is_new=is_new)
            found.reader.check_online()
        else:
            found.update_config(config)
        replica = self._replicas[name] = HostedReplica(self._roles, name, topic_id, found)
        self._topic_ids.add(name.topic, topic_id)
        return replica

    def _take_role(self, replica: HostedReplica, topic_id: bytes, state: LeaderAndIsrPartitionState) -> None:
        self._take_topic_id(replica, topic_id)
        decided = state_of(state)
        if state.leader != self._node_id:
            replica.follow(state.leader, decided)
            self._call(self.on_follower, replica.partition, state.leader_epoch)
        elif replica.lead(decided):
            self._call(self.on_leader, replica.partition)

    def _take_topic_id(self, replica: HostedReplica, topic_id: bytes) -> bool:
        """Gives a replica the id of its topic; returns whether it had none before."""
        if topic_id == ZERO_TOPIC_ID:
            return False
        has_none = replica.log.reader.topic_id is None
        if has_none:
            self._logs.assign_topic_id(replica.log, topic_id)
        if replica.topic_id != topic_id:
            self._topic_ids.remove(replica.topic_id)
            self._topic_ids.add(replica.name.topic, topic_id)
            replica.take_topic_id(topic_id)
        return has_none

    def _repeat(self, replica: HostedReplica, topic_id: bytes, state: LeaderAndIsrPartitionState, *, is_kraft: bool) -> ErrorCode:
        """Takes a state in the leader epoch that the replica already has."""
        is_news = self._take_topic_id(replica, topic_id) or is_kraft
        if replica.leader is not None and state.leader == self._node_id and not self._refusal(replica, state):
            is_news |= state.partition_epoch > replica.leader.leadership.partition_epoch
            replica.lead(state_of(state))
        return ErrorCode.NONE if is_news else ErrorCode.STALE_CONTROLLER_EPOCH

    def _put_strays_aside(self, request: LeaderAndIsrRequest) -> Work[None]:
        """Renames the folders of partitions that the request, which names all partitions of this broker, does not name."""
        assigned: dict[TopicPartition, bytes] = {}
        for topic, states in few_states(request):
            assigned.update((TopicPartition(topic.name, state.partition_index), topic.topic_id) for state in states)
            yield
        for name, replica in [*self._replicas.items()]:
            if name not in assigned or replica.topic_id not in (ZERO_TOPIC_ID, assigned[name]):
                self._remove(replica, None)
            yield
        yield from self._logs.rename_strays(assigned)

    # StopReplica

    def stop(self, request: StopReplicaRequest) -> Work[StopReplicaResponse]:
        """Stops replicas, and deletes those logs that the request says, one partition in each step."""
        if self._is_old(request):
            return StopReplicaResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        errors = []
        for each in stops(request):
            topic, index = each.name
            is_old = request.controller_epoch < self.controller_epoch
            error = ErrorCode.STALE_CONTROLLER_EPOCH if is_old else self._stop(each)
            errors.append(StopReplicaPartitionError(topic_name=topic, partition_index=index, error_code=error))
            yield
        return StopReplicaResponse(partition_errors=errors)

    def _stop(self, stopped: Stop) -> ErrorCode:
        name, leader_epoch, is_deletion = stopped
        replica, found = self._replicas.get(name), self._logs.get(name)
        if found is not None and found.reader.offline_reason is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        has_epoch = leader_epoch not in NO_EPOCHS
        if replica is not None and has_epoch and leader_epoch < replica.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        known_epoch = leader_epoch if has_epoch else None
        try:
            if replica is not None:
                self._end(replica, known_epoch, is_deletion=is_deletion)
            if is_deletion:
                self._delete(name, found)
        except KafkaError as error:
            return ErrorCode(error.code)
        except Exception as error:  # noqa: BLE001 - costs the answer for one partition
            log_once(error, "A replica could not be stopped", partition=str(name))
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _delete(self, name: TopicPartition, found: Log | None) -> None:
        """Deletes the log, or goes on with a deletion that has failed; the controller asks again after an error."""
        if found is None:
            self._logs.finish_deletion(name)
        else:
            self._logs.delete(name)

    def _end(self, replica: HostedReplica, leader_epoch: int | None, *, is_deletion: bool) -> None:
        if is_deletion:
            self._remove(replica, leader_epoch)
        else:
            replica.stop()
            self._call(self.on_stopped, replica.partition, leader_epoch)

    def _remove(self, replica: HostedReplica, leader_epoch: int | None) -> None:
        del self._replicas[replica.name]
        self._topic_ids.remove(replica.topic_id)
        replica.remove()
        self._call(self.on_stopped, replica.partition, leader_epoch)

    # Lag, disks and coordinators

    def _check_lag(self) -> None:
        checked: object = None
        with isolate(LAG_FAILURE):
            checked = self._slices.run(self._visit_leaders(lambda leader: leader.check_lag(), LAG_FAILURE))
        if isinstance(checked, Pending):
            checked.then(self._end_lag_check)
        else:
            self.start()

    def _end_lag_check(self, result: object) -> None:
        if isinstance(result, Exception):
            log_once(result, LAG_FAILURE)
        self.start()

    def note_brokers(self) -> None:
        """Notes that the live brokers have changed, which all leaders take into account in slices."""
        with isolate(BROKERS_FAILURE):
            noting = self._slices.run(self._visit_leaders(lambda leader: leader.note_brokers(), BROKERS_FAILURE))
            if isinstance(noting, Pending):
                noting.then(lambda result: log_once(result, BROKERS_FAILURE) if isinstance(result, Exception) else None)

    def _visit_leaders(self, act: Callable[[LeaderReplica], None], failure: str) -> Work[None]:
        """Calls `act` with each leader, one at each step; what it raises is logged as `failure`."""
        for replica in self:
            if replica.leader is not None:
                with isolate(failure, partition=str(replica.name)):
                    act(replica.leader)
            yield

    def _take_offline(self, lost: Collection[Log]) -> None:
        for each in lost:
            replica = self._replicas.get(each.topic_partition)
            if replica is not None and replica.log is each:
                replica.go_offline()
                # In a later turn: the failed append may be a coordinator's, which needs its state until the append returns.
                self._clock.call_later(0, partial(self._call, self.on_stopped, replica.partition, None))

    def _call(self, callbacks: list[Callable[..., object]], partition: Partition, *arguments: object) -> None:
        for callback in callbacks:
            with isolate("The change of a role could not be handled", partition=str(partition.topic_partition)):
                callback(partition, *arguments)


def _check_name(name: TopicPartition) -> None:
    """Raises unless a partition may have this name, which becomes the name of a folder.

    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS.
    """
    check_topic_name(name.topic)
    if name.partition < 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"the index of a partition is {name.partition}")


def state_of(state: LeaderAndIsrPartitionState) -> PartitionState:
    """Returns the state of a partition in a LeaderAndIsr as `Leadership` takes it."""
    return PartitionState(state.leader_epoch, state.partition_epoch, tuple(state.replicas), tuple(state.isr))
