"""The session of a broker with ZooKeeper, and the broker's registration.

Source: kafka.zk.KafkaZkClient.registerBroker, CheckedEphemeral (KAFKA-7165).
"""

from __future__ import annotations

from collections.abc import Callable

from wirekafka.config.endpoints import Listener
from wirekafka.controller.scripts import Script, run_script
from wirekafka.simulation.dice import Dice
from wirekafka.simulation.events import MS, Process
from wirekafka.simulation.options import Options
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import BrokerRegistration, Endpoint
from wirekafka.zookeeper.model.client import Fault, ModelClient, Step
from wirekafka.zookeeper.model.server import ModelServer
from wirekafka.zookeeper.session import Create, Data, Delete, GetData, SessionState, ZooKeeperError, ZooKeeperErrorCode

RETRY_US = 200 * MS


class Registration:
    """Keeps a broker registered.

    Args:
        on_registered: is called with the broker epoch of each new registration.
        on_state: is called with each state of the session that the broker must know, after the registration has seen it.

    Attributes:
        client: the session.
        epoch: the broker epoch, also while the session is suspended or has expired unnoticed; None before the first registration.
    """

    def __init__(
        self,
        broker_id: int,
        process: Process,
        server: ModelServer,
        dice: Dice,
        options: Options,
        *,
        now_ms: Callable[[], int],
        on_registered: Callable[[], None],
        on_state: Callable[[SessionState], None],
    ) -> None:
        self._broker_id = broker_id
        self._process = process
        self._now_ms = now_ms
        self._on_registered = on_registered
        self._on_state = on_state
        self._dice = dice
        self._registered_session: int | None = None
        self._is_running = False
        self.epoch: int | None = None
        self.client = ModelClient(
            server,
            self._schedule,
            now_ms,
            timeout_ms=options.session_timeout_ms,
        )
        faults = tuple(Fault)
        rate = options.zookeeper_fault_rate
        self.client.choose_fault = lambda operation: dice.choose(faults) if rate and dice.chance(rate) else None
        self.client.add_state_listener(self._note_state)
        process.repeat(options.session_timeout_ms * MS // 12, self.client.tick)

    def _schedule(self, step: Step) -> None:
        self._process.call_later(self._dice.between(100, 3_000), step)

    @property
    def is_current(self) -> bool:
        """Whether the broker is registered in its present session, as far as it knows."""
        return self._registered_session is not None and self._registered_session == self.client.session_id

    def _note_state(self, state: SessionState) -> None:
        self._process.note(f"ZooKeeper {state.name}")
        if state is SessionState.CONNECTED:
            self._register()
        self._on_state(state)

    def _register(self) -> None:
        if not self._is_running and not self.is_current and self.client.state is SessionState.CONNECTED:
            self._is_running = True
            run_script(self.client, self._script(), self._end, lambda act: self._process.call_later(0, act), lambda: 0)

    def _end(self, result: Exception | None) -> None:
        self._is_running = False
        if not self.is_current:
            self._process.call_later(RETRY_US, self._register)

    def _script(self) -> Script[None]:
        """Creates the znode; or finds that it is there, because a reply was lost or a former session has not expired."""
        path = paths.broker(self._broker_id)
        session_id = self.client.session_id
        listener = Listener("PLAINTEXT", f"broker-{self._broker_id}", 9092)
        content = BrokerRegistration((Endpoint(listener, "PLAINTEXT"),), timestamp_ms=self._now_ms()).write()
        try:
            created = yield Create(path, content, ephemeral=True)
            self._take(created.stat.czxid, session_id)
            return
        except ZooKeeperError as error:
            if error.code is not ZooKeeperErrorCode.NODE_EXISTS:
                raise
        found: Data = yield GetData(path)
        if found.stat.ephemeral_owner == session_id:
            self._take(found.stat.czxid, session_id)
        elif found.stat.ephemeral_owner == self._registered_session:
            yield Delete(path, found.stat.version)

    def _take(self, epoch: int, session_id: int | None) -> None:
        if session_id != self.client.session_id:
            return
        self.epoch = epoch
        self._registered_session = session_id
        self._process.note(f"registered with epoch {epoch}")
        self._on_registered()
