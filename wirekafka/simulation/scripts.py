"""Operations on ZooKeeper in a row, written as a generator that yields operations and receives their results."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from wirekafka.zookeeper.session import Operation, ZooKeeperClient, ZooKeeperError

Script = Generator[Operation[Any], Any, None]
"""Yields operations. Receives the result of each, or raises its `ZooKeeperError`."""


def run_script(client: ZooKeeperClient, script: Script, end: Callable[[ZooKeeperError | None], None]) -> None:
    """Runs a script.

    Args:
        end: is called once, with None or with the error that the script has not handled.
    """

    def take(result: Any) -> None:
        try:
            operation = script.throw(result) if isinstance(result, ZooKeeperError) else script.send(result)
        except StopIteration:
            end(None)
        except ZooKeeperError as error:
            end(error)
        else:
            client.submit(operation, take)

    take(None)
