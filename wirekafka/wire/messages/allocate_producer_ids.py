"""The messages of AllocateProducerIds: a broker asks the controller for a block of producer ids (KIP-730).

Source: AllocateProducerIdsRequest.json, AllocateProducerIdsResponse.json.
"""

from __future__ import annotations

from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Int16, Int32, Int64, Message


class AllocateProducerIdsRequest(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0


ALLOCATE_PRODUCER_IDS = RequestType(67, AllocateProducerIdsRequest, AllocateProducerIdsResponse, range(1), flexible_since=0)
