"""Keeps the background tasks of a member running: no error of one ends the broker.

Rules of this file: a task reads everything again when it begins, so it may begin again after any error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from wirekafka.errors import KafkaError
from wirekafka.faults import log_once
from wirekafka.zookeeper.layout.content import MalformedZnodeError
from wirekafka.zookeeper.session import ZooKeeperError

RETRY_S = 1.0
"""The pause before a task begins again."""

REMEDY = "look whether the chroot of zookeeper.connect and the znodes below it exist, and whether this broker may change them"


async def keep(run: Callable[[], Awaitable[None]]) -> NoReturn:
    """Runs a task until it is cancelled; after an error it begins again."""
    while True:
        try:
            await run()
        except (ZooKeeperError, MalformedZnodeError) as error:
            log_once(error, "ZooKeeper refuses a request of this broker; it is tried again", remedy=REMEDY)
        except KafkaError as error:
            log_once(error, "A task of the member waits until ZooKeeper has its cluster again", remedy=REMEDY)
        except Exception as error:  # noqa: BLE001 - no fault of one task stops the broker
            log_once(error, "A task of the member has failed; it begins again")
        await trio.sleep(RETRY_S)
