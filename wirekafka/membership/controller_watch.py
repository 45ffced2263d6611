"""Watches the id of the controller in the znode `/controller`.

Source: kafka.controller.KafkaController (ControllerChangeHandler, maybeResign) of a broker that is not the controller.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from wirekafka.errors import KafkaError
from wirekafka.faults import isolate
from wirekafka.membership.cluster_id import check_controller
from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.layout.membership import ControllerRegistration
from wirekafka.zookeeper.session import Exists, GetData

log = structlog.get_logger(__name__)


class ControllerWatch:
    """Watches the controller.

    Args:
        on_change: called with the id of the controller after each read; None while there is none that this broker can use.
    """

    def __init__(self, zookeeper: RetryingClient, on_change: Callable[[int | None], object]) -> None:
        self._zookeeper = zookeeper
        self._on_change = on_change
        self._hint = zookeeper.hint(paths.CONTROLLER)

    async def run(self) -> None:
        """Reads the id after each change, until it is cancelled.

        Raises:
            ZooKeeperError: ZooKeeper refuses a request. `run` may be called again.
        """
        while True:
            # `Exists` also watches a znode that does not exist, and fires for changes of its data.
            await self._zookeeper.ask(Exists(paths.CONTROLLER, watch=True))
            controller_id = await self._read()
            with isolate("A change of the controller could not be handled"):
                self._on_change(controller_id)
            await self._hint.wait()

    async def _read(self) -> int | None:
        found = await self._zookeeper.find(GetData(paths.CONTROLLER))
        if found is None:
            return None
        try:
            controller = ControllerRegistration.read(found.data)
            check_controller(controller)
        except MalformedZnodeError as error:
            remedy = f"delete {paths.CONTROLLER} if no broker has written it; the brokers then elect a controller"
            log.error("The znode of the controller cannot be read; this broker has none", error=str(error), remedy=remedy)
            return None
        except KafkaError as error:
            remedy = "stop this broker, or end the migration to KRaft; this broker cannot start again in this cluster"
            log.error("The cluster has a controller that this broker cannot use", error=str(error), remedy=remedy)
            return None
        return controller.broker_id
