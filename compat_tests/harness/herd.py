"""Many members of groups, of any client library, that are started, stopped and killed (agents/members.py)."""

from __future__ import annotations

import itertools
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from compat_tests.harness import jars
from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import AGENTS
from compat_tests.harness.ownership import Event, Ownership
from compat_tests.harness.raw import ConnectionEndedError, RawConnection
from compat_tests.harness.transactions import ask
from compat_tests.harness.waiting import wait_until

LOGGING = (f"-Dlog4j2.configurationFile={jars.HERE / 'java' / 'log4j2.properties'}",)
CLASSIC, CONSUMER = "classic", "consumer"


STAYING_LAG_S = 5.0


@dataclass(frozen=True)
class Library:
    """A client library that members use.

    Attributes:
        module: the agent's module; None for the Java client.
        members_per_process: the number of members that are killed together.
    """

    name: str
    module: str | None
    members_per_process: int = 1

    def command(self) -> list[str]:
        """Returns the command of a process that has members."""
        if self.module is not None:
            return [sys.executable, str(AGENTS / "members.py"), self.module]
        return jars.java_command(jars.KAFKA, "Members", programs=("members",), flags=LOGGING, heap_mib=128)

    def __str__(self) -> str:
        return self.name


KAFKA_PYTHON = Library("kafka-python", "member_of_kafka_python")
CONFLUENT = Library("confluent-kafka", "member_of_confluent")
AIOKAFKA = Library("aiokafka", "member_of_aiokafka")
JAVA = Library("java", None, members_per_process=5)


class Host:
    """A process that has members, or forks them.

    Attributes:
        leaving: the members that were told to leave, and may not have left yet.
    """

    def __init__(self, library: Library, log: Path, events: queue.SimpleQueue[str]) -> None:
        self.library = library
        self.leaving: list[str] = []
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                library.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._pump = threading.Thread(target=self._take_lines, args=(events,), daemon=True)
        self._pump.start()

    def _take_lines(self, events: queue.SimpleQueue[str]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # a kill may cut the last line
                events.put(line.rstrip("\n"))

    def tell(self, *fields: str) -> None:
        """Sends a line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(fields) + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """Kills the process; forked members die with it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.library.module is None:
            self.process.kill()
        self.process.wait(20)
        self._pump.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(eq=False)
class Place:
    """One place in the herd; members replace each other in it.

    Attributes:
        member: the name of the present member, which is used once; None while the place is empty.
    """

    library: Library
    host: Host
    protocol: str
    assignor: str = "range"
    member: str | None = None
    rests_until_s: float = 0


class Herd:
    """The members of one group.

    Attributes:
        counts: how many were started, stopped and killed.
        log: all events that the members have reported.
        owned: by member, the partitions that it last reported as its own.
    """

    def __init__(self, broker: Broker, group: str, topic: str, directory: Path, *, session_ms: int) -> None:
        self.broker, self.group, self.topic, self.directory = broker, group, topic, directory
        self.session_ms = session_ms
        self.places: list[Place] = []
        self.counts: Counter[str] = Counter()
        self.seed = random.randrange(1 << 32)
        self.chance = random.Random(self.seed)
        self.log: list[Event] = []
        self.owned: defaultdict[str, set[int]] = defaultdict(set)
        self._numbers = itertools.count(1)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._forking: dict[Library, Host] = {}

    def add(self, library: Library, protocol: str, count: int, *, assignor: str = "range") -> list[Place]:
        """Adds empty places."""
        added = []
        for number in range(count):
            if number % library.members_per_process == 0 or library.module is not None:
                host = self._host(library)
            added.append(Place(library, host, protocol, assignor))
        self.places += added
        return added

    def _host(self, library: Library) -> Host:
        """Returns a process for members of the library; a library that forks its members needs one process."""
        if library in self._forking:
            return self._forking[library]
        host = Host(library, self.directory / f"{library}-{next(self._numbers)}.log", self._lines)
        if library.module is not None:
            self._forking[library] = host
        return host

    def start(self, places: Iterable[Place]) -> None:
        """Starts a member in every empty place."""
        for place in places:
            if place.member is None:
                place.member = f"{place.library}-{place.protocol}-{next(self._numbers)}"
                options = f"protocol={place.protocol};assignor={place.assignor};session={self.session_ms}"
                place.host.tell("start", place.member, self.broker.bootstrap, self.group, self.topic, options)
                self.counts["started"] += 1

    def leave(self, place: Place) -> None:
        """Makes a member leave."""
        assert place.member is not None
        place.host.tell("leave", place.member)
        place.host.leaving.append(place.member)
        place.member = None
        self.counts["left"] += 1

    def kill(self, place: Place) -> list[Place]:
        """Kills a member and the others in its process; returns their places."""
        if place.library.module is not None:
            assert place.member is not None
            place.host.tell("kill", place.member)
            place.member = None
            self.counts["killed"] += 1
            return [place]
        place.host.process.kill()
        place.host.process.wait()
        now_ns = time.monotonic_ns()
        place.host.close()
        mates = [each for each in self.places if each.host is place.host]
        killed = [mate.member for mate in mates if mate.member is not None]
        for member in (*killed, *place.host.leaving):
            self._lines.put(f"{now_ns}\t{member}\tkilled")
        self.counts["killed"] += len(killed)
        host = self._host(place.library)
        for mate in mates:
            mate.member, mate.host = None, host
        return mates

    def run(self, seconds: float) -> None:
        """Kills, stops and starts members at random for this many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.chance.choice((0.05, 0.3, 0.3, 1.5)))
            present = [place for place in self.places if place.member is not None]
            if len(present) > len(self.places) / 3:
                place = self.chance.choice(present)
                gone = [place]
                if self._shall_be_killed(place):
                    gone = self.kill(place)
                else:
                    self.leave(place)
                for each in gone:
                    each.rests_until_s = time.monotonic() + self.chance.uniform(0, 2)
            self.start(place for place in self.places if place.rests_until_s <= time.monotonic())
            self.refresh()

    def _shall_be_killed(self, place: Place) -> bool:
        """Decides whether to kill the next member: the first is killed and the second leaves, so that a short run has both."""
        if not self.counts["killed"] or not self.counts["left"]:
            return not self.counts["killed"]
        # A JVM has several members, and its start takes two seconds of a core.
        return self.chance.random() < 0.8 / place.library.members_per_process

    def refresh(self) -> None:
        """Reads the events that the members have reported."""
        while not self._lines.empty():
            time_ns, member, kind, *fields = self._lines.get().split("\t")
            event = Event(int(time_ns) / 1e9, member, kind, tuple(fields))
            self.log.append(event)
            if kind == "assigned":
                self.owned[member].update(event.partitions())
            elif kind in ("revoked", "lost"):
                self.owned[member].difference_update(event.partitions())

    def judge(self) -> Ownership:
        """Returns the ownership of all partitions so far."""
        self.refresh()
        # A quarter of a session, because on a busy machine the last heartbeat of a killed member may be some time ago. The check
        # still detects a broker that ends a session when the connection closes.
        session_s = self.session_ms / 1000
        ownership = Ownership(session_s / 4, session_s / 2)
        ownership.take(self.log)
        return ownership

    def wait_until_shared(self, partition_count: int, *, timeout_s: float = 40) -> None:
        """Waits until the running members own all partitions together, and each member at least one."""

        def is_shared() -> bool:
            self.refresh()
            owned = [self.owned[place.member] for place in self.places if place.member is not None]
            return all(owned) and sorted(itertools.chain(*owned)) == list(range(partition_count))

        wait_until(is_shared, timeout_s=timeout_s, what=f"the members share {partition_count} partitions", poll_s=0.1)

    def wait_until_read(self, load: Load, *, timeout_s: float = 40) -> None:
        """Waits until the group has no lag.

        A member whose commit was refused, and that kept the partition, commits again after it has read more records. So if lag
        remains, the method writes one more record.
        """
        more_s = time.monotonic() + STAYING_LAG_S

        def has_no_lag() -> bool:
            nonlocal more_s
            self.refresh()
            acknowledged = self._acknowledged()
            committed = committed_offsets(self.broker, self.group, self.topic, len(load.end_offsets))
            behind = [partition for partition, offset in load.end_offsets.items() if committed.get(partition) != offset]
            if committed and behind and time.monotonic() > more_s:
                lost = {partition: offset for partition, offset in acknowledged.items() if committed.get(partition, 0) < offset}
                assert not lost, f"acknowledged as committed, and lost: {lost}"
                load.write_to(behind)
                more_s = time.monotonic() + STAYING_LAG_S
            return not behind

        wait_until(has_no_lag, timeout_s=timeout_s, what="the group has no lag", poll_s=0.2)

    def _acknowledged(self) -> dict[int, int]:
        """Returns, by partition, the greatest offset whose commit the broker has acknowledged."""
        found: dict[int, int] = {}
        for event in self.log:
            if event.kind == "committed":
                for item in event.fields[0].split(","):
                    partition, offset = map(int, item.split(":"))
                    found[partition] = max(offset, found.get(partition, 0))
        return found

    def close(self) -> None:
        """Kills all members."""
        for host in {place.host for place in self.places}:
            host.close()

    def __str__(self) -> str:
        names = {place.library.name for place in self.places}
        tails = [path.read_text(errors="replace")[-1500:] for name in names for path in self.directory.glob(f"{name}-*.log")]
        return f"seed {self.seed}, {dict(self.counts)}\n" + "\n".join(tail for tail in tails if tail)


class Load:
    """Writes small records to all partitions in turn with an idempotent producer, until it is stopped.

    Attributes:
        end_offsets: by partition, the number of records.
    """

    def __init__(self, bootstrap: str, topic: str, partition_count: int, per_second: float) -> None:
        self.topic = topic
        self.end_offsets = dict.fromkeys(range(partition_count), 0)
        self._period_s = partition_count / per_second
        self._failures: list[KafkaError] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
        self._is_told_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_told_to_stop.wait(self._period_s):
            self.write_to(self.end_offsets)

    def write_to(self, partitions: Iterable[int]) -> None:
        """Writes a record to each of the partitions."""
        for partition in partitions:
            self._producer.produce(self.topic, b"%d" % partition, partition=partition, on_delivery=self._note)
            self.end_offsets[partition] += 1
        self._producer.poll(0)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def finish(self) -> dict[int, int]:
        """Stops writing and waits for the outstanding records; returns the end offsets."""
        self._is_told_to_stop.set()
        self._thread.join(20)
        assert self._producer.flush(30) == 0
        assert self._failures == []
        return self.end_offsets


def committed_offsets(broker: Broker, group: str, topic: str, partition_count: int) -> dict[int, int]:
    """Returns the committed offsets of a group; empty if the broker does not answer."""
    topics = [{"name": topic, "partition_indexes": list(range(partition_count))}]
    try:
        with RawConnection(broker.address, timeout_s=5) as connection:
            answer = ask(connection, "offset_fetch", 7, group_id=group, topics=topics, require_stable=False)
    except (OSError, ConnectionEndedError):
        return {}
    return {place.partition_index: place.committed_offset for each in answer.topics for place in each.partitions}
