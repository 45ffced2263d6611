"""The controller of one broker: it competes for `/controller`, and as the active controller handles one event after the other.

How it works: a session with ZooKeeper in which the broker is registered competes. The winner reads the cluster (`failover.py`).
Then it handles events: changes of znodes (`reactions.py`), answers of brokers, requests of the API, and timers. An event is a
script over the context. When it has ended, its requests are sent to the brokers, and its `end` is called.

Rules of this file:
    Events are handled in their order, but a change of `/controller` comes first, and a change of the brokers second.
    After a lost connection the outcome of an event is unknown. Everything is read again once the session is connected, and
    watches are set anew. The controller keeps its epoch and its connections if it still owns `/controller`.
    After an unexpected exception everything is read again, `PAUSE_MS` later. If taking over the cluster fails, the controller
    gives up `/controller`, so that another broker can try.
    A controller that was deposed sends nothing, and runs no script of its term any more: each step of a script looks whether the
    term is over. What it has written before is right, because every write checks the epoch.
    Every `end` is called exactly once, later than `enter`, unless its event was removed before it began.

Source: kafka.controller.KafkaController (elect, maybeResign, onControllerResignation, triggerControllerMove),
kafka.controller.ControllerEventManager.

Differs from Apache Kafka: after a lost connection the controller reads everything again. Apache Kafka repeats the operation,
whatever its outcome was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

import structlog

from wirekafka.controller import reactions, rebalance
from wirekafka.controller.channel import BrokerChannels, Connect
from wirekafka.controller.competition import Term, compete
from wirekafka.controller.context import ControllerContext, LiveBroker
from wirekafka.controller.failover import read_cluster, take_over
from wirekafka.controller.partition_states import elect_offline
from wirekafka.controller.reactions import Event, Reaction, reaction_to, reaction_to_answer
from wirekafka.controller.requests import RequestBatch
from wirekafka.controller.scripts import CallSoon, Script, run_script
from wirekafka.controller.settings import ControllerSettings
from wirekafka.controller.writes import DeposedError, multi
from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.faults import isolate, log_once
from wirekafka.replication.replica_fetcher import Timer, Timers
from wirekafka.wire.requests import RequestType
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.session import Delete, SessionState, WatchEvent, ZooKeeperClient, ZooKeeperError, ZooKeeperErrorCode

log = structlog.get_logger(__name__)

T = TypeVar("T")

PAUSE_MS = 1_000
"""How long the controller waits after an unexpected exception."""

COMPETITION = (paths.CONTROLLER, paths.MIGRATION)
"""The znodes that decide about the competition."""


class _Event:
    """An event in the queue.

    Attributes:
        event: makes the script.
        end: receives the result; None if nobody waits for it.
        path: the znode that the event looks at; None for other events.
    """

    __slots__ = ("end", "event", "path")

    def __init__(self, event: Event, end: Callable[[Any], object] | None = None, path: str | None = None) -> None:
        self.event = event
        self.end = end
        self.path = path


class Controller:
    """The controller of one broker, which is active or competes. It is a `local_controller.LocalController`.

    Args:
        client: the session with ZooKeeper in which the broker registers.
        connect: returns a connection to a broker; the controller closes it.
        now_ms: returns the time since 1970.
        call_soon: calls back in a later turn of the loop.
        on_change: called after this broker has become the controller, and after it has resigned.
        seconds: returns the time by which slices of work are measured.

    Attributes:
        context: what the active controller knows; None while this broker is not the controller.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        connect: Connect,
        timers: Timers,
        settings: ControllerSettings,
        *,
        now_ms: Callable[[], int],
        call_soon: CallSoon,
        on_change: Callable[[], object],
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.context: ControllerContext | None = None
        self._client = client
        self._connect = connect
        self._timers = timers
        self._settings = settings
        self._now_ms = now_ms
        self._call_soon = call_soon
        self._on_change = on_change
        self._seconds = seconds
        self._term: Term | None = None
        """The term of this broker; None while it is not the controller. It may not have read the cluster yet."""
        self._epoch_of_scripts = object()
        """Replaced when the scripts in progress must end."""
        self._channels: BrokerChannels | None = None
        self._events: deque[_Event] = deque()
        self._queued_paths: set[str] = set()
        self._is_running = False
        self._is_registered = False
        self._must_look = False
        """Whether the controller must look at `/controller` before the next event."""
        self._must_read = False
        """Whether the controller must read everything before the next event."""
        self._pause: Timer | None = None
        self._rebalance: Timer | None = None
        self._is_closed = False
        client.add_watch_listener(self._note_watch)

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller and knows the cluster, as far as it knows."""
        return self.context is not None

    @property
    def is_idle(self) -> bool:
        """Whether no event is in progress, and all brokers have answered all requests."""
        has_work = self._is_running or bool(self._events)
        return not has_work and (self._channels is None or self._channels.are_idle)

    # What the broker tells

    def note_registered(self) -> None:
        """Begins the competition, or continues it, after a registration of this broker."""
        self._is_registered = True
        self._begin_again()

    def note_session(self, state: SessionState) -> None:
        """Takes a state of the session. In a new session the registration comes first."""
        if state is SessionState.CONNECTED and self._is_registered:
            self._begin_again()
        elif state in (SessionState.LOST, SessionState.CLOSED):
            self._is_registered = False
            self.resign("its session with ZooKeeper has ended")

    def note_unclean_election(self, topic: str | None) -> None:
        """Elects leaders after the settings have allowed unclean elections: for a topic, or for all with None."""
        topics = None if topic is None else [topic]
        self._add(_Event(lambda context, batch: elect_offline(context, batch, self._settings, topics)))

    def enter(
        self, event: Callable[[ControllerContext, RequestBatch], Script[T]], end: Callable[[T | KafkaError], object]
    ) -> Callable[[], object]:
        """Queues an event. Its requests to brokers are sent before its end.

        Args:
            event: makes the script. A KafkaError that the script raises is its result.
            end: receives the result later, once; NOT_CONTROLLER if this broker is not the controller or is deposed meanwhile;
                REQUEST_TIMED_OUT if the connection to ZooKeeper was lost, so that the outcome is unknown;
                UNKNOWN_SERVER_ERROR after an unexpected exception.

        Returns:
            what removes the event if it has not begun. Its end receives nothing then. While there is no connection to ZooKeeper,
            clients give up and ask again, and their former events would fill the memory.
        """
        queued = _Event(event, end)
        if self.is_active:
            self._add(queued)
        else:
            self._end_later(queued, KafkaError(ErrorCode.NOT_CONTROLLER))
        return lambda: self._withdraw(queued)

    def _withdraw(self, event: _Event) -> None:
        with suppress(ValueError):
            self._events.remove(event)

    def resign(self, reason: str) -> None:
        """Forgets the cluster and all events and requests in progress, if this broker is the controller.

        The znode `/controller` stays until the session ends.
        """
        self._epoch_of_scripts = object()
        self._cancel_timers()
        if self._term is None:
            return
        log.info("This broker is not the controller any more", epoch=self._term.epoch, reason=reason)
        self._term = self.context = None
        if self._channels is not None:
            self._channels.close()
            self._channels = None
        for event in self._events:
            self._end_later(event, KafkaError(ErrorCode.NOT_CONTROLLER))
        self._events.clear()
        self._queued_paths.clear()
        self._tell_change()

    def close(self) -> None:
        """Resigns, and does not compete again."""
        self._is_closed = True
        self._is_registered = False
        self.resign("the broker stops")

    # Events

    def _note_watch(self, event: WatchEvent) -> None:
        if event.path in COMPETITION:
            self._must_look = True
            self._run_soon()
        elif self._term is not None and (reaction := reaction_to(event.path)) is not None:
            self._react(reaction)

    def _react(self, reaction: Reaction) -> None:
        if reaction.path not in self._queued_paths:
            self._queued_paths.add(reaction.path)
            self._add(_Event(reaction.event, path=reaction.path), is_urgent=reaction.is_urgent)

    def _note_answer(self, broker: LiveBroker, kind: RequestType[Any, Any], request: Any, response: Any) -> None:
        event = reaction_to_answer(broker, kind, request, response)
        if event is not None:
            self._add(_Event(event))

    def _add(self, event: _Event, *, is_urgent: bool = False) -> None:
        if self._term is None:
            return
        if is_urgent:
            self._events.appendleft(event)
        else:
            self._events.append(event)
        self._run_soon()

    def _end_later(self, event: _Event, result: Any) -> None:
        if event.end is not None:
            self._call_soon(lambda: self._end(event, result))

    def _end(self, event: _Event, result: Any) -> None:
        if event.end is not None:
            with isolate("The result of an event of the controller could not be handled"):
                event.end(result)

    # The loop

    def _begin_again(self) -> None:
        """Looks whether this broker is the controller, and reads everything."""
        self._cancel_pause()
        self._must_look = self._must_read = True
        self._run_soon()

    def _run_soon(self) -> None:
        self._call_soon(self._run_next)

    def _run_next(self) -> None:
        is_ready = self._is_registered and not self._is_closed and self._client.state is SessionState.CONNECTED
        if not is_ready or self._is_running or self._pause is not None:
            return
        if self._must_look:
            self._must_look = False
            self._run(self._look())
        elif self._events and self._term is not None:
            event = self._events.popleft()
            if event.path is not None:
                self._queued_paths.discard(event.path)
            self._run(self._perform(event), lambda result: self._end(event, result))

    def _run(self, script: Script[Any], end: Callable[[Any], object] | None = None) -> None:
        self._is_running = True
        run_script(self._client, script, lambda result: self._note_end(result, end), self._call_soon, self._seconds)

    def _note_end(self, result: Any, end: Callable[[Any], object] | None) -> None:
        """Ends an event, or a look with None, and decides what comes next. A KafkaError is no result of a look, but a failure."""
        self._is_running = False
        if isinstance(result, Exception) and not (isinstance(result, KafkaError) and end is not None):
            result = self._take_failure(result)
        if end is not None:
            end(result)
        self._run_soon()

    def _take_failure(self, error: Exception) -> KafkaError:
        """Decides what comes after the failure of a script; returns the result of its event."""
        if isinstance(error, DeposedError):
            self.resign("another broker has the next controller epoch")
            self._must_look = self._must_read = True
            return KafkaError(ErrorCode.NOT_CONTROLLER)
        if _is_connection_lost(error):
            self._must_look = self._must_read = True
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The connection to ZooKeeper was lost")
        log_once(error, "An event of the controller failed; everything is read again")
        self._cancel_pause()
        self._pause = self._timers.call_later(PAUSE_MS, self._begin_again)
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _perform(self, event: _Event) -> Script[Any]:
        context, channels = self.context, self._channels
        assert context is not None, "events wait until the cluster was read"
        assert channels is not None, "a controller has channels"
        batch = RequestBatch(context, self._settings, channels)
        try:
            result = yield from self._while_in_term(event.event(context, batch))
        except KafkaError as error:
            result = error
        yield from self._while_in_term(batch.send())
        channels.keep(context.live)
        if batch.reassigning:
            self._add(_Event(reactions.complete_reassignments(list(batch.reassigning))), is_urgent=True)
        return result

    def _while_in_term(self, script: Script[T]) -> Script[T]:
        """Runs a script until it ends, or closes it once the term has ended in which it began. The script receives all errors.

        Raises:
            DeposedError: the term has ended meanwhile.
            Exception: whatever the script raises.
        """
        begun_in = self._epoch_of_scripts
        received: Any = None
        failure: Exception | None = None
        while True:
            try:
                step = script.send(received) if failure is None else script.throw(failure)
            except StopIteration as ended:
                result: T = ended.value
                return result
            if self._epoch_of_scripts is not begun_in:
                script.close()
                raise DeposedError
            received = failure = None
            try:
                received = yield step
            except Exception as error:  # noqa: BLE001 - the script, or else its owner, handles it
                failure = error
            if self._epoch_of_scripts is not begun_in:
                script.close()
                raise DeposedError

    # Becoming the controller

    def _look(self) -> Generator[Any, Any, None]:
        """Looks whether this broker is the controller or can become it, and reads the cluster if it must."""
        session_id = self._client.session_id
        assert session_id is not None, "a connected client has a session"
        term = yield from self._while_in_term(compete(self._settings.broker_id, session_id, self._now_ms()))
        if term is None:
            self._must_read = True
            self.resign("another broker is the controller")
            return
        if self._term != term:
            self.resign("it has a newer epoch")
            self._begin_term(term)
        elif not self._must_read:
            return
        yield from self._begin(term)

    def _begin_term(self, term: Term) -> None:
        log.info("This broker is the controller", epoch=term.epoch)
        self._term = term
        self._channels = BrokerChannels(self._connect, self._timers, self._note_answer)

    def _begin(self, term: Term) -> Script[None]:
        """Reads the cluster and takes it over; gives up the controllership if that fails unexpectedly."""
        # Before it begins: if the connection breaks meanwhile, watches are lost, and everything must be read once more.
        self._must_read = False
        try:
            yield from self._while_in_term(self._take_over(term))
        except Exception as error:
            self._must_read = True
            if not isinstance(error, DeposedError) and not _is_connection_lost(error):
                yield from self._give_up(term)
            raise

    def _take_over(self, term: Term) -> Script[None]:
        channels = self._channels
        assert channels is not None, "a controller has channels"
        channels.drop_waiting()
        former, context = self.context, ControllerContext(term.epoch, term.epoch_version)
        restarts = yield from read_cluster(context, self._settings, {} if former is None else former.settled_epochs)
        if former is not None:
            _carry_over(former, context)
        self.context = context
        batch = RequestBatch(context, self._settings, channels)
        yield from take_over(context, batch, self._settings, restarts)
        channels.keep(context.live)
        log.info("The controller has taken over the cluster", epoch=term.epoch)
        self._rebalance_later(rebalance.FIRST_DELAY_S)
        if former is None:
            self._tell_change()

    def _give_up(self, term: Term) -> Script[None]:
        """Deletes `/controller`, so that another broker can take over.

        If that fails, the term may go on. Then its connections must stay, because the brokers take no request of the same
        controller epoch over a connection whose correlation ids begin again.
        """
        context = ControllerContext(term.epoch, term.epoch_version)
        try:
            yield from self._while_in_term(multi(context, [Delete(paths.CONTROLLER)]))
        except DeposedError:
            pass
        except ZooKeeperError as error:
            log.warning("The controller could not give up", reason=repr(error))
            if error.code is not ZooKeeperErrorCode.NO_NODE:
                return
        self.resign("it could not take over the cluster")

    def _tell_change(self) -> None:
        with isolate("A change of the controller could not be handled"):
            self._on_change()

    # Timers

    def _rebalance_later(self, delay_s: float) -> None:
        settings = self._settings.auto_rebalance
        if settings is None or self._term is None:
            return
        if self._rebalance is not None:
            self._rebalance.cancel()
        self._rebalance = self._timers.call_later(delay_s * 1_000, self._balance)

    def _balance(self) -> None:
        self._rebalance = None
        settings = self._settings.auto_rebalance
        if settings is not None:
            self._add(_Event(rebalance.rebalance, lambda result: self._rebalance_later(settings.interval_s)))

    def _cancel_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _cancel_timers(self) -> None:
        self._cancel_pause()
        if self._rebalance is not None:
            self._rebalance.cancel()
            self._rebalance = None


def _carry_over(former: ControllerContext, context: ControllerContext) -> None:
    """Keeps what ZooKeeper does not say of the brokers that have not restarted: their shutdowns, and their failed directories."""
    for broker_id, broker in context.live.items():
        known = former.live.get(broker_id)
        if known is None or known.epoch != broker.epoch:
            continue
        if broker_id in former.shutting_down:
            context.shutting_down.add(broker_id)
        if broker_id in former.offline_replicas:
            context.offline_replicas[broker_id] = set(former.offline_replicas[broker_id])


def _is_connection_lost(error: Exception) -> bool:
    return isinstance(error, ZooKeeperError) and error.code in (
        ZooKeeperErrorCode.CONNECTION_LOSS,
        ZooKeeperErrorCode.SESSION_EXPIRED,
    )
