from __future__ import annotations

import pytest

from wirekafka.api.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from wirekafka.api.registry import all_apis
from wirekafka.errors import ErrorCode, ProtocolError
from wirekafka.pending import Pending
from wirekafka.server.metrics.request_meter import ApiCounts, RequestMeter, error_codes
from wirekafka.server.metrics.text import render
from wirekafka.tests.server.frames import client, request
from wirekafka.wire.messages.list_offsets import ListOffsetsResponse

METADATA, LIST_OFFSETS = 3, 2


def frame_of(api_key: int) -> memoryview:
    return memoryview(request(api_key, 0))[4:]


def test_requests_and_their_bytes_are_counted_by_api() -> None:
    meter = RequestMeter()
    handle = meter.measured(lambda frame, client, now_ms: b"12345")
    for key in (METADATA, METADATA, LIST_OFFSETS, 31_000, 32_000):
        handle(frame_of(key), client(), 0)
    size = len(request(METADATA, 0))
    assert meter.counts == {
        "Metadata": ApiCounts(2, 2 * size, 10),
        "ListOffsets": ApiCounts(1, size, 5),
        "other": ApiCounts(2, 2 * size, 10),
    }


def test_answer_in_pieces_and_one_that_comes_later_are_counted_when_they_are_there() -> None:
    meter = RequestMeter()
    pending: Pending[list[bytes]] = Pending()
    answer = meter.measured(lambda frame, client, now_ms: pending)(frame_of(METADATA), client(), 0)
    assert isinstance(answer, Pending)
    seen: list[object] = []
    answer.then(seen.append)
    assert meter.counts["Metadata"].response_bytes == 0
    pending.complete([b"123", b"45"])
    assert seen == [[b"123", b"45"]]
    assert meter.counts["Metadata"].response_bytes == 5


def test_request_that_ends_its_connection_is_counted_as_refused() -> None:
    meter = RequestMeter()
    late: Pending[ProtocolError] = Pending()

    def refuse(frame: memoryview, client: object, now_ms: int) -> bytes:
        raise ProtocolError("broken")

    with pytest.raises(ProtocolError):
        meter.measured(refuse)(frame_of(METADATA), client(), 0)
    answer = meter.measured(lambda frame, client, now_ms: late)(frame_of(METADATA), client(), 0)
    assert isinstance(answer, Pending)
    answer.then(lambda result: None)
    late.complete(ProtocolError("broken"))
    assert meter.counts["Metadata"].refused == 2
    assert 'wirekafka_refused_requests_total{api="Metadata"} 2\n' in render(meter.metrics())


def test_errors_are_found_wherever_they_stand_in_a_response() -> None:
    unknown, offline = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE
    partitions = [MetadataResponsePartition(error_code=code) for code in (0, offline, offline)]
    topics = [MetadataResponseTopic(error_code=unknown), MetadataResponseTopic(partitions=partitions)]
    meter = RequestMeter()
    for _ in meter.note_errors(METADATA, MetadataResponse(topics=topics)):
        pass
    assert meter.counts["Metadata"].errors == {unknown: 1, offline: 2}
    text = render(meter.metrics())
    assert 'wirekafka_request_errors_total{api="Metadata",error="LEADER_NOT_AVAILABLE"} 2\n' in text


def test_error_codes_of_every_response_can_be_read() -> None:
    for api in all_apis():
        assert set(error_codes(api.response())) <= {0}, api.name
    assert list(error_codes(ListOffsetsResponse(topics=[]))) == []
