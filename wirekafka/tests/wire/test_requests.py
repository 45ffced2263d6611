"""Requests that a broker sends, and the responses that it reads."""

from typing import Any

import pytest

from wirekafka.api.registry import APIS, all_apis
from wirekafka.errors import ProtocolError
from wirekafka.tests.api.test_messages import full_message
from wirekafka.tests.wire.request_types import all_request_types
from wirekafka.wire.codec import decode, encode, skip_tagged_fields
from wirekafka.wire.frames import read_request_header
from wirekafka.wire.messages.alter_partition import ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse
from wirekafka.wire.messages.controlled_shutdown import CONTROLLED_SHUTDOWN, ControlledShutdownRequest, RemainingPartition
from wirekafka.wire.messages.fetch import FETCH
from wirekafka.wire.messages.leader_and_isr import LEADER_AND_ISR
from wirekafka.wire.requests import RequestType, read_correlation_id

every_type = pytest.mark.parametrize("sent", all_request_types(), ids=lambda sent: sent.name)


@every_type
def test_frame_is_read_as_the_server_reads_requests(sent: RequestType[Any, Any]) -> None:
    for version in sent.versions:
        flexible = sent.is_flexible(version)
        request = full_message(sent.request, version, flexible)
        frame = sent.frame(request, version, correlation_id=77, client_id="brökër-1")
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = read_request_header(frame[4:])
        assert (header.api_key, header.api_version, header.correlation_id) == (sent.key, version, 77)
        assert header.client_id == ("brökër-1" if (sent, version) != (CONTROLLED_SHUTDOWN, 0) else None)
        pos = skip_tagged_fields(frame[4:], header.body_offset, len(frame) - 4) if flexible else header.body_offset
        assert decode(sent.request, version, flexible, frame[4 + pos :]) == request


@every_type
def test_response_with_its_header_is_read_in_every_version(sent: RequestType[Any, Any]) -> None:
    for version in sent.versions:
        flexible = sent.is_flexible(version)
        response = full_message(sent.response, version, flexible)
        frame = b"\0\0\0\x4d" + b"\0" * flexible + encode(response, version, flexible)
        assert read_correlation_id(frame) == 77
        assert sent.read_response(frame, version) == response


@every_type
def test_cut_response_is_refused(sent: RequestType[Any, Any]) -> None:
    version = sent.versions[-1]
    flexible = sent.is_flexible(version)
    frame = b"\0\0\0\x4d" + b"\0" * flexible + encode(full_message(sent.response, version, flexible), version, flexible)
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            sent.read_response(frame[:size], version)


def test_response_without_a_correlation_id_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a response of 3 bytes"):
        read_correlation_id(b"\0\0\0")


def test_bytes_of_a_controlled_shutdown_are_as_the_protocol_says() -> None:
    frame = CONTROLLED_SHUTDOWN.frame(
        ControlledShutdownRequest(broker_id=3, broker_epoch=0x102), 3, correlation_id=9, client_id="3"
    )
    header = bytes.fromhex("0007 0003 00000009 0001 33 00")
    body = bytes.fromhex("00000003 0000000000000102 00")
    assert frame == (len(header) + len(body)).to_bytes(4, "big") + header + body
    response = bytes.fromhex("00000009 00 0000 02 0274 00000005 00 00")
    assert CONTROLLED_SHUTDOWN.read_response(response, 3).remaining_partitions == [
        RemainingPartition(topic_name="t", partition_index=5)
    ]


def test_version_that_is_not_declared_is_not_sent() -> None:
    with pytest.raises(AssertionError, match="ControlledShutdown has no version 4"):
        CONTROLLED_SHUTDOWN.frame(ControlledShutdownRequest(), 4, correlation_id=1, client_id="3")


@pytest.mark.parametrize(
    ("sent", "first", "last", "version"),
    [(LEADER_AND_ISR, 0, 5, 5), (LEADER_AND_ISR, 0, 99, 7), (FETCH, 4, 18, 18), (CONTROLLED_SHUTDOWN, 4, 9, None)],
)
def test_newest_common_version_is_the_newest_of_both(
    sent: RequestType[Any, Any], first: int, last: int, version: int | None
) -> None:
    assert sent.newest_common_version(first, last) == version


def test_name_is_kafkas() -> None:
    assert ALTER_PARTITION.name == "AlterPartition"
    assert ALTER_PARTITION.request is AlterPartitionRequest
    assert ALTER_PARTITION.response is AlterPartitionResponse


def test_versions_that_are_sent_are_served_in_the_same_form() -> None:
    all_apis()
    shared = [(sent, APIS[sent.key]) for sent in all_request_types() if sent.key in APIS]
    assert len(shared) == 18
    for sent, api in shared:
        assert set(sent.versions) <= set(api.versions), sent.name
        is_flexible = [sent.flexible_since is not None and version >= sent.flexible_since for version in sent.versions]
        assert is_flexible == [api.is_flexible(version) for version in sent.versions], sent.name
