"""The drivers, which move the bytes of a `Connection`: one epoll for all plain TCP connections, or one task for a stream.

How the epoll driver works: every connection is registered once, edge-triggered, in an epoll of the driver's own, and
one trio task waits for it (`idle.py`). A turn polls it without waiting and serves the connections that have events:
one receive for each connection, the complete frames in it, and then one send for each connection. Connections with more to do
stay in `_ready` for a later turn. A request that does not wait never becomes a task. One task for each connection would cost 20
to 40 us more for each request, and one busy connection could starve the others (200 connections, one request in flight each;
2026-11).

Rules of this file:
    Edge-triggered: `is_readable` stays set until a receive returns fewer bytes than asked for, and the driver sends until the
    socket refuses.
    `_ready` holds a connection at most once. A connection is served only in a turn: when a timer or the request of another
    connection completes a pending reply, the connection is put into `_ready` and the task is woken.
    A turn is `CONNECTIONS_PER_TURN` bounded pieces of work: `FRAMES_PER_TURN`, `OUTPUT_PER_TURN_BYTES`, `SEND_PER_TURN_BYTES`. It
    ends after `TURN_SECONDS`, and a connection's part of it after `CONNECTION_SECONDS`, once the current frame is handled.
    A connection waits in one of three queues. `_ready`: the last part of a turn that it took was short; these connections are
    served first. `_unproven`: the connection is new, or its last part took more than `UNPROVEN_AFTER_SECONDS`. `_deferred`: the
    connection is greedy; the one that is greedy for the shortest time is served first. Of each queue at least one connection is
    served in each turn.
    While the dispatcher is busy, large frames wait in the memory of their connections (`_held`), except for those of Produce. One
    of them begins every `HELD_SECONDS`, the longest waiting first.
    Memory for all connections together is bounded. While partly received frames take more than `queued.max.request.bytes`, the
    driver receives small frames, and one large frame at a time (`_parked`). If responses that are not read and requests that
    wait take more than `MOST_OWED_BYTES`, the connections with the most of them are closed.
    Other tasks of the broker run between two turns, at least every `YIELD_SECONDS`, lingering included.

Differs from Apache Kafka:
    If a client closes its end of a connection, or only the sending half, while a reply is pending, the request is abandoned and
    the connection is closed at once. So no records are acquired for a client that has disconnected, and no member waits for it.
    Apache Kafka does not read a connection while it handles a request, and detects the close when it has sent the reply, so a
    client that closed only its sending half receives the reply. The two kinds of close look the same to a broker (a FIN), and no
    Kafka client closes only its sending half, so wirekafka treats both as the end of the client.
    Requests that are answered at once are answered in either case, and a change of topics that has begun is completed.
    If unread responses and waiting requests take more than 512 MiB together, the connections with the most of them are closed.

Source: kafka.network.SocketServer.Processor.processCompletedReceives (a channel is muted while its request is handled);
org.apache.kafka.common.network.Selector.pollSelectionKeys (a muted channel is not read, but written).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Any

import structlog
import trio

from wirekafka.api.registry import Client
from wirekafka.faults import isolate
from wirekafka.log.storage import FileRegion
from wirekafka.server.connection import HELD_SECONDS, LEAST_BUFFER_BYTES, Connection, FrameHandler
from wirekafka.server.idle import Idle
from wirekafka.server.loop_lag import Collections, LoopLag
from wirekafka.server.receive_buffers import MOST_HELD_BYTES, ReceiveBuffers

log = structlog.get_logger(__name__)

CONNECTIONS_PER_TURN = 64
"""The driver handles the frames of this many connections, and then sends all their answers. So a client that reads many
connections is woken once for all answers. This saves a fifth of the CPU on both sides at 20 connections with 5 requests in flight
(2026-11)."""

TURN_SECONDS = 0.004
CONNECTION_SECONDS = 0.002
DEFERRED_SECONDS = 0.002
"""How long the deferred connections are served in a turn, if the others have not taken the whole turn."""

GREEDY_AFTER_SECONDS = 0.00015
GREEDY_FACTOR = 300
MOST_GREEDY_SECONDS = 5.0
UNPROVEN_AFTER_SECONDS = 0.001
"""If a connection's part of a turn takes more than `GREEDY_AFTER_SECONDS`, the connection is greedy for `GREEDY_FACTOR` times as
long, up to `MOST_GREEDY_SECONDS`. So up to 300 connections whose parts take equally long stay greedy while they wait for each
other, and a client that sends one ordinary request at a time is not greedy. Without this rule, 64 connections that asked for the
metadata of 2,000 partitions delayed another client by 7.6 s (2026-11).

Pauses of the thread and collections of garbage do not count: they hit any connection."""

ANSWERS_PER_LOOK = 8
"""After this many answers the driver checks whether the turn is over."""

YIELD_SECONDS = 0.001

LINGER_SECONDS = 50e-6
SHORT_SLEEP_SECONDS = 100e-6
LINGER_AFTER_SLEEPS = 4
"""The driver polls briefly before it sleeps, for clients that send one request at a time. Such a client lets the broker sleep for
about 30 us before each request; a sleep and the wake-up cost 45 us of CPU and more of elapsed time. After four short sleeps in a
row the driver polls for `LINGER_SECONDS` before each sleep, until a poll finds nothing. One such client then gets 60 % more
requests per second, and each request takes a fifth less CPU (2026-11). A broker that is idle or busy has no short sleeps and does
not poll."""

BULK_BYTES = 1 << 12
"""After a receive of more bytes, and while a socket accepts no more of a response, the driver does not poll before it sleeps,
because a large request or response moves in many parts. Polling for the parts took up to a fifth of the CPU of large batches and
of Fetch (2026-11)."""

SEND_PER_TURN_BYTES = 1 << 21

JOIN_BYTES = 1 << 18
"""The most bytes that the driver joins into one send."""

SENDFILE_BYTES = 1 << 13
"""Smaller regions of files are read and sent together with the neighbouring bytes. A separate send and a sendfile cost 4.6 us of
CPU at any size; reading and sending cost 4.2 us at 1,000 bytes, 5.9 at 4,000, 8.1 at 16,384 (2026-11)."""

SWEEP_MS = 60_000

SMALL_BYTES = 1 << 14
"""While memory is short, the driver still receives frames into buffers of up to this size."""

LARGE_FRAME_SECONDS = 30.0
"""The time that one large frame may take to arrive while other large frames wait for it."""

MOST_OWED_BYTES = 1 << 29
"""The most memory of all connections together for responses that clients do not read and requests that wait."""

_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_HANG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_INPUT = select.EPOLLIN | _HANG_UP


def next_bytes(output: deque[Any]) -> bytes | memoryview | None:
    """Removes the next bytes from the output, with neighbours and small regions joined; None if a large region is next."""
    piece = output[0]
    if isinstance(piece, FileRegion):
        if piece.length >= SENDFILE_BYTES:
            return None
    elif len(output) == 1:
        output.popleft()
        return piece  # type: ignore[no-any-return]
    run: list[Any] = []
    size = 0
    while output and size < JOIN_BYTES:
        piece = output[0]
        size += len(piece)
        if isinstance(piece, FileRegion):
            if piece.length >= SENDFILE_BYTES:
                break
            piece = read_region(piece)
        run.append(piece)
        output.popleft()
    return run[0] if len(run) == 1 else b"".join(run)


def read_region(region: FileRegion) -> bytes:
    """Reads the bytes of a region.

    Raises:
        OSError: the region was truncated.
    """
    data = region.read()
    if len(data) < len(region) or region.is_cut:
        raise OSError(f"{region!r} is not there any more")
    return data


class Stopwatch:
    """Measures the loop's time that a connection has taken, without pauses of the thread and garbage collections."""

    __slots__ = ("_began", "_collected", "_collections", "_cpu_began")

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Begins a period in which the loop only serves connections.

        The driver calls this after each pause, and not for each connection: a reading of the CPU time costs 0.2 us (2026-11).
        """
        self._began = now
        self._cpu_began = time.thread_time()
        self._collected = self._collections.seconds

    def taken(self, begun: float, now: float) -> float:
        """Returns the seconds that the part from `begun` until `now` has taken, at most; the next part begins now."""
        before, cpu_before, collected_before = self._began, self._cpu_began, self._collected
        self.begin(now)
        collected = self._collected - collected_before
        return min(now - begun, self._cpu_began - cpu_before - (begun - before)) - collected


class _Link:
    """A connection, its socket, and the last state that epoll reported."""

    __slots__ = (
        "connection",
        "driver",
        "fd",
        "greedy_until",
        "is_hung_up",
        "is_open",
        "is_queued",
        "is_readable",
        "queue",
        "socket",
        "unread_bytes",
    )

    def __init__(self, sock: socket.socket, driver: EpollDriver, queue: deque[_Link]) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.driver = driver
        self.connection: Connection
        self.is_open = True
        self.is_readable = False
        self.is_hung_up = False
        self.is_queued = False
        self.unread_bytes = 0
        """The bytes of responses that the socket did not accept, regions of files left out."""
        self.greedy_until = 0.0
        """Until this time of `time.perf_counter`, the connection is greedy."""
        self.queue = queue
        """The queue in which the connection waits while it is not greedy."""

    def on_progress(self, connection: Connection) -> None:
        """Queues the connection: a reply that was pending is in the output, or further frames may be handled."""
        self.driver.wake(self)


class EpollDriver:
    """Serves all plain TCP connections of a loop.

    Args:
        max_idle_ms: a connection that is quiet for longer is closed, a quarter of it later at most; None for never.
        on_close: called for each client whose connection is closed.
        lag: measures the loop; the driver reports the waits outside trio's loop to it.
        most_held_bytes: the most memory for partly received frames.
    """

    def __init__(
        self,
        dispatcher: FrameHandler,
        *,
        max_idle_ms: int | None,
        on_close: Callable[[Client], object],
        lag: LoopLag | None = None,
        most_held_bytes: int = MOST_HELD_BYTES,
    ) -> None:
        self._dispatcher = dispatcher
        self._buffers = ReceiveBuffers(most_held_bytes)
        self._on_close = on_close
        self._epoll = select.epoll()
        self._idle = Idle(self._epoll, lag)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._links: dict[int, _Link] = {}
        self._watched: dict[int, Callable[[int], object]] = {}
        """The connections to other brokers, by descriptor."""
        self._ready: deque[_Link] = deque()
        self._unproven: deque[_Link] = deque()
        self._deferred: list[tuple[float, int, _Link]] = []
        """A heap of greedy connections, by the end of their greedy time and then by their arrival."""
        self._deferred_numbers = count()
        self._held: dict[_Link, None] = {}
        """The connections with a large frame that waits while the dispatcher is busy, the longest waiting first."""
        self._held_since = 0.0
        """When the first of them began to wait, or when the one before it was taken."""
        self._now = 0.0
        """The time of the last reading of the clock."""
        lag = lag or LoopLag()
        self._stopwatch = Stopwatch(lag.collections)
        self._handled: list[_Link] = []
        self._unread_bytes = 0
        """Invariant: the sum of all links' `unread_bytes`."""
        self._parked: list[_Link] = []
        """The connections from which the driver receives nothing while memory is short."""
        self._favoured: _Link | None = None
        """The connection whose large frame the driver receives while memory is short."""
        self._favoured_since = 0.0
        self._is_asleep = False
        self._is_bulk = False
        """In the last turn a receive had more than `BULK_BYTES`, or a response was sent only in part."""
        self._sweep_ms = SWEEP_MS if max_idle_ms is None else min(SWEEP_MS, max(1, max_idle_ms // 4))
        self._idle_sweeps = None if max_idle_ms is None else -(-max_idle_ms // self._sweep_ms)

    def __len__(self) -> int:
        return len(self._links)

    def add(self, sock: socket.socket, client: Client) -> None:
        """Takes over a connected, non-blocking socket."""
        if self._epoll.closed:  # the connection was accepted while the broker stops
            sock.close()
            self._on_close(client)
            return
        link = _Link(sock, self, self._unproven)
        link.connection = Connection(client, self._dispatcher, self._buffers, link.on_progress)
        self._links[link.fd] = link
        self._epoll.register(link.fd, _EVENTS)

    def watch(self, fd: int, events: int, on_event: Callable[[int], object]) -> None:
        """Calls back in a turn with the epoll's events of a descriptor that is not a client's connection.

        Args:
            events: the epoll reports them again as long as they are true.
            on_event: does a bounded piece of work; it may `unwatch`.
        """
        if not self._epoll.closed:
            self._watched[fd] = on_event
            self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Changes the events of a watched descriptor."""
        if fd in self._watched and not self._epoll.closed:
            self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Ends the calls for a descriptor, which is still open."""
        if self._watched.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def _serve_watched(self, fd: int, mask: int) -> None:
        on_event = self._watched.get(fd)
        if on_event is not None:
            with isolate("A connection to another broker failed"):
                on_event(mask)

    async def run(self) -> None:
        """Serves the connections until it is cancelled.

        Cancellation: output that the sockets accept at once is sent, and every connection is closed.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sweep)
                await self._idle.begin()
                await self._serve_all()
        finally:
            self._idle.end()
            self._close_all()

    async def _serve_all(self) -> None:
        poll, clock = self._epoll.poll, time.perf_counter
        yielded = clock()
        self._stopwatch.begin(yielded)
        short_sleeps = 0
        while True:
            events = poll(0, CONNECTIONS_PER_TURN)
            if not (events or self._ready or self._unproven or self._deferred or self._held):
                idle_since = clock()
                if self._is_bulk:
                    short_sleeps = 0
                elif short_sleeps >= LINGER_AFTER_SLEEPS:
                    events = self._linger(idle_since + LINGER_SECONDS)
                if not events:
                    short_sleeps = short_sleeps + 1 if short_sleeps < LINGER_AFTER_SLEEPS else 0
                    await self._sleep()
                    yielded = clock()
                    self._stopwatch.begin(yielded)
                    if yielded - idle_since > SHORT_SLEEP_SECONDS:
                        short_sleeps = 0
                    continue
            self._turn(events)
            if clock() - yielded > YIELD_SECONDS:
                await trio.lowlevel.checkpoint()
                yielded = clock()
                self._stopwatch.begin(yielded)

    async def _sleep(self) -> None:
        """Lets other tasks run until the epoll has an event."""
        self._is_asleep = True
        try:
            await self._idle.sleep()
        finally:
            self._is_asleep = False

    def _linger(self, until: float) -> list[tuple[int, int]]:
        """Polls the epoll without sleeping until `until`; returns its events, none if there were none in time."""
        poll, clock = self._epoll.poll, time.perf_counter
        events: list[tuple[int, int]] = []
        while not events and clock() < until:
            events = poll(0, CONNECTIONS_PER_TURN)
        return events

    def _turn(self, events: list[tuple[int, int]]) -> None:
        links = self._links
        self._is_bulk = False
        self._now = time.perf_counter()
        end = self._now + TURN_SECONDS
        for fd, mask in events:
            link = links.get(fd)
            if link is None:
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                else:
                    self._serve_watched(fd, mask)
                continue
            if mask & _INPUT:
                link.is_readable = True
                if mask & _HANG_UP:
                    link.is_hung_up = True
            self._queue(link)
        self._serve_from(self._ready, end)
        if self._unproven:
            self._serve_from(self._unproven, end)
        if self._deferred:
            self._serve_deferred(min(end, self._now + DEFERRED_SECONDS))
        self._answer(end)
        if self._held:
            self._begin_held()
        if self._parked or self._favoured is not None:
            self._unpark()
        if self._unread_bytes + self._buffers.owed_bytes > MOST_OWED_BYTES:
            self._close_largest()

    def _serve_from(self, queue: deque[_Link], end: float) -> None:
        """Serves the connections of a queue until `end`, at least one."""
        clock, step = time.perf_counter, self._advance
        for _ in range(min(len(queue), CONNECTIONS_PER_TURN)):
            link = queue.popleft()
            link.is_queued = False
            if not link.is_open:
                continue
            begun = self._now
            self._serve(link, step)
            now = self._now = clock()
            if now - begun > GREEDY_AFTER_SECONDS:
                self._note_long_part(link, begun)
                if link.greedy_until > now and queue is self._ready:
                    # The other connections may have sent the same request. Connections that become ready later come before them.
                    self._unproven.extendleft(reversed(queue))
                    queue.clear()
                    break
            elif queue is self._unproven and self._has_handled(link):
                link.queue = self._ready
            if now > end:
                break

    def _serve_deferred(self, end: float) -> None:
        """Serves greedy connections until `end`, at least one."""
        for _ in range(len(self._deferred)):
            _, _, link = heappop(self._deferred)
            link.is_queued = False
            if not link.is_open:
                continue
            begun = self._now
            self._serve(link, self._advance)
            self._now = time.perf_counter()
            if self._now - begun > GREEDY_AFTER_SECONDS:
                self._note_long_part(link, begun)
            if self._now > end:
                break

    def _begin_held(self) -> None:
        """Queues the connections with held frames if the dispatcher is no longer busy; otherwise begins one frame when due."""
        if not self._dispatcher.is_busy:
            held, self._held = self._held, {}
            for link in held:
                self._queue(link)
        elif self._now - self._held_since >= HELD_SECONDS:
            self._held_since = self._now
            link = next(iter(self._held))
            del self._held[link]
            self._serve(link, self._begin_large)

    def _begin_large(self, link: _Link) -> bool:
        """Handles a held frame, unless output waits for the client; returns True if the connection has ended."""
        connection = link.connection
        if not connection.has_held_frame or connection.output:
            return False
        connection.handle_frames(self._now + CONNECTION_SECONDS, begins_large=True)
        return self._send_answers(link)

    def _has_handled(self, link: _Link) -> bool:
        """Returns whether the link was the last one to handle frames, and handled everything that it had received."""
        return bool(self._handled) and self._handled[-1] is link and not link.connection.held_bytes

    def _note_long_part(self, link: _Link, begun: float) -> None:
        """Decides whether a connection is greedy whose part of the turn began at `begun` and ends now."""
        taken = self._stopwatch.taken(begun, self._now)
        if taken > GREEDY_AFTER_SECONDS:
            link.greedy_until = self._now + min(taken * GREEDY_FACTOR, MOST_GREEDY_SECONDS)
        if taken > UNPROVEN_AFTER_SECONDS:
            link.queue = self._unproven

    def _answer(self, end: float) -> None:
        """Sends the responses of the connections whose frames were handled; after `end`, the others wait for the next turn."""
        handled, self._handled = self._handled, []
        step = self._send_answers
        for number, link in enumerate(handled, 1):
            if link.is_open:  # a connection that was served twice in the turn may have been closed
                self._serve(link, step)
            if not number % ANSWERS_PER_LOOK and time.perf_counter() > end:
                for waiting in handled[number:]:
                    self._queue(waiting)
                break

    def _serve(self, link: _Link, step: Callable[[_Link], bool]) -> None:
        """Runs one of the two steps of a connection's part of a turn, and closes the connection if the step returns True."""
        try:
            if step(link):
                self._close(link)
        except OSError as error:  # the peer has reset the connection, or a file cannot be read
            log.debug("Connection lost", client=link.connection.client.host, error=str(error))
            self._close(link)
        except Exception:
            log.exception("A connection failed", client=link.connection.client.host)
            self._close(link)

    def _advance(self, link: _Link) -> bool:
        """Sends the rest of the output, receives and handles frames; returns True if the connection has ended."""
        connection = link.connection
        if connection.output and not self._send(link):
            return link.is_hung_up and connection.is_waiting
        if connection.is_blocked:
            return link.is_hung_up
        if connection.is_closing:
            return True
        if not connection.has_frames:
            if not link.is_readable:
                return False
            if self._buffers.is_short and self._must_park(link):
                self._parked.append(link)
                return False
            space = connection.space()
            try:
                received = link.socket.recv_into(space)
            except BlockingIOError:
                link.is_readable = False
                return False
            if received == 0:
                return True
            if received > BULK_BYTES:
                self._is_bulk = True
            if received < len(space) and not link.is_hung_up:
                link.is_readable = False
            connection.received(received)
        connection.handle_frames(self._now + CONNECTION_SECONDS)
        self._handled.append(link)
        return False

    def _send_answers(self, link: _Link) -> bool:
        """Sends the new responses, and queues the connection if it has more to do; returns True if it has ended."""
        connection = link.connection
        if connection.output and not self._send(link):
            return link.is_hung_up and connection.is_waiting
        if connection.is_blocked:
            return link.is_hung_up
        if connection.has_held_frame:
            if not self._held:
                self._held_since = self._now
            self._held[link] = None
        elif connection.has_frames or link.is_readable:
            self._queue(link)
        return connection.is_closing

    def _send(self, link: _Link) -> bool:
        """Sends until the output is empty (True), or the socket accepts no more or enough for a turn is sent (False)."""
        output, sock = link.connection.output, link.socket
        link.connection.quiet_sweeps = 0
        budget = SEND_PER_TURN_BYTES
        try:
            while output:
                if budget <= 0:
                    self._queue(link)
                    self._note_unread(link)
                    return False
                data = next_bytes(output)
                if data is None:
                    region = output[0]
                    budget -= self._send_region(link.fd, region, budget)
                    if not region.length:
                        output.popleft()
                    continue
                more = socket.MSG_MORE if output else 0
                try:
                    sent = sock.send(data, more)
                except BlockingIOError:
                    output.appendleft(data)
                    raise
                budget -= sent
                if sent < len(data):
                    output.appendleft(memoryview(data)[sent:])
        except BlockingIOError:
            self._is_bulk = True
            self._note_unread(link)
            return False
        if link.unread_bytes:
            self._note_unread(link)
        return True

    def _note_unread(self, link: _Link) -> None:
        """Counts the bytes that remain of a connection's output."""
        unread = sum(len(piece) for piece in link.connection.output if not isinstance(piece, FileRegion))
        self._unread_bytes += unread - link.unread_bytes
        link.unread_bytes = unread

    def _must_park(self, link: _Link) -> bool:
        """Decides, while memory is short, whether the driver stops receiving from a connection.

        If no other connection is the favoured one, this connection becomes it and is not parked.
        """
        if link.connection.held_bytes <= SMALL_BYTES or link is self._favoured:
            return False
        if self._favoured is None:
            self._favoured, self._favoured_since = link, self._now
            return False
        return True

    def _unpark(self) -> None:
        """Queues the parked connections if memory is free again, or if the favoured frame has arrived or takes too long."""
        favoured = self._favoured
        if favoured is not None and self._buffers.is_short and favoured.is_open and favoured.connection.held_bytes > SMALL_BYTES:
            if not self._parked or time.perf_counter() - self._favoured_since < LARGE_FRAME_SECONDS:
                return
            self._close_for_memory(favoured, "its request arrives too slowly while memory is short")
        self._favoured = None
        parked, self._parked = self._parked, []
        for link in parked:
            self._queue(link)

    def _close_largest(self) -> None:
        """Closes the connections with the most bytes of unread responses and waiting requests, down to `MOST_OWED_BYTES`."""
        by_size = sorted(self._links.values(), key=lambda link: link.unread_bytes + link.connection.owed_bytes)
        while by_size and self._unread_bytes + self._buffers.owed_bytes > MOST_OWED_BYTES:
            self._close_for_memory(by_size.pop(), "its responses are not read, or its requests wait, and take too much memory")

    def _close_for_memory(self, link: _Link, reason: str) -> None:
        client = link.connection.client
        log.warning("Connection closed", client=f"{client.host}:{client.port}", reason=reason)
        self._close(link)

    @staticmethod
    def _send_region(fd: int, region: FileRegion, most_bytes: int) -> int:
        """Sends at most `most_bytes` of a region and removes the sent bytes from it; returns their number.

        Raises:
            BlockingIOError: the socket accepts no more bytes.
            OSError: the region was truncated.
        """
        if region.is_cut:
            raise OSError(f"{region!r} is not there any more")
        file_fd, sendfile, left = region.file.fd, os.sendfile, most_bytes
        while left > 0 and region.length:
            sent = sendfile(fd, file_fd, region.position, min(region.length, left))
            if sent == 0:
                raise OSError(f"{region!r} is not there any more")
            region.position += sent
            region.length -= sent
            left -= sent
        return most_bytes - left

    def send_early(self, client: Client, data: bytes) -> None:
        """Sends bytes to a client before the replies that it waits for; does nothing if its connection has ended."""
        for link in self._links.values():
            if link.connection.client is client:
                link.connection.output.append(data)
                self.wake(link)
                return

    def wake(self, link: _Link) -> None:
        """Queues a connection from outside a turn, and wakes the driver's task."""
        self._queue(link)
        if self._is_asleep:
            self._is_asleep = False
            os.eventfd_write(self._wake_fd, 1)

    def _queue(self, link: _Link) -> None:
        if link.is_queued or not link.is_open:
            return
        link.is_queued = True
        if link.greedy_until > self._now:
            heappush(self._deferred, (link.greedy_until, next(self._deferred_numbers), link))
        else:
            link.queue.append(link)

    def _close(self, link: _Link) -> None:
        """Closes a connection; closing its descriptor removes it from the epoll."""
        link.is_open = False
        del self._links[link.fd]
        self._held.pop(link, None)
        link.connection.abandon()
        self._unread_bytes -= link.unread_bytes
        link.unread_bytes = 0
        link.socket.close()
        with isolate("A callback for the end of a connection failed", client=link.connection.client.host):
            self._on_close(link.connection.client)

    def _close_all(self) -> None:
        for link in list(self._links.values()):
            with suppress(OSError):
                self._send(link)
            self._close(link)
        self._epoll.close()
        os.close(self._wake_fd)

    async def _sweep(self) -> None:
        """Closes idle connections, unparks connections, and frees memory that only a burst needed."""
        while True:
            await trio.sleep(self._sweep_ms / 1000)
            self._buffers.shrink()
            self._unpark()
            for link in list(self._links.values()):
                connection = link.connection
                if self._idle_sweeps is not None and connection.quiet_sweeps >= self._idle_sweeps and not connection.is_waiting:
                    log.debug("Idle connection closed", client=connection.client.host)
                    self._close(link)
                connection.quiet_sweeps += 1


async def serve_stream(stream: trio.abc.Stream, client: Client, dispatcher: FrameHandler, buffers: ReceiveBuffers) -> None:
    """Serves one connection over a stream until either side closes the stream or it fails.

    Cancellation: the stream is closed at once, and a pending reply is abandoned.
    """
    await _StreamDriver(stream, client, dispatcher, buffers).run()


class _StreamDriver:
    """A task that moves one connection's bytes over a stream."""

    def __init__(self, stream: trio.abc.Stream, client: Client, dispatcher: FrameHandler, buffers: ReceiveBuffers) -> None:
        self._stream = stream
        self._connection = Connection(client, dispatcher, buffers, self._on_progress)
        self._early: bytes | bytearray = b""
        """The bytes that were received during a wait for a reply; the connection does not have them yet."""
        self._progress = trio.Event()
        self._is_at_end = False
        """The peer has closed its sending half."""

    def _on_progress(self, connection: Connection) -> None:
        self._progress.set()

    async def run(self) -> None:
        connection = self._connection
        try:
            while not connection.is_closing or connection.output:
                if connection.output:
                    await self._send()
                elif connection.is_blocked or (connection.is_waiting and not (connection.has_frames or self._early)):
                    await self._wait_for_progress()
                    if self._is_at_end and not self._progress.is_set():
                        return
                elif connection.has_held_frame:
                    await trio.sleep(HELD_SECONDS)
                    connection.handle_frames(begins_large=True)
                elif connection.has_frames or await self._receive():
                    connection.handle_frames()
                else:
                    return
        except (trio.BrokenResourceError, OSError) as error:
            log.debug("Connection lost", client=connection.client.host, error=str(error))
        except Exception:
            log.exception("A connection failed", client=connection.client.host)
        finally:
            connection.abandon()
            await trio.aclose_forcefully(self._stream)

    async def _send(self) -> None:
        output = self._connection.output
        data = next_bytes(output)
        if data is None:
            region: FileRegion = output.popleft()
            if region.length > JOIN_BYTES:
                output.appendleft(FileRegion(region.file, region.position + JOIN_BYTES, region.length - JOIN_BYTES))
                region = FileRegion(region.file, region.position, JOIN_BYTES)
            data = read_region(region)
        await self._stream.send_all(data)

    async def _receive(self) -> bool:
        """Gives the next bytes to the connection; returns False at the end of the stream."""
        connection = self._connection
        if not self._early:
            self._early = await self._stream.receive_some(len(connection.space()))
            if not self._early:
                return False
        space = connection.space()
        chunk, self._early = self._early[: len(space)], self._early[len(space) :]
        space[: len(chunk)] = chunk
        connection.received(len(chunk))
        return True

    async def _wait_for_progress(self) -> None:
        """Waits until the connection can continue, or until the peer hangs up, which only a receive shows.

        The connection can continue if an outstanding reply is there, if further frames may be handled, or if bytes that may be
        handled are there.
        """
        self._progress = trio.Event()
        async with trio.open_nursery() as nursery:
            if not self._early:
                nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._progress.wait()
            nursery.cancel_scope.cancel()

    async def _watch(self, waiting: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            self._early = await self._stream.receive_some(LEAST_BUFFER_BYTES)
        self._is_at_end = not self._early
        if self._is_at_end or not self._connection.is_blocked:
            waiting.cancel()
