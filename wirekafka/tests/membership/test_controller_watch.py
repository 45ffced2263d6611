"""The watch of the id of the controller."""

import structlog.testing
import trio

from wirekafka.membership.controller_watch import ControllerWatch
from wirekafka.tests.membership.zookeeper import Stage, play, until
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.membership import ControllerRegistration
from wirekafka.zookeeper.session import Create, Delete, SetData


def controller(broker_id: int, kraft_epoch: int | None = None) -> bytes:
    return ControllerRegistration(broker_id, 1, kraft_epoch).write()


def test_watch_reports_every_change_of_the_controller() -> None:
    async def act(stage: Stage) -> None:
        told: list[int | None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ControllerWatch(stage.zookeeper, told.append).run)
            await until(lambda: told and told[-1] is None)
            await stage.zookeeper.ask(Create(paths.CONTROLLER, controller(1), ephemeral=True))
            await until(lambda: told[-1] == 1)
            await stage.zookeeper.ask(Delete(paths.CONTROLLER))
            await until(lambda: told[-1] is None)
            await stage.zookeeper.ask(Create(paths.CONTROLLER, controller(2)))
            await until(lambda: told[-1] == 2)
            stage.expire()
            await until(lambda: told[-2:] == [2, 2])
            await stage.zookeeper.ask(SetData(paths.CONTROLLER, b"damaged"))
            await until(lambda: told[-1] is None)
            nursery.cancel_scope.cancel()

    play(act)


def test_controller_of_kraft_is_not_obeyed_and_the_next_one_is() -> None:
    async def act(stage: Stage) -> None:
        told: list[int | None] = []
        await stage.zookeeper.ask(Create(paths.CONTROLLER, controller(3000, 4)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ControllerWatch(stage.zookeeper, told.append).run)
            with structlog.testing.capture_logs() as logs:
                await until(lambda: told)
            assert [line["remedy"].partition(",")[0] for line in logs] == ["stop this broker"]
            await stage.zookeeper.ask(SetData(paths.CONTROLLER, controller(2)))
            await until(lambda: told[-1] == 2)
            nursery.cancel_scope.cancel()

    play(act)
