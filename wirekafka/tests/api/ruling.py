"""A broker without sockets whose controller is active, in a cluster of three brokers on a model of ZooKeeper.

async def body(caller: Caller) -> None:
ruling = rule(caller)
response = ruling.ask(CreateTopicsRequest(...), 7)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import trio

from wirekafka.pending import Pending, finish
from wirekafka.tests.api.data_plane import Caller
from wirekafka.tests.api.members import NODE_ID, join
from wirekafka.tests.controller.controllers import Cluster, accept
from wirekafka.wire.messages.update_metadata import UpdateMetadataRequest
from wirekafka.wire.types import Message
from wirekafka.zookeeper.layout import paths
from wirekafka.zookeeper.layout.configs import EntityConfigs
from wirekafka.zookeeper.layout.topics import TopicAssignment


class RulingBroker:
    """The broker of a caller, with its controller.

    Attributes:
        member: the parts of a member that handlers use.
        cluster: the brokers' controllers; that of broker 1 is active.
        is_told: whether the broker takes the UpdateMetadata requests of its controller.
        events: how many events the handlers have entered.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.member = join(caller)
        self.cluster = Cluster(NODE_ID, 2, 3)
        self.own = self.cluster.brokers[NODE_ID]
        self.is_told = True
        self.own.peers.answer = self._answer
        self.cluster.start()
        self.events = 0
        self.member.local_controller = cast(Any, self)
        self.stage = self.cluster.stage

    @property
    def is_active(self) -> bool:
        """Whether the controller of the broker is active."""
        return self.own.controller.is_active

    def enter(self, event: Any, end: Any) -> Callable[[], object]:
        """Enters an event, and counts it."""
        self.events += 1
        return self.own.controller.enter(event, end)

    def _answer(self, request: Any) -> Any:
        if isinstance(request, UpdateMetadataRequest) and self.is_told:
            finish(self.member.image.update(request))
        return accept(request)

    def begin(self, request: Message, version: int) -> Any:
        """Returns the response to a request or, if that takes longer, a Pending of it."""
        response = self._caller.ask(request, version)
        self.cluster.turn()
        if not isinstance(response, Pending) or not response.is_done:
            return response
        found: list[Any] = []
        response.then(found.append)
        return found[0]

    def ask(self, request: Message, version: int) -> Any:
        """Returns the response to a request, which comes without any time passing."""
        response = self.begin(request, version)
        assert not isinstance(response, Pending), "the request waits"
        return response

    async def answer(self, request: Message, version: int) -> Any:
        """Returns the response to a request, which takes some time."""
        response = self.begin(request, version)
        found: list[Any] = []
        if not isinstance(response, Pending):
            return response
        response.then(found.append)
        while not found:
            await trio.sleep(0.01)
            self.cluster.turn()
        return found[0]

    def stored_topic(self, name: str) -> TopicAssignment | None:
        """Returns a topic as ZooKeeper has it."""
        found = self.stage.data(paths.topic(name))
        return None if found is None else TopicAssignment.read(name, found.data)

    def stored_configs(self, name: str) -> dict[str, str]:
        """Returns the settings of a topic as ZooKeeper has them."""
        found = self.stage.data(paths.configs("topics", name))
        return {} if found is None else dict(EntityConfigs.read(name, found.data).values)


def rule(caller: Caller) -> RulingBroker:
    """Makes the broker of a caller a member whose controller is active."""
    return RulingBroker(caller)
