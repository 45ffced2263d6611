"""The pass over the partitions of a consumer's Fetch in a cluster: from the leader, or from a follower (KIP-392).

How it works: since version 11, a consumer may read from any replica. A follower has records up to its own high watermark, which
is at most the leader's. The leader names a replica that is nearer to the consumer, if `replica.selector.class` is the rack-aware
selector, in an answer without records, which does not wait.

Source: kafka.server.ReplicaManager (readFromLog, findPreferredReadReplica), kafka.cluster.Partition.localLogWithEpochOrThrow,
org.apache.kafka.server.storage.log.FetchParams.fetchOnlyLeader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirekafka.api.fetch.fetch_pass import FetchPass, partition_data
from wirekafka.config.cluster_table import RACK_AWARE_SELECTOR
from wirekafka.errors import KafkaError
from wirekafka.replication.replica_selection import preferred_read_replica

if TYPE_CHECKING:
    from wirekafka.api.registry import Call
    from wirekafka.broker import Broker
    from wirekafka.replication.fetch_sessions import Asked
    from wirekafka.replication.partition import Partition
    from wirekafka.wire.messages.fetch import FetchRequest, PartitionData

FIRST_VERSION_WITH_RACK = 11


class MemberFetchPass(FetchPass):
    """One pass over the partitions of a consumer's fetch."""

    __slots__ = ("_rack",)

    def __init__(self, broker: Broker, call: Call[FetchRequest]) -> None:
        super().__init__(broker, call)
        self._rack = ""
        if call.version >= FIRST_VERSION_WITH_RACK:
            self.only_leader = False
            if broker.config.get("replica.selector.class") == RACK_AWARE_SELECTOR:
                self._rack = call.request.rack_id

    def read(self, partition: Partition, asked: Asked) -> PartitionData:
        """Reads one partition within the remaining limits, or names a replica that is nearer to the consumer."""
        if self._rack:
            try:
                preferred = self._preferred(partition, asked)
            except KafkaError as error:
                return self.refuse(asked.partition, error.code, partition)
            if preferred is not None:
                return self._point_to(preferred, partition, asked)
        return super().read(partition, asked)

    def _preferred(self, partition: Partition, asked: Asked) -> int | None:
        """Returns the follower that the consumer should read from; None if it should read here.

        Raises:
            KafkaError: as `Broker.check_hosts`.
        """
        broker = self._broker
        leader, member = broker.leader_replicas.get(partition), broker.member
        if leader is None or member is None:
            return None
        broker.check_hosts(partition, asked.current_leader_epoch)
        image, listener = member.image, self._call.client.listener

        def rack_of(broker_id: int) -> str | None:
            node = image.node(broker_id, listener)
            return None if node is None else node.rack

        return preferred_read_replica(leader.leadership, self._rack, asked.fetch_offset, rack_of, broker.clock.monotonic_ms())

    def _point_to(self, broker_id: int, partition: Partition, asked: Asked) -> PartitionData:
        self.must_answer = True
        log = partition.log
        data = partition_data(asked.partition, log.high_watermark, log.last_stable_offset, log.log_start_offset, None, b"")
        data.preferred_read_replica = broker_id
        return data


MemberFetchPass.after_wait = MemberFetchPass
