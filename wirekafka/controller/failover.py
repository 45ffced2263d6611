"""A new controller: it reads the cluster from ZooKeeper, and puts in order what has changed while there was no controller.

How it works: watches come before the first reads, so that no change is missed. All brokers are told the live brokers first,
because a broker follows only leaders that it knows. Then leaders are elected, and each broker gets one LeaderAndIsr with all its
replicas, the newly elected leaders first, and one UpdateMetadata with all partitions. Reassignments, deletions and elections that
tools have asked for are resumed last.

Source: kafka.controller.KafkaController (onControllerFailover, initializeControllerContext), ReplicaStateMachine.startup,
PartitionStateMachine.startup of Kafka 3.9.

Differs from Apache Kafka: a broker that was registered after the last change of a partition has restarted while nobody noticed,
and its log may have lost records. So has a broker whose epoch is not the one that this controller knew before its connection
broke. Such a broker leaves the in-sync replicas, unless all of them that are live have restarted. Apache Kafka lets it lead with
its former leader epoch. If all of them have restarted, as when a whole cluster was started, the state is written once more with
the next leader epoch, so that the next restart is later than the state. One restart stays unnoticed, as all do in Apache Kafka:
the former controller did not know of it yet, wrote the state of a partition, and died. ZooKeeper then has the registration before
the state, as if the state knew of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import structlog

from wirekafka.controller import deletion, reassignment
from wirekafka.controller.brokers import read_brokers
from wirekafka.controller.context import ControllerContext
from wirekafka.controller.features import set_up_features
from wirekafka.controller.partition_states import elect_offline, read_states, stored_state
from wirekafka.controller.replica_states import Replica, remove_from_isr, take_offline
from wirekafka.controller.requested_elections import look_at_elections
from wirekafka.controller.requests import SLICE, RequestBatch
from wirekafka.controller.scripts import PAUSE, Script, in_slices
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.topics import read_topics
from wirekafka.controller.writes import checked, raise_if_deposed, watch_children, write_states
from wirekafka.names import TopicPartition
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.topics import PartitionState
from wirekafka.zookeeper.session import Children, Data, Delete, GetChildren, GetData, ZooKeeperError

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Restarts:
    """The in-sync replicas that have restarted while nobody noticed.

    Attributes:
        some: the restarted in-sync replicas of partitions that have live ones which have not restarted.
        all: the partitions with several live in-sync replicas, all of which were registered after the last change of the state.
    """

    some: dict[TopicPartition, set[int]] = field(default_factory=dict)
    all: list[TopicPartition] = field(default_factory=list)

    def note(self, context: ControllerContext, name: TopicPartition, mzxid: int) -> None:
        """Notes the restarts of a partition whose state is in the context.

        A broker epoch above `mzxid` shows a restart after the last change. A controller may also decide a state before a restart
        and write it after the restart. The same controller then finds an epoch that differs from the settled one.

        Args:
            mzxid: the transaction that wrote the state. A broker epoch is the transaction that registered the broker.
        """
        epochs = {each: context.live[each].epoch for each in context.states[name].state.isr if each in context.live}
        restarted = {each for each, epoch in epochs.items() if epoch > mzxid or epoch != context.settled_epochs.get(each)}
        if len(restarted) < len(epochs):
            if restarted:
                self.some[name] = restarted
        elif len(epochs) > 1 and min(epochs.values()) > mzxid:
            self.all.append(name)


# Reading


def read_cluster(context: ControllerContext, settings: ControllerSettings, settled_epochs: Mapping[int, int]) -> Script[Restarts]:
    """Reads brokers, topics, states and requests for deletions into an empty context, and leaves watches.

    Args:
        settled_epochs: those of the former context, if the controller reads the cluster once more; otherwise empty.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: the connection is lost.
    """
    yield from set_up_features(context, settings)
    yield from _delete_notifications(context)
    context.live = yield from read_brokers()
    context.settled_epochs = dict(settled_epochs)
    if not settled_epochs:
        context.settle_epochs()
    children: Children = yield GetChildren(paths.TOPICS, watch=True)
    for topic in (yield from read_topics(context, children.names)):
        context.put_topic(topic)
        yield PAUSE
    yield from deletion.read_deletions(context, settings)
    restarts = yield from _read_states(context)
    log.info(
        "The controller has read the cluster",
        epoch=context.epoch,
        live=[*context.live],
        topics=len(context.topics),
        partitions=len(context.states),
    )
    return restarts


def _delete_notifications(context: ControllerContext) -> Script[None]:
    """Deletes what a former controller was told: the new one reads all states, and asks all brokers for their replicas."""
    old: list[str] = []
    for parent in (paths.ISR_CHANGES, paths.LOG_DIR_EVENTS):
        children = yield from watch_children(context, parent)
        old += [f"{parent}/{name}" for name in children.names]
    for outcome in (yield [checked(context, [Delete(path)]) for path in old]):
        raise_if_deposed(outcome)


def _read_states(context: ControllerContext) -> Script[Restarts]:
    names = yield from in_slices(context.all_partitions())
    found: list[Data | ZooKeeperError] = yield [GetData(paths.partition_state(name)) for name in names]
    restarts = Restarts()
    for count, (name, each) in enumerate(zip(names, found, strict=True), 1):
        stored = stored_state(name, each)
        if stored is not None and isinstance(each, Data):
            context.states[name] = stored
            restarts.note(context, name, each.stat.mzxid)
        if count % SLICE == 0:
            yield PAUSE
    return restarts


# Taking over


def take_over(context: ControllerContext, batch: RequestBatch, settings: ControllerSettings, restarts: Restarts) -> Script[None]:
    """Elects leaders where there are none, tells all brokers everything, and resumes what was in progress.

    Raises:
        DeposedError: another broker has the next epoch.
        ZooKeeperError: an outcome is unknown.
    """
    batch.update_metadata(context.live)
    yield from batch.send()
    if restarts.some:
        log.info("Brokers have restarted while there was no controller", partitions=len(restarts.some))
        yield from remove_from_isr(context, batch, restarts.some)
    yield from _renew(context, restarts.all)
    context.settle_epochs()
    yield from elect_offline(context, batch, settings)
    offline = yield from in_slices(_replicas(context), lambda replica: replica[1] not in context.live)
    yield from take_offline(context, batch, [each for each in offline if not context.is_deleting(each[0].topic)])
    yield from _tell_all(context, batch)
    yield from batch.send()
    yield from reassignment.take_over(context, batch)
    yield from deletion.resume(context, batch, list(context.deleting))
    yield from look_at_elections(context, batch)
    yield from batch.send()


def _renew(context: ControllerContext, names: Iterable[TopicPartition]) -> Script[None]:
    """Writes states with the next leader epochs, which `_tell_all` announces."""
    states: dict[TopicPartition, PartitionState] = {}
    for count, name in enumerate(names, 1):
        state = context.states[name].state
        states[name] = replace(state, leader_epoch=state.leader_epoch + 1)
        if count % SLICE == 0:
            yield PAUSE
    refused = yield from write_states(context, states)
    yield from read_states(context, refused)


def _replicas(context: ControllerContext) -> Iterator[Replica]:
    for name in context.all_partitions():
        for broker_id in context.replicas(name):
            yield name, broker_id


def _tell_all(context: ControllerContext, batch: RequestBatch) -> Script[None]:
    """Tells each broker all its replicas, and all partitions."""
    for count, name in enumerate(list(context.states), 1):
        if context.is_deleting(name.topic):
            batch.update_metadata(context.live, [name])
        else:
            online = [broker_id for broker_id in context.replicas(name) if context.is_online(broker_id, name)]
            batch.leader_and_isr(online, name)
        if count % SLICE == 0:
            yield PAUSE
