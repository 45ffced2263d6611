"""Tells the controller that a data directory has failed, so that it elects other leaders for the partitions in it.

How it works: the broker creates a notification in ZooKeeper. The controller then sends a LeaderAndIsr for all replicas of the
broker, and the answer KAFKA_STORAGE_ERROR names those that are offline.

Source: ReplicaManager.handleLogDirFailure; kafka.zk.KafkaZkClient.propagateLogDirEvent; KIP-112.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from wirekafka.log.log import Log
from wirekafka.membership.retrying_client import Hint, RetryingClient
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.requests import write_log_dir_event
from wirekafka.zookeeper.session import ZooKeeperError


class DirectoryFailures:
    """Notifies the controller of partitions that go offline on this broker.

    Args:
        on_offline: the callbacks that get the logs that have gone offline (`LogManager.on_offline`).
    """

    def __init__(self, zookeeper: RetryingClient, on_offline: list[Callable[[list[Log]], object]], *, node_id: int) -> None:
        self._zookeeper = zookeeper
        self._node_id = node_id
        self._hint = Hint()
        on_offline.append(self._note)

    def _note(self, lost: Collection[Log]) -> None:
        if lost:
            self._hint.give()

    async def run(self) -> None:
        """Creates a notification after each failure, until it is cancelled. Two notifications of one failure do no harm.

        Raises:
            ZooKeeperError: ZooKeeper refuses the notification. `run` may be called again, and leaves it then.
        """
        while True:
            await self._hint.wait()
            try:
                await self._zookeeper.create_sequential(paths.LOG_DIR_EVENT_PREFIX, write_log_dir_event(self._node_id))
            except ZooKeeperError:
                self._hint.give()
                raise
