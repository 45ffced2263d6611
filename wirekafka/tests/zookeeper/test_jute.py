"""The protocol's records and frames; kazoo's own serializers read and write the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE

from wirekafka.zookeeper import jute
from wirekafka.zookeeper.jute import OpCode, Reader, Record

PLAIN_RECORDS = [
    *{*jute.REQUESTS.values()} - {jute.MultiRequest},
    *{record for record in jute.WRITE_RESPONSES.values() if record is not None},
    jute.ConnectRequest,
    jute.ConnectResponse,
    jute.RequestHeader,
    jute.ReplyHeader,
    jute.Create2Response,
    jute.GetDataResponse,
    jute.GetChildrenResponse,
    jute.GetChildren2Response,
    jute.GetAclResponse,
    jute.WatcherEvent,
    jute.MultiHeader,
]
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (jute.Int, st.integers(-(2**31), 2**31 - 1)),
    (jute.Long, st.integers(-(2**63), 2**63 - 1)),
    (jute.Boolean, st.booleans()),
    (jute.Buffer, st.none() | st.binary(max_size=20)),
    (jute.Text, st.text(max_size=20)),
]


def values(hint: Any) -> st.SearchStrategy[Any]:
    for kind, strategy in VALUES:
        if hint == kind:
            return strategy
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    return records(hint)


def records(record: type[Record]) -> st.SearchStrategy[Record]:
    hints = get_type_hints(record, include_extras=True)
    return st.builds(record, **{name: values(hint) for name, hint in hints.items()})


def parts(kinds: Any) -> st.SearchStrategy[tuple[jute.MultiPart, ...]]:
    each = [
        st.builds(jute.MultiPart, st.just(op_code), records(record) if record is not None else st.none())
        for op_code, record in kinds.items()
    ]
    return st.lists(st.one_of(each), max_size=4).map(tuple)


ALL_RECORDS = st.one_of(
    *[records(record) for record in PLAIN_RECORDS],
    st.builds(jute.MultiRequest, parts(jute.WRITE_REQUESTS)),
    st.builds(jute.MultiResponse, parts(jute.WRITE_RESPONSES)),
)


def written(record: Record) -> bytes:
    out = bytearray()
    record.write(out)
    return bytes(out)


@given(ALL_RECORDS)
@settings(max_examples=300)
def test_record_that_was_written_is_read_whole(record: Record) -> None:
    reader = Reader(written(record))
    assert type(record).read(reader) == record
    assert reader.is_at_end


@given(ALL_RECORDS, st.data())
def test_record_that_is_cut_is_refused(record: Record, data: st.DataObject) -> None:
    whole = written(record)
    end = data.draw(st.integers(0, max(len(whole) - 1, 0)))
    if end == len(whole) or (isinstance(record, jute.ConnectRequest) and end == len(whole) - 1):
        return
    with pytest.raises(jute.JuteError):
        type(record).read(Reader(whole[:end]))


@given(st.sampled_from([*PLAIN_RECORDS, jute.MultiRequest, jute.MultiResponse]), st.binary(max_size=80))
@settings(max_examples=300)
def test_any_bytes_are_a_record_or_refused(record: type[Record], body: bytes) -> None:
    try:
        read = record.read(Reader(body))
    except jute.JuteError:
        return
    assert record.read(Reader(written(read))) == read


@pytest.mark.parametrize("count", [-2, 5, 2**31 - 1])
def test_vector_with_an_impossible_count_is_refused(count: int) -> None:
    body = count.to_bytes(4, "big", signed=True) + bytes(8)
    with pytest.raises(jute.JuteError):
        jute.GetChildrenResponse.read(Reader(body))


def test_null_string_and_null_vector_are_read_as_empty() -> None:
    null = b"\xff" * 4
    assert jute.PathRequest.read(Reader(null)) == jute.PathRequest("")
    assert jute.GetChildrenResponse.read(Reader(null)) == jute.GetChildrenResponse(())


def test_null_data_differ_from_empty_data() -> None:
    null, empty = (jute.SetDataRequest("/a", data, 0) for data in (None, b""))
    assert [jute.SetDataRequest.read(Reader(written(each))).data for each in (null, empty)] == [None, b""]


def test_connect_request_of_an_old_client_has_no_read_only() -> None:
    request = jute.ConnectRequest(0, 1, 2, 3, b"password", False)
    assert jute.ConnectRequest.read(Reader(written(request)[:-1])) == request


def test_multi_with_an_operation_that_is_no_write_is_refused() -> None:
    body = written(jute.MultiHeader(OpCode.GET_DATA, False, -1)) + written(jute.ReadRequest("/a", False))
    with pytest.raises(jute.JuteError):
        jute.MultiRequest.read(Reader(body + written(jute.END_OF_MULTI)))


STAT = jute.StatRecord(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
ACL = (jute.OPEN_ACL,)
REQUESTS_OF_KAZOO: list[tuple[Any, Record]] = [
    (kazoo.Connect(0, 7, 9000, -5, b"p" * 16, True), jute.ConnectRequest(0, 7, 9000, -5, b"p" * 16, True)),
    (kazoo.Create("/a", b"1", OPEN_ACL_UNSAFE, 3), jute.CreateRequest("/a", b"1", ACL, 3)),
    (kazoo.Create2("/a", None, OPEN_ACL_UNSAFE, 0), jute.CreateRequest("/a", None, ACL, 0)),
    (kazoo.Delete("/a", -1), jute.VersionRequest("/a", -1)),
    (kazoo.SetData("/a", b"", 2), jute.SetDataRequest("/a", b"", 2)),
    (kazoo.Exists("/é", print), jute.ReadRequest("/é", True)),
    (kazoo.GetData("/a", None), jute.ReadRequest("/a", False)),
    (kazoo.GetChildren2("/", None), jute.ReadRequest("/", False)),
    (kazoo.GetACL("/a"), jute.PathRequest("/a")),
    (kazoo.Sync("/a"), jute.PathRequest("/a")),
    (kazoo.Auth(0, "digest", "me:secret"), jute.AuthPacket(0, "digest", b"me:secret")),
    (
        kazoo.Transaction([kazoo.CheckVersion("/e", 4), kazoo.Create("/a", b"1", OPEN_ACL_UNSAFE, 1), kazoo.Delete("/b", 0)]),
        jute.MultiRequest(
            (
                jute.MultiPart(OpCode.CHECK, jute.VersionRequest("/e", 4)),
                jute.MultiPart(OpCode.CREATE, jute.CreateRequest("/a", b"1", ACL, 1)),
                jute.MultiPart(OpCode.DELETE, jute.VersionRequest("/b", 0)),
            )
        ),
    ),
]


@pytest.mark.parametrize(("theirs", "ours"), REQUESTS_OF_KAZOO, ids=lambda each: type(each).__name__)
def test_request_of_kazoo_is_read(theirs: Any, ours: Record) -> None:
    assert type(ours).read(Reader(bytes(theirs.serialize()))) == ours


@pytest.mark.parametrize(
    ("read", "ours", "result"),
    [
        (kazoo.Create.deserialize, jute.PathResponse("/a"), "/a"),
        (kazoo.Create2.deserialize, jute.Create2Response("/a", STAT), ("/a", tuple(range(1, 12)))),
        (kazoo.Exists.deserialize, jute.StatResponse(STAT), tuple(range(1, 12))),
        (kazoo.GetData.deserialize, jute.GetDataResponse(b"x", STAT), (b"x", tuple(range(1, 12)))),
        (kazoo.GetChildren2.deserialize, jute.GetChildren2Response(("b", "a"), STAT), (["b", "a"], tuple(range(1, 12)))),
        (kazoo.GetACL.deserialize, jute.GetAclResponse(ACL, STAT), (OPEN_ACL_UNSAFE, tuple(range(1, 12)))),
        (lambda body, at: kazoo.Watch.deserialize(body, at)[0], jute.WatcherEvent(3, 3, "/a"), (3, 3, "/a")),
        (lambda body, at: kazoo.ReplyHeader.deserialize(body, at)[0], jute.ReplyHeader(-2, 2**40, -101), (-2, 2**40, -101)),
    ],
)
def test_response_is_read_by_kazoo(read: Callable[[bytes, int], Any], ours: Record, result: Any) -> None:
    assert read(written(ours), 0) == result


def test_multi_response_is_read_by_kazoo() -> None:
    done = jute.MultiResponse(
        (
            jute.MultiPart(OpCode.CHECK, None),
            jute.MultiPart(OpCode.CREATE, jute.PathResponse("/a")),
            jute.MultiPart(OpCode.SET_DATA, jute.StatResponse(STAT)),
        )
    )
    refused = jute.MultiResponse(tuple(jute.MultiPart(OpCode.ERROR, jute.ErrorResponse(code)) for code in (0, -103, -2)))
    assert kazoo.Transaction.deserialize(written(done), 0) == [True, "/a", tuple(range(1, 12))]
    assert [error.code for error in kazoo.Transaction.deserialize(written(refused), 0)] == [0, -103, -2]


@given(st.lists(ALL_RECORDS, min_size=1, max_size=4), st.integers(1, 50))
def test_frames_are_cut_whatever_arrives_at_once(several: list[Record], size: int) -> None:
    sent = b"".join(jute.frame_of(record) for record in several)
    frames = jute.Frames()
    bodies = [body for at in range(0, len(sent), size) for body in frames.receive(sent[at : at + size])]
    assert bodies == [written(record) for record in several]


@pytest.mark.parametrize("length", [-1, jute.MAX_FRAME_BYTES + 1, 0x47455420])
def test_frame_of_an_impossible_length_is_refused_at_once(length: int) -> None:
    frames = jute.Frames()
    good = jute.frame_of(jute.PathRequest("/a"))
    received = frames.receive(good + length.to_bytes(4, "big", signed=True))
    assert next(received) == good[4:]
    with pytest.raises(jute.JuteError):
        next(received)
