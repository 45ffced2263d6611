"""What the group coordinator of a cluster does with the state of share groups, which other brokers may have.

How it works: the state of a partition to which a group subscribes is initialized in the background, and a later heartbeat makes
the partition assignable. A deletion or a new start offset is sent first, and the group's record follows once all is stored.

Source: GroupCoordinatorService (persisterInitialize, alterShareGroupOffsets, deleteShareGroupOffsets, deleteGroups,
describeShareGroupOffsets) of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import structlog

from wirekafka.coordinator.share_state.coordinator import Summary
from wirekafka.coordinator.share_state.operations import DELETE, INITIALIZE, SUMMARIZE
from wirekafka.coordinator.share_state.persister import SharePersister, gather
from wirekafka.coordinator.share_state.records import ShareKey
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.names import TopicPartition
from wirekafka.pending import Pending

if TYPE_CHECKING:
    from wirekafka.coordinator.groups.share.group import ShareGroup
    from wirekafka.coordinator.groups.share.records import InitializedTopics
    from wirekafka.coordinator.share_delivery.latest_offsets import LatestOffsets, Offsets

log = structlog.get_logger(__name__)

TIMEOUT_MS = 10_000
"""How long an operation is tried before the client gets its error."""

INITIALIZATION_TIMEOUT_MS = 30_000
"""How long an initialization in the background is tried; the next heartbeat begins another one."""


class LookedUp(NamedTuple):
    """The progress of share partitions.

    Attributes:
        summaries: what the share coordinators say of each share partition, or the error.
        latest: the latest offset of each partition, or the error.
    """

    summaries: Mapping[ShareKey, Summary | KafkaError]
    latest: Offsets


class ClusterShareStates:
    """The operations of one group coordinator.

    Args:
        latest_offsets: asks for the latest offsets of partitions.
    """

    def __init__(self, persister: SharePersister, latest_offsets: LatestOffsets) -> None:
        self._persister = persister
        self._latest_offsets = latest_offsets

    def begin_initializing(self, group: ShareGroup) -> None:
        """Begins to initialize the partitions to which a group subscribes and that have no state."""
        for topic_id, (_, partitions) in group.uninitialized().items():
            for index in partitions:
                key = ShareKey(group.group_id, topic_id, index)
                if key not in group.initializing:
                    group.initializing[key] = False
                    self._initialize(key, None, group.group_epoch, INITIALIZATION_TIMEOUT_MS).then(
                        partial(_note_initialized, group, key)
                    )

    def initialized(self, group: ShareGroup | None, wanted: InitializedTopics) -> InitializedTopics:
        """Returns those of the wanted partitions that have state now."""
        if group is None:
            return {}
        found: InitializedTopics = {}
        for topic_id, (name, partitions) in wanted.items():
            ready = frozenset(
                each for each in partitions if group.initializing.get(ShareKey(group.group_id, topic_id, each), False)
            )
            if ready:
                found[topic_id] = name, ready
        return found

    def reset(self, start_offsets: Mapping[ShareKey, int | None], state_epoch: int) -> Pending[KafkaError | None]:
        """Sets the start offsets of share partitions; returns a Pending of the first error, None if all are set."""
        return _first_error(
            {key: self._initialize(key, offset, state_epoch, TIMEOUT_MS) for key, offset in start_offsets.items()}
        )

    def delete(self, keys: Iterable[ShareKey]) -> Pending[KafkaError | None]:
        """Deletes the states of share partitions; returns a Pending of the first error, None if all are deleted."""
        return _first_error({key: self._persister.submit(DELETE, key, timeout_ms=TIMEOUT_MS) for key in keys})

    def look_up(self, wanted: Mapping[ShareKey, TopicPartition]) -> Pending[LookedUp]:
        """Returns a Pending of the progress of share partitions, each with the name of its partition."""

        def ask_latest(summaries: dict[ShareKey, Summary | KafkaError]) -> Pending[LookedUp]:
            begun = [name for key, name in wanted.items() if has_progress(summaries[key])]
            return self._latest_offsets.ask(begun).map(lambda latest: LookedUp(summaries, latest))

        return gather({key: self._persister.submit(SUMMARIZE, key, timeout_ms=TIMEOUT_MS) for key in wanted}).map(ask_latest)

    def _initialize(
        self, key: ShareKey, start_offset: int | None, state_epoch: int, timeout_ms: int
    ) -> Pending[KafkaError | None]:
        return self._persister.submit(INITIALIZE, key, timeout_ms=timeout_ms, state_epoch=state_epoch, start_offset=start_offset)


def has_progress(summary: Summary | KafkaError) -> bool:
    """Whether the lag of a share partition can be known."""
    return isinstance(summary, Summary) and summary.start_offset is not None and summary.delivery_complete_count is not None


def _note_initialized(group: ShareGroup, key: ShareKey, error: KafkaError | None) -> None:
    if error is None or error.code is ErrorCode.FENCED_STATE_EPOCH:  # it has a state of a later epoch
        group.initializing[key] = True
        return
    del group.initializing[key]
    log.warning(
        "The state of a share partition cannot be initialized; the next heartbeat of its group tries it again",
        share_partition=str(key),
        error=str(error),
    )


def _first_error(pending: dict[ShareKey, Pending[KafkaError | None]]) -> Pending[KafkaError | None]:
    return gather(pending).map(lambda results: next((each for each in results.values() if each is not None), None))
