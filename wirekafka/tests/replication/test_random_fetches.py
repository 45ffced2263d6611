"""A fetcher, a leader with fetch sessions and followers as models: random sequences of requests, losses and appends.

Each follower gets each record once and in order, the leader fetches for no partition that nobody follows, and when nothing fails
any more, all followers have everything and the fetcher is idle.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wirekafka.errors import ErrorCode
from wirekafka.replication.fetcher import (
    Deliver,
    Effects,
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
    AskLatestOffset,
    BackOff,
    BackOffEnded,
    ConnectionLost,
    Fetch,
    OffsetAnswered,
    Refused,
    StopFetching,
)
from wirekafka.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from wirekafka.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LEADER, EPOCH, BACK_OFF_MS = 1, 5, 100
PARTITIONS = [
    FollowedPartition(topic, f"{topic}{life}".encode() * 8, index)
    for topic in ("a", "b")
    for life in (1, 2)
    for index in range(2)
]
Key = tuple[bytes, int]


class Leader:
    """A leader whose logs are their ends; a record is one byte."""

    def __init__(self) -> None:
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.session_id = 0
        self.epoch = 0
        self.session: dict[Key, int] = {}
        self.last_id = 0
        self.refuses_sessions = False
        self.failing: set[FollowedPartition] = set()

    def fetch(self, request: FetchRequest) -> FetchResponse:
        if request.session_epoch == 0:
            self.session, self.last_id = {}, self.last_id + 1
            self.session_id = 0 if self.refuses_sessions else self.last_id
            self.epoch = 1
        elif not self.session_id or request.session_id != self.session_id:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif request.session_epoch != self.epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        else:
            self.epoch += 1
        for topic in request.topics:
            for asked in topic.partitions:
                self.session[topic.topic_id, asked.partition] = asked.fetch_offset
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                del self.session[forgotten.topic_id, index]
        if not self.session:
            self.session_id = 0
        is_full = request.session_epoch == 0
        responses = [
            FetchableTopicResponse(topic_id=partition.topic_id, partitions=[data])
            for partition in PARTITIONS
            if (data := self.read(partition, is_full=is_full)) is not None
        ]
        return FetchResponse(session_id=self.session_id, responses=responses)

    def read(self, partition: FollowedPartition, *, is_full: bool) -> PartitionData | None:
        index, end = partition.partition, self.ends[partition]
        offset = self.session.get((partition.topic_id, index))
        if offset is None:
            return None
        if partition in self.failing:
            return PartitionData(partition_index=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if offset == end and not is_full:
            return None
        return PartitionData(partition_index=index, high_watermark=end, records=bytes(min(end - offset, 3)))

    def offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        response = ListOffsetsResponse()
        for topic in request.topics:
            for asked in topic.partitions:
                found = ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=0)
                response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=[found]))
        return response


class Follower:
    """What one follower has, and what it waits for: an answer, the end of an append, or an offset."""

    def __init__(self) -> None:
        self.end = 0
        self.waits_for = "answer"
        self.missing = 0
        self.retry_ms = 0


class FetcherMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.leader = Leader()
        self.followers: dict[FollowedPartition, Follower] = {}
        self.fetcher = Fetcher(FetcherSettings(replica_id=3, broker_epoch=lambda: 1, back_off_ms=BACK_OFF_MS))
        self.is_send_due = False
        self.wakes: list[int] = []
        self.sent: SendFetch | SendListOffsets | None = None
        self.answer: FetchResponse | ListOffsetsResponse | None = None
        self.appends_at_once = True

    def step(self, event: Event) -> None:
        self.execute(self.fetcher.step(event, self.now_ms))

    def execute(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Deliver(partition, event):
                    self.deliver(partition, event)
                case SendFetch() | SendListOffsets():
                    assert self.sent is None, "one request is in flight"
                    self.sent, self.answer = effect, None
                case SendSoon():
                    assert not self.is_send_due
                    self.is_send_due = True
                case SendAtOnce():
                    self.step(SendDue())
                case WakeAt(time_ms):
                    self.wakes.append(time_ms)

    def deliver(self, partition: FollowedPartition, event: object) -> None:
        follower = self.followers[partition]
        match event:
            case Answered(_, offset, records):
                assert (follower.waits_for, follower.end) == ("answer", offset), "each record comes once and in order"
                follower.missing, follower.waits_for = len(records), "append"
                if self.appends_at_once or not records:
                    self.end_append(partition)
            case Refused() | ConnectionLost():
                follower.waits_for, follower.retry_ms = "time", self.now_ms + BACK_OFF_MS
                self.step(Requested(partition, BackOff(follower.retry_ms)))
            case BackOffEnded():
                assert follower.waits_for == "time" and self.now_ms >= follower.retry_ms
                self.fetch(partition)
            case OffsetAnswered():
                assert follower.waits_for == "offset"
                self.fetch(partition)
            case _:
                raise AssertionError(event)

    def fetch(self, partition: FollowedPartition) -> None:
        follower = self.followers[partition]
        follower.waits_for = "answer"
        self.step(Requested(partition, Fetch(LEADER, EPOCH, follower.end, None)))

    def end_append(self, partition: FollowedPartition) -> None:
        follower = self.followers[partition]
        follower.end += follower.missing
        self.fetch(partition)

    @rule(partition=st.sampled_from(PARTITIONS))
    def follow(self, partition: FollowedPartition) -> None:
        self.followers[partition] = Follower()
        self.fetch(partition)

    @precondition(lambda self: self.followers)
    @rule(choice=st.data())
    def stop(self, choice: st.DataObject) -> None:
        partition = choice.draw(st.sampled_from(sorted(self.followers)))
        del self.followers[partition]
        self.step(Requested(partition, StopFetching()))

    @precondition(lambda self: self.followers)
    @rule(choice=st.data())
    def ask(self, choice: st.DataObject) -> None:
        partition = choice.draw(st.sampled_from(sorted(self.followers)))
        self.followers[partition].waits_for = "offset"
        self.step(Requested(partition, AskLatestOffset(LEADER, EPOCH)))

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 5))
    def produce(self, partition: FollowedPartition, count: int) -> None:
        self.leader.ends[partition] += count

    @rule(partition=st.sampled_from(PARTITIONS))
    def fail_or_mend(self, partition: FollowedPartition) -> None:
        self.leader.failing ^= {partition}

    @rule(at_once=st.booleans())
    def change_speed_of_appends(self, at_once: bool) -> None:
        self.appends_at_once = at_once

    @rule()
    def end_appends(self) -> None:
        for partition in [each for each, follower in self.followers.items() if follower.waits_for == "append"]:
            self.end_append(partition)

    @rule(refuses=st.booleans())
    def drop_session(self, refuses: bool) -> None:
        self.leader.session_id, self.leader.refuses_sessions = 0, refuses

    @precondition(lambda self: self.is_send_due)
    @rule()
    def send(self) -> None:
        self.is_send_due = False
        self.step(SendDue())

    @precondition(lambda self: self.sent is not None and self.answer is None)
    @rule()
    def arrive(self) -> None:
        match self.sent:
            case SendFetch(request):
                self.answer = self.leader.fetch(request)
            case SendListOffsets(request):
                self.answer = self.leader.offsets(request)

    @precondition(lambda self: self.answer is not None)
    @rule()
    def receive(self) -> None:
        answer, self.sent, self.answer = self.answer, None, None
        match answer:
            case FetchResponse():
                self.step(FetchAnswered(answer))
            case ListOffsetsResponse():
                self.step(OffsetsAnswered(answer))

    @precondition(lambda self: self.sent is not None)
    @rule()
    def lose(self) -> None:
        self.sent = self.answer = None
        self.step(RequestFailed())

    @precondition(lambda self: self.wakes)
    @rule()
    def wake(self) -> None:
        self.now_ms = max(self.now_ms, min(self.wakes))
        self.wakes = []
        self.step(TimeCame())

    @invariant()
    def partitions_are_in_one_place(self) -> None:
        fetcher = self.fetcher
        places = [*fetcher._fetching, *fetcher._asking, *fetcher._delays, *fetcher._answered]
        assert sorted(places) == sorted(self.followers)
        known = set(fetcher._session.entries.values())
        assert set(fetcher._news) == {each for each, position in fetcher._fetching.items() if (each, position) not in known}
        names = {fetcher._session.key_of(each) for each in fetcher._fetching}
        assert set(fetcher._forgotten) == set(fetcher._session.entries) - names

    def teardown(self) -> None:
        """Nothing fails any more: everything is replicated, and an idle Fetch names nothing."""
        self.leader.failing, self.leader.refuses_sessions, self.appends_at_once = set(), False, True
        for _ in range(40):
            self.end_appends()
            if self.is_send_due:
                self.send()
            if self.sent is not None:
                if self.answer is None:
                    self.arrive()
                self.receive()
            if self.wakes:
                self.wake()
        for partition, follower in self.followers.items():
            assert follower.end == self.leader.ends[partition]
        if self.followers:
            assert isinstance(self.sent, SendFetch)
            assert not self.sent.request.topics and not self.sent.request.forgotten_topics_data
            names = {(each.topic_id, each.partition) for each in self.followers}
            assert set(self.leader.session) == names, "the leader reads what is followed, and nothing else"


TestFetcher = FetcherMachine.TestCase
TestFetcher.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
