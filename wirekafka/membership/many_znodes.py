"""Reads, writes and deletes many znodes, with several requests on their way at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import trio

from wirekafka.membership.retrying_client import RetryingClient
from wirekafka.zookeeper.session import Data, Delete, GetChildren, GetData, SetData, ZooKeeperError

REQUESTS_AT_ONCE = 50
"""The number of requests to ZooKeeper at the same time."""

ItemT = TypeVar("ItemT")


async def for_each(items: Iterable[ItemT], act: Callable[[ItemT], Awaitable[object]]) -> None:
    """Acts on each item, on `REQUESTS_AT_ONCE` of them at the same time.

    Raises:
        ZooKeeperError: the first one that was raised; the other acts are cancelled.
    """
    items = list(items)
    remaining = iter(items)
    failures: list[ZooKeeperError] = []

    async def act_on_some() -> None:
        try:
            for item in remaining:
                await act(item)
        except ZooKeeperError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in items[:REQUESTS_AT_ONCE]:
            nursery.start_soon(act_on_some)
    if failures:
        raise failures[0]


async def children_of(zookeeper: RetryingClient, path: str) -> Sequence[str]:
    """Returns the names of the children of a znode; none if it does not exist.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request.
    """
    found = await zookeeper.find(GetChildren(path))
    return () if found is None else found.names


async def read_all(zookeeper: RetryingClient, paths: Iterable[str]) -> dict[str, Data]:
    """Returns the content of each znode that exists, in the order of the paths.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request.
    """
    paths = list(paths)
    found: dict[str, Data] = {}

    async def read(path: str) -> None:
        data = await zookeeper.find(GetData(path))
        if data is not None:
            found[path] = data

    await for_each(paths, read)
    return {path: found[path] for path in paths if path in found}


async def put_all(zookeeper: RetryingClient, contents: Mapping[str, bytes | None]) -> None:
    """Creates znodes whose parents exist. A znode that exists gets this content, unless it has it already.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request.

    Cancellation: some of the znodes may have their content.
    """

    async def put(path: str) -> None:
        content = contents[path]
        if await zookeeper.create_only(path, content):
            return
        found = await zookeeper.ask(GetData(path))
        if found.data != (content or b""):
            await zookeeper.ask(SetData(path, content or b""))

    await for_each(contents, put)


async def delete_tree(zookeeper: RetryingClient, path: str) -> None:
    """Deletes a znode with everything below it; does nothing if it does not exist.

    Raises:
        ZooKeeperError: ZooKeeper refuses a request; NOT_EMPTY, another client has created a child meanwhile.

    Cancellation: a part of the znodes may be deleted.
    """
    levels: list[list[str]] = [[path]]
    while levels[-1]:
        below: list[str] = []

        async def collect(parent: str, below: list[str] = below) -> None:
            below.extend(f"{parent}/{name}" for name in await children_of(zookeeper, parent))

        await for_each(levels[-1], collect)
        levels.append(below)
    for level in reversed(levels):
        await for_each(level, lambda each: zookeeper.find(Delete(each)))
