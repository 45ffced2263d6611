"""The messages of WriteTxnMarkers."""

from __future__ import annotations

from typing import Annotated

from wirekafka.wire.requests import RequestType
from wirekafka.wire.types import Bool, Int8, Int16, Int32, Int64, Message, String, since


class WritableTxnMarkerTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Message):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, since(2)] = 0


class WriteTxnMarkersRequest(Message):
    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = []


WRITE_TXN_MARKERS = RequestType(27, WriteTxnMarkersRequest, WriteTxnMarkersResponse, range(3), flexible_since=1)
