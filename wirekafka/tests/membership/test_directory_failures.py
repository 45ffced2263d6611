"""The notification of a failed data directory."""

from typing import Any, cast

import trio

from wirekafka.membership.directory_failures import DirectoryFailures
from wirekafka.tests.membership.zookeeper import Stage, play
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.requests import read_log_dir_event
from wirekafka.zookeeper.session import Create, GetChildren, GetData


def test_each_failure_creates_a_notification_of_this_broker() -> None:
    async def act(stage: Stage) -> None:
        callbacks: list[Any] = []
        await stage.zookeeper.ask(Create(paths.LOG_DIR_EVENTS, None))

        async def left() -> tuple[str, ...]:
            return tuple((await stage.zookeeper.ask(GetChildren(paths.LOG_DIR_EVENTS))).names)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(DirectoryFailures(stage.zookeeper, callbacks, node_id=7).run)
            [fail] = callbacks
            fail(cast(Any, []))
            for count in (1, 2):
                fail(cast(Any, ["a log"]))
                with trio.fail_after(5):
                    while len(await left()) < count:
                        await trio.lowlevel.checkpoint()
            [name, _] = sorted(await left())
            path = f"{paths.LOG_DIR_EVENTS}/{name}"
            assert read_log_dir_event(path, (await stage.zookeeper.ask(GetData(path))).data) == 7
            nursery.cancel_scope.cancel()

    play(act)
