"""The fetcher for one leader, as tables: the time, an event, and its effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from wirekafka.errors import ErrorCode
from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.replication import fetcher as fetcher_module
from wirekafka.replication.fetcher import (
    EARLIEST,
    LATEST,
    MAX_SESSION_EPOCH,
    MAX_WAIT_DURING_APPENDS_MS,
    Deliver,
    Effect,
    Event,
    FetchAnswered,
    Fetcher,
    FetcherSettings,
    FollowedPartition,
    OffsetsAnswered,
    Requested,
    RequestFailed,
    SendAtOnce,
    SendDue,
    SendFetch,
    SendListOffsets,
    SendSoon,
    TimeCame,
    WakeAt,
)
from wirekafka.replication.following import (
    Answered,
    AskEarliestOffset,
    AskLatestOffset,
    BackOff,
    BackOffEnded,
    ConnectionLost,
    Fetch,
    OffsetAnswered,
    Refused,
    StopFetching,
)
from wirekafka.replication.protocol_versions import VERSIONS
from wirekafka.replication.throttle import Rate, ReplicationThrottle
from wirekafka.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from wirekafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

SELF, LEADER, BACK_OFF_MS = 3, 1, 1_000
SETTINGS = FetcherSettings(
    replica_id=SELF,
    broker_epoch=lambda: 77,
    max_wait_ms=500,
    min_bytes=2,
    max_bytes=1_000,
    response_max_bytes=5_000,
    back_off_ms=BACK_OFF_MS,
)
A_ID, B_ID = b"a" * 16, b"b" * 16
A0, A1, B0 = FollowedPartition("a", A_ID, 0), FollowedPartition("a", A_ID, 1), FollowedPartition("b", B_ID, 0)
NAMES = {"a": A_ID, "b": B_ID}

Row = tuple[int, Event, Sequence[Effect]]


def fetcher(*rows: Row, settings: FetcherSettings = SETTINGS) -> Fetcher:
    made = Fetcher(settings)
    play(made, *rows)
    return made


def play(made: Fetcher, *rows: Row) -> None:
    for number, (now_ms, event, effects) in enumerate(rows):
        assert list(made.step(event, now_ms)) == list(effects), f"row {number}: {event}"


def wants(partition: FollowedPartition, offset: int, *, epoch: int = 5, last: int | None = 4, start: int = 0) -> Requested:
    return Requested(partition, Fetch(LEADER, epoch, offset, last), start)


def asked(partition: int, offset: int, *, epoch: int = 5, last: int = 4, start: int = 0) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last,
        log_start_offset=start,
        partition_max_bytes=1_000,
    )


def fetch(
    session: tuple[int, int],
    *named: tuple[str, list[FetchPartition]],
    forgotten: Sequence[tuple[str, list[int]]] = (),
    wait_ms: int = 500,
) -> SendFetch:
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=SELF, replica_epoch=77),
        max_wait_ms=wait_ms,
        min_bytes=2,
        max_bytes=5_000,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, topic_id=NAMES[topic], partitions=partitions) for topic, partitions in named],
        forgotten_topics_data=[ForgottenTopic(topic_id=NAMES[topic], partitions=indexes) for topic, indexes in forgotten],
    )
    return SendFetch(request, 17)


def answer(session_id: int, *answered: tuple[str, list[PartitionData]], error: int = 0) -> FetchAnswered:
    responses = [FetchableTopicResponse(topic_id=NAMES[topic], partitions=partitions) for topic, partitions in answered]
    return FetchAnswered(FetchResponse(error_code=error, session_id=session_id, responses=responses))


def data(partition: int, records: bytes = b"", *, watermark: int = 10, error: int = 0, **fields: Any) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=watermark,
        log_start_offset=0,
        records=records,
        **fields,
    )


def answered(partition: FollowedPartition, offset: int, records: bytes = b"", watermark: int = 10) -> Deliver:
    return Deliver(partition, Answered(5, offset, records, watermark, 0, None))


def answered_far(partition: FollowedPartition, records: bytes) -> Deliver:
    """Returns the delivery of records far from the leader's high watermark, 99."""
    return answered(partition, 10, records, 99)


def in_session(*partitions: FollowedPartition, settings: FetcherSettings = SETTINGS) -> Fetcher:
    """Returns a fetcher whose session 9 has the partitions, all at offset 10 and idle. Its Fetch of epoch 1 is in flight."""
    made = Fetcher(settings)
    for partition in partitions:
        made.step(wants(partition, 10), 0)
    made.step(SendDue(), 0)
    made.step(answer(9, *[(each.topic, [data(each.partition)]) for each in partitions]), 0)
    for partition in partitions:
        made.step(wants(partition, 10), 0)
    made.step(SendDue(), 0)
    assert made.is_in_flight
    return made


def test_requests_of_one_turn_go_into_one_full_fetch() -> None:
    fetcher(
        (0, wants(A0, 10), [SendSoon()]),
        (0, wants(B0, 0, last=None, start=7), []),
        (0, wants(A1, 11), []),
        (0, SendDue(), [fetch((0, 0), ("a", [asked(0, 10), asked(1, 11)]), ("b", [asked(0, 0, last=-1, start=7)]))]),
        (1, SendDue(), []),
    )


def test_records_are_delivered_and_the_next_fetch_names_only_what_has_changed() -> None:
    fetcher(
        (0, wants(A0, 10), [SendSoon()]),
        (0, wants(B0, 10), []),
        (0, SendDue(), [fetch((0, 0), ("a", [asked(0, 10)]), ("b", [asked(0, 10)]))]),
        (
            1,
            answer(9, ("a", [data(0, b"records")]), ("b", [data(0)])),
            [answered(A0, 10, b"records"), answered(B0, 10), SendAtOnce()],
        ),
        (1, wants(A0, 15, last=5), []),
        (1, wants(B0, 10), []),
        (1, SendDue(), [fetch((9, 1), ("a", [asked(0, 15, last=5)]))]),
        (2, answer(9), [SendAtOnce()]),
        (2, SendDue(), [fetch((9, 2))]),
    )


def test_idle_fetch_costs_the_same_for_many_partitions() -> None:
    made = in_session(*[FollowedPartition("a", A_ID, index) for index in range(500)])
    play(made, (1, answer(9), [SendAtOnce()]), (1, SendDue(), [fetch((9, 2))]), (2, answer(9), [SendAtOnce()]))


def test_partition_that_is_still_being_appended_is_forgotten_until_it_asks_again() -> None:
    play(
        in_session(A0, A1),
        (1, answer(9, ("a", [data(0, b"many")])), [answered(A0, 10, b"many"), SendAtOnce()]),
        (1, SendDue(), [fetch((9, 2), forgotten=[("a", [0])], wait_ms=MAX_WAIT_DURING_APPENDS_MS)]),
        (2, wants(A0, 20), []),
        (3, answer(9), [SendAtOnce()]),
        (3, SendDue(), [fetch((9, 3), ("a", [asked(0, 20)]))]),
    )


def test_fetch_without_a_partition_that_is_still_being_appended_waits_on_the_leader_only_briefly() -> None:
    made = in_session(A0, B0)
    play(
        made,
        (1, answer(9, ("a", [data(0, b"many")])), [answered(A0, 10, b"many"), SendAtOnce()]),
        (1, SendDue(), [fetch((9, 2), forgotten=[("a", [0])], wait_ms=MAX_WAIT_DURING_APPENDS_MS)]),
        (11, answer(9), [SendAtOnce()]),
        (11, SendDue(), [fetch((9, 3), wait_ms=MAX_WAIT_DURING_APPENDS_MS)]),
        (12, wants(A0, 20), []),
        (21, answer(9), [SendAtOnce()]),
        (21, SendDue(), [fetch((9, 4), ("a", [asked(0, 20)]), wait_ms=500)]),
    )


def test_next_fetch_waits_while_all_partitions_are_being_appended() -> None:
    play(
        in_session(A0),
        (1, answer(9, ("a", [data(0, b"many")])), [answered(A0, 10, b"many"), SendAtOnce()]),
        (1, SendDue(), []),
        (2, wants(A0, 20), [SendSoon()]),
        (2, SendDue(), [fetch((9, 2), ("a", [asked(0, 20)]))]),
    )


def test_partitions_that_are_added_and_stopped_in_flight_change_the_next_fetch() -> None:
    play(
        in_session(A0, A1),
        (1, wants(B0, 3), []),
        (1, Requested(A0, StopFetching()), []),
        (2, answer(9, ("a", [data(0, b"late")])), [SendAtOnce()]),
        (2, SendDue(), [fetch((9, 2), ("b", [asked(0, 3)]), forgotten=[("a", [0])])]),
    )


def test_answer_for_a_former_position_is_ignored() -> None:
    play(
        in_session(A0),
        (1, wants(A0, 8, epoch=6), []),
        (2, answer(9, ("a", [data(0, b"late")])), [SendAtOnce()]),
        (2, SendDue(), [fetch((9, 2), ("a", [asked(0, 8, epoch=6)]))]),
    )


def test_partition_that_is_stopped_and_wanted_again_stays_in_the_session() -> None:
    play(
        in_session(A0),
        (1, Requested(A0, StopFetching()), []),
        (1, wants(A0, 10), []),
        (2, answer(9), [SendAtOnce()]),
        (2, SendDue(), [fetch((9, 2))]),
    )


def test_last_partition_that_stops_frees_the_session() -> None:
    play(
        in_session(A0),
        (1, Requested(A0, StopFetching()), []),
        (2, answer(9), [SendAtOnce()]),
        (2, SendDue(), [fetch((9, 2), forgotten=[("a", [0])])]),
        (3, answer(0), [SendAtOnce()]),
        (3, SendDue(), []),
    )


def test_topic_that_is_created_again_replaces_the_deleted_one() -> None:
    again = FollowedPartition("a", b"c" * 16, 0)
    made = in_session(A0)
    play(made, (1, Requested(A0, StopFetching()), []), (1, wants(again, 0), []), (2, answer(9), [SendAtOnce()]))
    [send] = made.step(SendDue(), 2)
    assert isinstance(send, SendFetch)
    assert send.request.topics == [FetchTopic(topic="a", topic_id=b"c" * 16, partitions=[asked(0, 0)])]
    assert send.request.forgotten_topics_data == [ForgottenTopic(topic_id=A_ID, partitions=[0])]


def test_topic_that_is_created_again_is_not_forgotten_by_its_name() -> None:
    """A leader that knows topics by their names adds partitions first, and then forgets."""
    again = FollowedPartition("a", b"c" * 16, 0)
    settings = replace(SETTINGS, versions=VERSIONS["2.8"])
    made = Fetcher(settings)
    made.step(wants(A0, 10), 0)
    [send] = made.step(SendDue(), 0)
    assert isinstance(send, SendFetch)
    assert (send.version, send.request.replica_id, send.request.replica_state) == (12, SELF, None)
    response = FetchResponse(session_id=9, responses=[FetchableTopicResponse(topic="a", partitions=[data(0)])])
    play(
        made,
        (1, FetchAnswered(response), [answered(A0, 10), SendAtOnce()]),
        (1, Requested(A0, StopFetching()), []),
        (1, wants(again, 0), []),
    )
    [send] = made.step(SendDue(), 1)
    assert isinstance(send, SendFetch)
    assert [topic.topic for topic in send.request.topics] == ["a"]
    assert send.request.forgotten_topics_data == []


def test_topic_without_an_id_changes_the_session_to_names() -> None:
    made = in_session(A0)
    play(made, (1, wants(FollowedPartition("old", ZERO_TOPIC_ID, 0), 0), []), (2, answer(9), [SendAtOnce()]))
    [send] = made.step(SendDue(), 2)
    assert isinstance(send, SendFetch)
    assert (send.version, send.request.session_id, send.request.session_epoch) == (12, 9, 0)
    assert [topic.topic for topic in send.request.topics] == ["a", "old"]


@pytest.mark.parametrize(
    ("error", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 9)],
)
def test_lost_session_is_followed_by_another_one_at_once(error: ErrorCode, session_id: int) -> None:
    play(
        in_session(A0, B0),
        (1, answer(0, error=error), [SendAtOnce()]),
        (1, SendDue(), [fetch((session_id, 0), ("a", [asked(0, 10)]), ("b", [asked(0, 10)]))]),
    )


def test_other_error_of_the_session_is_followed_by_a_pause() -> None:
    play(
        in_session(A0),
        (1, answer(0, error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR), [WakeAt(1 + BACK_OFF_MS)]),
        (2, SendDue(), [WakeAt(1 + BACK_OFF_MS)]),
        (1 + BACK_OFF_MS, TimeCame(), [SendSoon()]),
        (1 + BACK_OFF_MS, SendDue(), [fetch((9, 0), ("a", [asked(0, 10)]))]),
    )


def test_fetcher_whose_effects_were_not_executed_fetches_again_after_a_pause() -> None:
    play(
        in_session(A0),
        (1, answer(9), [SendAtOnce()]),
        (2, RequestFailed(), [WakeAt(2 + BACK_OFF_MS)]),
        (2 + BACK_OFF_MS, TimeCame(), [SendSoon()]),
        (2 + BACK_OFF_MS, SendDue(), [fetch((9, 0), ("a", [asked(0, 10)]))]),
    )


def test_full_fetch_that_is_answered_with_a_lost_session_is_followed_by_a_pause() -> None:
    fetcher(
        (0, wants(A0, 10), [SendSoon()]),
        (0, SendDue(), [fetch((0, 0), ("a", [asked(0, 10)]))]),
        (1, answer(0, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), [WakeAt(1 + BACK_OFF_MS)]),
    )


def test_leader_without_room_for_a_session_gets_full_fetches() -> None:
    fetcher(
        (0, wants(A0, 10), [SendSoon()]),
        (0, SendDue(), [fetch((0, 0), ("a", [asked(0, 10)]))]),
        (1, answer(0, ("a", [data(0)])), [answered(A0, 10), SendAtOnce()]),
        (1, wants(A0, 10), []),
        (1, SendDue(), [fetch((0, 0), ("a", [asked(0, 10)]))]),
    )


@pytest.mark.parametrize(
    "hostile",
    [
        answer(9, ("b", [data(0)])),
        answer(9, ("a", [data(7)])),
        answer(9, ("a", [data(0), data(0)])),
    ],
    ids=["another topic", "another partition", "a partition twice"],
)
def test_answer_with_partitions_that_were_not_asked_for_is_not_delivered(hostile: FetchAnswered) -> None:
    play(in_session(A0), (1, hostile, [WakeAt(1 + BACK_OFF_MS)]))


def test_full_answer_that_lacks_a_partition_is_not_delivered() -> None:
    fetcher(
        (0, wants(A0, 10), [SendSoon()]),
        (0, wants(A1, 10), []),
        (0, SendDue(), [fetch((0, 0), ("a", [asked(0, 10), asked(1, 10)]))]),
        (1, answer(9, ("a", [data(0)])), [WakeAt(1 + BACK_OFF_MS)]),
    )


def test_lost_connection_pauses_the_fetcher_and_not_its_followers() -> None:
    play(
        in_session(A0, A1),
        (5, RequestFailed(), [WakeAt(5 + BACK_OFF_MS)]),
        (6, wants(A0, 10), [SendSoon()]),
        (6, SendDue(), [WakeAt(5 + BACK_OFF_MS)]),
        (7, TimeCame(), [WakeAt(5 + BACK_OFF_MS)]),
        (5 + BACK_OFF_MS, TimeCame(), [SendSoon()]),
        (5 + BACK_OFF_MS, SendDue(), [fetch((9, 0), ("a", [asked(0, 10), asked(1, 10)]))]),
    )


def test_error_of_a_partition_is_delivered_and_the_others_go_on() -> None:
    play(
        in_session(A0, A1),
        (
            1,
            answer(9, ("a", [data(1, b"more"), data(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)])),
            [answered(A1, 10, b"more"), Deliver(A0, Refused(5, ErrorCode.NOT_LEADER_OR_FOLLOWER)), SendAtOnce()],
        ),
        (1, wants(A1, 14), []),
        (1, Requested(A0, BackOff(300)), [WakeAt(300)]),
        (1, SendDue(), [fetch((9, 2), ("a", [asked(1, 14)]), forgotten=[("a", [0])])]),
        (300, TimeCame(), [Deliver(A0, BackOffEnded())]),
        (300, wants(A0, 10), []),
        (400, answer(9), [SendAtOnce()]),
        (400, SendDue(), [fetch((9, 3), ("a", [asked(0, 10)]))]),
    )


def test_error_that_no_version_knows_is_an_unknown_error() -> None:
    refused = Deliver(A0, Refused(5, ErrorCode.UNKNOWN_SERVER_ERROR))
    play(in_session(A0), (1, answer(9, ("a", [data(0, error=9_999)])), [refused, SendAtOnce()]))


def test_divergence_is_delivered() -> None:
    diverging = Answered(5, 10, b"", 10, 0, (3, 6))
    play(
        in_session(A0),
        (
            1,
            answer(9, ("a", [data(0, diverging_epoch=EpochEndOffset(epoch=3, end_offset=6))])),
            [Deliver(A0, diverging), SendAtOnce()],
        ),
    )


def test_back_off_that_is_replaced_does_not_end() -> None:
    fetcher(
        (0, Requested(A0, BackOff(100)), [WakeAt(100)]),
        (0, Requested(A1, BackOff(200)), []),
        (50, wants(A0, 1), [SendSoon()]),
        (100, TimeCame(), [WakeAt(200)]),
        (200, TimeCame(), [Deliver(A1, BackOffEnded())]),
    )


def offsets(*asked_for: tuple[int, int]) -> SendListOffsets:
    partitions = [
        ListOffsetsPartition(partition_index=index, current_leader_epoch=5, timestamp=timestamp) for index, timestamp in asked_for
    ]
    return SendListOffsets(ListOffsetsRequest(replica_id=SELF, topics=[ListOffsetsTopic(name="a", partitions=partitions)]), 9)


def test_offsets_are_asked_for_between_two_fetches() -> None:
    found = ListOffsetsPartitionResponse(partition_index=0, offset=40)
    refused = ListOffsetsPartitionResponse(partition_index=1, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    response = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="a", partitions=[found, refused])])
    play(
        in_session(A0, A1, FollowedPartition("a", A_ID, 2)),
        (1, Requested(A0, AskLatestOffset(LEADER, 5)), []),
        (1, Requested(A1, AskEarliestOffset(LEADER, 5)), []),
        (2, answer(9), [SendAtOnce()]),
        (2, SendDue(), [offsets((0, LATEST), (1, EARLIEST))]),
        (
            3,
            OffsetsAnswered(response),
            [Deliver(A0, OffsetAnswered(5, 40)), Deliver(A1, Refused(5, ErrorCode.FENCED_LEADER_EPOCH)), SendAtOnce()],
        ),
        (3, wants(A0, 40), []),
        (3, SendDue(), [fetch((9, 2), ("a", [asked(0, 40)]), forgotten=[("a", [1])])]),
    )


@pytest.mark.parametrize(
    "answers",
    [[], [ListOffsetsPartitionResponse(partition_index=0, offset=-1)]],
    ids=["missing", "without an offset"],
)
def test_answer_without_an_offset_counts_as_a_failure(answers: list[ListOffsetsPartitionResponse]) -> None:
    response = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="a", partitions=answers)])
    fetcher(
        (0, Requested(A0, AskLatestOffset(LEADER, 5)), [SendSoon()]),
        (0, SendDue(), [offsets((0, LATEST))]),
        (1, OffsetsAnswered(response), [Deliver(A0, ConnectionLost()), SendAtOnce()]),
    )


def test_lost_connection_with_offsets_in_flight_reaches_the_followers_that_still_ask() -> None:
    fetcher(
        (0, Requested(A0, AskLatestOffset(LEADER, 5)), [SendSoon()]),
        (0, Requested(A1, AskLatestOffset(LEADER, 5)), []),
        (0, SendDue(), [offsets((0, LATEST), (1, LATEST))]),
        (1, wants(A1, 3), []),
        (2, RequestFailed(), [Deliver(A0, ConnectionLost()), WakeAt(2 + BACK_OFF_MS)]),
    )


def test_many_new_partitions_go_into_several_requests_that_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "PARTITIONS_PER_REQUEST", 2)
    fetcher(
        (0, wants(A0, 10), [SendSoon()]),
        (0, wants(A1, 10), []),
        (0, wants(B0, 10), []),
        (0, SendDue(), [fetch((0, 0), ("a", [asked(0, 10), asked(1, 10)]), wait_ms=0)]),
        (1, answer(9, ("a", [data(0), data(1)])), [answered(A0, 10), answered(A1, 10), SendAtOnce()]),
        (1, wants(A0, 10), []),
        (1, wants(A1, 10), []),
        (1, SendDue(), [fetch((9, 1), ("b", [asked(0, 10)]))]),
    )


def test_epoch_of_the_session_begins_again_after_the_greatest() -> None:
    made = in_session(A0)
    made._session.epoch = MAX_SESSION_EPOCH
    play(made, (1, answer(9), [SendAtOnce()]), (1, SendDue(), [fetch((9, 1))]))


def throttled(limit: int, *listed: FollowedPartition) -> FetcherSettings:
    """Returns the settings with a throttle of `limit` bytes in a window of a second, for the partitions."""
    names = {(each.topic, each.partition) for each in listed}
    throttle = ReplicationThrottle(lambda: limit, lambda topic, index: (topic, index) in names, Rate(1, 1_000))
    return replace(SETTINGS, throttle=throttle)


def test_throttled_partition_over_the_rate_is_left_out_and_fetched_again_once_the_rate_has_fallen() -> None:
    play(
        in_session(A0, A1, settings=throttled(3, A0)),
        (100, answer(9, ("a", [data(0, b"much", watermark=99)])), [answered_far(A0, b"much"), SendAtOnce()]),
        (100, wants(A0, 20), []),
        (100, SendDue(), [fetch((9, 2), forgotten=[("a", [0])])]),
        (600, answer(9), [SendAtOnce()]),
        (600, SendDue(), [fetch((9, 3))]),
        (1_100, answer(9), [SendAtOnce()]),
        (1_100, SendDue(), [fetch((9, 4), ("a", [asked(0, 20)]))]),
    )


def test_throttled_partition_that_is_in_sync_is_fetched_over_the_rate() -> None:
    play(
        in_session(A0, settings=throttled(3, A0)),
        (100, answer(9, ("a", [data(0, b"much", watermark=20)])), [answered(A0, 10, b"much", 20), SendAtOnce()]),
        (100, wants(A0, 20), []),
        (100, SendDue(), [fetch((9, 2), ("a", [asked(0, 20)]))]),
    )


def test_partition_that_is_not_throttled_is_fetched_over_the_rate() -> None:
    play(
        in_session(A0, A1, settings=throttled(3, A0)),
        (
            100,
            answer(9, ("a", [data(0, b"much", watermark=99), data(1, b"more", watermark=99)])),
            [answered_far(A0, b"much"), answered_far(A1, b"more"), SendAtOnce()],
        ),
        (100, wants(A0, 20), []),
        (100, wants(A1, 20), []),
        (100, SendDue(), [fetch((9, 2), ("a", [asked(1, 20)]), forgotten=[("a", [0])])]),
    )


def test_fetcher_whose_partitions_are_all_throttled_ends_its_session_and_tries_again_after_the_back_off() -> None:
    play(
        in_session(A0, settings=throttled(3, A0)),
        (100, answer(9, ("a", [data(0, b"much", watermark=99)])), [answered_far(A0, b"much"), SendAtOnce()]),
        (100, wants(A0, 20), []),
        (100, SendDue(), [fetch((9, 2), forgotten=[("a", [0])])]),
        (101, answer(0), [SendAtOnce()]),
        (101, SendDue(), [WakeAt(1_101)]),
        (1_101, TimeCame(), [SendSoon()]),
        (1_101, SendDue(), [fetch((0, 0), ("a", [asked(0, 20)]))]),
    )


def test_throttled_partition_that_is_stopped_is_not_fetched_again() -> None:
    play(
        in_session(A0, settings=throttled(3, A0)),
        (100, answer(9, ("a", [data(0, b"much", watermark=99)])), [answered_far(A0, b"much"), SendAtOnce()]),
        (100, wants(A0, 20), []),
        (100, SendDue(), [fetch((9, 2), forgotten=[("a", [0])])]),
        (101, Requested(A0, StopFetching()), []),
        (101, answer(0), [SendAtOnce()]),
        (101, SendDue(), []),
    )
