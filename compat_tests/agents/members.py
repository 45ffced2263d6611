"""Members of groups, each in a process of its own that can be killed, all of one client library. Run as: members.py CLIENT.

This process imports the library and forks for each member: a fork takes milliseconds, a start most of a second. Lines on stdin,
with fields separated by tabs:

    start NAME BOOTSTRAP GROUP TOPIC OPTIONS    a member; the options are protocol, assignor and session (ms)
    leave NAME                                  closes the member as a program does that ends
    kill NAME                                   kill -9

Lines on stdout, each `TIME NAME KIND FIELD...`, where TIME is the monotonic clock in ns, which all processes of the machine
share. The Java members (java/src/members) print the same lines, but live in one process and cannot be killed one by one.

    assigned EPOCH P,P,...      from the callback: new partitions; the epoch of the member, or the generation of its group
    revoked P,P,...             from the callback
    lost P,P,...                from the callback: the broker has taken the partitions away
    read P:FIRST:LAST,...       these records are processed; the member commits next
    committed P:OFFSET,...      the commit was acknowledged
    refused REASON              the commit was refused
    closing, left               before and after a member leaves
    killed                      by `kill`
    failed REASON               an error that the member should have survived
    ended STATUS                the process of the member ended
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


def tell(name: str, kind: str, *fields: object) -> None:
    """Prints one line in one write, because the members share the pipe."""
    words = (time.monotonic_ns(), name, kind, *fields)
    os.write(1, ("\t".join(str(word).replace("\t", " ").replace("\n", " ")[:3500] for word in words) + "\n").encode())


@dataclass
class Part:
    """The arguments of a member, and its methods to report events."""

    name: str
    bootstrap: str
    group: str
    topic: str
    options: Mapping[str, str]
    is_told_to_leave: bool = False

    @property
    def session_ms(self) -> int:
        return int(self.options["session"])

    def assigned(self, epoch: int, partitions: Iterable[int]) -> None:
        tell(self.name, "assigned", epoch, ",".join(map(str, sorted(partitions))))

    def revoked(self, partitions: Iterable[int], *, is_lost: bool = False) -> None:
        tell(self.name, "lost" if is_lost else "revoked", ",".join(map(str, sorted(partitions))))

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        tell(self.name, "read", ",".join(f"{partition}:{first}:{last}" for partition, (first, last) in ranges.items()))

    def committed(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        tell(self.name, "committed", ",".join(f"{partition}:{last + 1}" for partition, (_, last) in ranges.items()))

    def refused(self, error: Exception) -> None:
        tell(self.name, "refused", repr(error))

    def closing(self) -> None:
        tell(self.name, "closing")


def live(client: str, part: Part) -> None:
    """Runs a member in the child process."""

    def leave(number: int, frame: object) -> None:
        part.is_told_to_leave = True

    signal.signal(signal.SIGTERM, leave)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        importlib.import_module(client).take(part)
        tell(part.name, "left")
    except Exception as error:  # noqa: BLE001 - the test is told of it
        traceback.print_exc()
        tell(part.name, "failed", repr(error))
    os._exit(0)


def main() -> None:
    client = sys.argv[1]
    importlib.import_module(client)
    members: dict[str, int] = {}
    pending = b""
    while True:
        if select.select([0], [], [], 0.2)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                serve(client, members, line.decode().split("\t"))
        for name, pid in list(members.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del members[name]
                tell(name, "ended", 0)
    for pid in members.values():
        os.kill(pid, signal.SIGKILL)


def serve(client: str, members: dict[str, int], fields: list[str]) -> None:
    operation, name, *rest = fields
    if operation == "start":
        options = dict(item.split("=", 1) for item in rest[3].split(";"))
        members[name] = os.fork()
        if members[name] == 0:
            live(client, Part(name, rest[0], rest[1], rest[2], options))
    elif name in members and operation == "leave":
        os.kill(members[name], signal.SIGTERM)
    elif name in members and operation == "kill":
        os.kill(members[name], signal.SIGKILL)
        os.waitpid(members.pop(name), 0)
        tell(name, "killed")


if __name__ == "__main__":
    sys.modules["members"] = sys.modules["__main__"]
    main()
