"""The requests of the control port of a cluster: its own, and for each broker those of a broker's control port.

Rules of this file:
    Brokers are stopped and started one after the other.
    Time and copies are left out: a member of a cluster follows the time of the machine, and others have replicas of its data.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import trio

from wirekafka.testing.cluster import TestCluster
from wirekafka.testing.control.forms import ClusterForm, HealthReport, NodeForm
from wirekafka.testing.control.routes import MOST_WAITS, ROUTES, Call, ConflictError, Control, NotFoundError, OpenPort, Route

LEFT_OUT = ("/clock", "/reset", "/snapshots", "/forks")


class ClusterControl:
    """A cluster and what was ordered through its control port.

    Attributes:
        waits: as in `Waiter`.

    Args:
        cluster: the cluster.
        nursery, open_port: as in `Control`.
    """

    def __init__(self, cluster: TestCluster, nursery: trio.Nursery, open_port: OpenPort) -> None:
        self.waits = trio.CapacityLimiter(MOST_WAITS)
        self._cluster = cluster
        self._nursery = nursery
        self._open_port = open_port
        self._controls: dict[int, Control] = {}
        self._changes = trio.Lock()

    def control_of(self, text: str) -> Control:
        """Returns what controls a broker since its last start.

        Raises:
            NotFoundError: there is no such broker.
            ConflictError: it does not run.
        """
        broker_id = self._find(text)
        if broker_id not in self._cluster.brokers:
            raise ConflictError(f"broker {broker_id} does not run")
        broker = self._cluster.embedded(broker_id)
        control = self._controls.get(broker_id)
        if control is None or control.broker is not broker:
            control = self._controls[broker_id] = Control(broker, self._nursery, self._open_port)
        return control

    def _find(self, text: str) -> int:
        """Returns the id in a path.

        Raises:
            NotFoundError: there is no such broker.
        """
        found = {str(broker_id): broker_id for broker_id in self._cluster.broker_ids}
        if text not in found:
            raise NotFoundError(f"there is no broker {text[:100]}")
        return found[text]

    async def cluster_health(self, call: Call) -> HealthReport:
        """Returns whether clients can use all brokers that run."""
        for broker_id, running in sorted(self._cluster.brokers.items()):
            if not running.health.is_ready:
                return HealthReport(True, False, f"broker {broker_id}: {running.health.reason}")
        return HealthReport(True, True)

    async def show_cluster(self, call: Call) -> ClusterForm:
        """Returns the brokers."""
        running = self._cluster.brokers
        return ClusterForm(
            self._cluster.bootstrap,
            [
                NodeForm(each, each in running, str(running[each].addresses[0]) if each in running else None)
                for each in self._cluster.broker_ids
            ],
        )

    async def stop_broker(self, call: Call) -> ClusterForm:
        """Stops a broker in order; does nothing if it does not run."""
        broker_id = self._find(call.names[0])
        async with self._changes:
            await self._cluster.stop(broker_id)
        return await self.show_cluster(call)

    async def start_broker(self, call: Call) -> ClusterForm:
        """Starts a broker; does nothing if it runs."""
        broker_id = self._find(call.names[0])
        async with self._changes:
            if broker_id not in self._cluster.brokers:
                await self._cluster.start(broker_id)
        return await self.show_cluster(call)

    async def expire_session(self, call: Call) -> ClusterForm:
        """Ends the session of a broker with ZooKeeper."""
        broker_id = self._find(call.names[0])
        try:
            self._cluster.expire_session(broker_id)
        except KeyError:
            raise ConflictError(f"broker {broker_id} is not registered") from None
        return await self.show_cluster(call)


def _at_broker(route: Route[Control]) -> Route[ClusterControl]:
    """Returns the request of a broker's control port as a request to one broker of a cluster."""

    @wraps(route.handle)
    async def handle(cluster: ClusterControl, call: Call) -> Any:
        broker, *names = call.names
        return await route.handle(cluster.control_of(broker), Call(tuple(names), call.form, call.until_gone))

    path = f"/brokers/{{broker}}{route.path}"
    return Route(
        route.method, path, route.summary, handle, route.gives, route.body, route.query, route.status, is_wait=route.is_wait
    )


OWN_ROUTES: tuple[Route[ClusterControl], ...] = (
    Route(
        "GET", "/health", "Whether clients can use the brokers that run: 200 or 503", ClusterControl.cluster_health, HealthReport
    ),
    Route("GET", "/cluster", "The addresses of the brokers, and which of them run", ClusterControl.show_cluster, ClusterForm),
    Route("POST", "/brokers/{broker}/stop", "Stops a broker in order; its faults end", ClusterControl.stop_broker, ClusterForm),
    Route("POST", "/brokers/{broker}/start", "Starts a broker on its former port", ClusterControl.start_broker, ClusterForm),
    Route(
        "POST",
        "/brokers/{broker}/expire-session",
        "Ends the session of a broker with ZooKeeper: the others take it for dead until it registers again",
        ClusterControl.expire_session,
        ClusterForm,
    ),
)

CLUSTER_ROUTES: tuple[Route[ClusterControl], ...] = (
    *OWN_ROUTES,
    *(_at_broker(route) for route in ROUTES if not route.path.startswith(LEFT_OUT)),
)
