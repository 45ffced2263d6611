"""Random operations of two clients, written down so that two implementations of ZooKeeper can be compared.

How it works: a seed decides every operation. The transcript has each result, error and watch event, in order. What two servers
number differently is replaced: transactions by their rank, sessions by the client. Times are left out.
"""

from __future__ import annotations

import contextlib
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any

from wirekafka.tests.zookeeper.contract import Desk, Stage
from wirekafka.zookeeper.session import (
    ANY_VERSION,
    Check,
    Create,
    Created,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    SessionState,
    SetData,
    Sync,
    WatchEvent,
    Write,
    ZooKeeperError,
)

NAMES = "ab"
ZXIDS = ("czxid", "mzxid", "pzxid")


class Dice:
    """Chooses operations."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._numbered: list[str] = []

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def desk(self, desks: list[Desk]) -> Desk:
        return self._random.choice(desks)

    def remember(self, result: object) -> None:
        """Notes the sequential znodes that a result names, so that later operations find them."""
        results = result if isinstance(result, tuple) else (result,)
        self._numbered += [each.path for each in results if isinstance(each, Created) and each.path[-1].isdigit()]
        del self._numbered[:-5]

    def operation(self) -> Operation[Any]:
        if self.chance(0.2):
            return Multi(tuple(self._write() for _ in range(self._random.randint(0, 3))))
        write = self._write()
        if self.chance(0.5) and not isinstance(write, Check):
            return write
        watch = self.chance(0.6)
        return self._random.choice([GetData(self._path(), watch), GetChildren(self._path(), watch), Exists(self._path(), watch)])

    def _write(self) -> Write:
        match self._random.randrange(6):
            case 0 | 1 | 2:
                path, is_sequential = self._path(), self.chance(0.2)
                return Create(path, b"%d" % self._random.randrange(9), self.chance(0.2), is_sequential)
            case 3:
                return SetData(self._path(), b"x" * self._random.randrange(4), self._version())
            case 4:
                return Delete(self._path(), self._version())
            case _:
                return Check(self._path(), self._version())

    def _path(self) -> str:
        if self._numbered and self.chance(0.15):
            return self._random.choice(self._numbered)
        depth = self._random.choice((1, 1, 1, 2, 2, 3))
        return "/" + "/".join(self._random.choice(NAMES) for _ in range(depth))

    def _version(self) -> int:
        return self._random.choice((ANY_VERSION, ANY_VERSION, ANY_VERSION, 0, 0, 1))


async def transcript(stage: Stage, seed: int, count: int) -> list[str]:
    """Plays the operations of a seed on a stage, and returns what happened."""
    dice = Dice(seed)
    desks = [await Desk.open(stage) for _ in range(2)]
    sessions: list[int | None] = []
    steps: list[tuple[str, list[list[object]]]] = []
    for _ in range(count):
        sessions += [desk.client.session_id for desk in desks]
        desk = dice.desk(desks)
        if dice.chance(0.02):
            await expire(stage, desk)
            # ZooKeeper deletes the ephemeral znodes in no order, and tells their owner or not.
            logs = await take_logs(desks)
            logs[desks.index(desk)] = [each for each in logs[desks.index(desk)] if isinstance(each, SessionState)]
            steps.append((f"{desks.index(desk)} expires", [sorted(log, key=repr) for log in logs]))
            continue
        operation = dice.operation()
        with contextlib.suppress(ZooKeeperError):  # It is in the log.
            dice.remember(await desk.ask(operation))
        steps.append((f"{desks.index(desk)} {operation}", await take_logs(desks)))
    owners = {session: index % 2 for index, session in enumerate(sessions)}
    zxids = sorted({zxid for _, logs in steps for log in logs for each in log for zxid in zxids_of(each)})
    ranks = {zxid: rank for rank, zxid in enumerate(zxids)}
    return [f"{text}: {[[shown(each, ranks, owners) for each in log] for log in logs]}" for text, logs in steps]


async def expire(stage: Stage, desk: Desk) -> None:
    """Ends the session of the desk, and waits for the next one."""
    former = desk.client.session_id
    await stage.expire(desk.client)
    await stage.until(lambda: desk.client.session_id != former and desk.client.state is SessionState.CONNECTED)


async def take_logs(desks: list[Desk]) -> list[list[object]]:
    """Returns what has arrived at each desk since the last call. Every event that was fired before is there."""
    logs = []
    for desk in desks:
        await desk.ask(Sync("/"))
        logs.append(desk.log[:-1])
        desk.log.clear()
    return logs


def zxids_of(value: object) -> list[int]:
    """Returns the zxids in a result."""
    if isinstance(value, tuple):
        return [zxid for each in value for zxid in zxids_of(each)]
    if not is_dataclass(value):
        return []
    inner = [zxid for each in fields(value) for zxid in zxids_of(getattr(value, each.name))]
    return inner + [getattr(value, name) for name in ZXIDS if hasattr(value, name)]


def shown(value: object, ranks: dict[int, int], owners: dict[int | None, int]) -> str:
    """Returns the text of a result, an error or an event, with what two servers have in common."""
    if isinstance(value, tuple):
        return f"({', '.join(shown(each, ranks, owners) for each in value)})"
    if not is_dataclass(value) or isinstance(value, (WatchEvent, ZooKeeperError)):
        return repr(value)
    parts = []
    for each in fields(value):
        part = getattr(value, each.name)
        if each.name in ZXIDS:
            part = ranks[part]
        elif each.name == "ephemeral_owner" and part:
            part = f"client {owners[part]}"
        elif each.name in ("ctime_ms", "mtime_ms"):
            continue
        parts.append(f"{each.name}={shown(part, ranks, owners)}")
    return f"{type(value).__name__}({', '.join(parts)})"
