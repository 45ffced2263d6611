"""The messages of ControlledShutdown: a broker asks the controller to move its leaderships before it stops.

Versions:
    0: the header of the request has no client id. 1: a client id. 2: `broker_epoch` (KIP-380). 3: flexible.

Source: ControlledShutdownRequest.json, ControlledShutdownResponse.json of Kafka 3.9.
"""

from __future__ import annotations

from typing import Annotated

from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Int16, Int32, Int64, Message, String, since


class ControlledShutdownRequest(Message):
    broker_id: Int32 = 0
    broker_epoch: Annotated[Int64, since(2)] = -1


class RemainingPartition(Message):
    topic_name: String = ""
    partition_index: Int32 = 0


class ControlledShutdownResponse(Message):
    error_code: Int16 = 0
    remaining_partitions: list[RemainingPartition] = []


CONTROLLED_SHUTDOWN = RequestType(7, ControlledShutdownRequest, ControlledShutdownResponse, range(4), flexible_since=3)
