"""Random consumers, expired locks, restarts and a growing log start offset, against one share partition.

Invariants: each record has one state; no record is acquired by two consumers or delivered more often than the limit; accepted
and rejected records are never delivered again; no record is lost; and the stored state equals the state in memory, apart from
acquired records.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wirekafka.coordinator.share_delivery.acquisition import AcquireMode, AcquireRequest, Limits, LogBatch
from wirekafka.coordinator.share_delivery.in_flight import all_runs
from wirekafka.coordinator.share_delivery.share_partition import Acknowledgement, AcknowledgeType, SharePartition
from wirekafka.coordinator.share_state.batches import FINAL_STATES, RecordState, StateChange
from wirekafka.coordinator.share_state.records import ShareKey, ShareStateRecord, decode, encode
from wirekafka.coordinator.share_state.state import ShareStates
from wirekafka.errors import ErrorCode, KafkaError

KEY = ShareKey("g", bytes(range(16)), 0)
MEMBERS = st.sampled_from(["a", "b", "c"])
LOCK_MS = 100
FINAL = {AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.GAP}


class Share(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(max_delivery_count=4, lock_duration_ms=LOCK_MS, max_in_flight=40)
        self.now_ms = 0
        self.log: list[LogBatch] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.aborted: set[int] = set()
        self.states = ShareStates(updates_per_snapshot=5)
        self.write(self.states.initialize(KEY, 1, 0, 0))
        self.share = SharePartition(0, 1)
        self.held: dict[int, tuple[str, int]] = {}
        self.done: set[int] = set()

    def write(self, record: ShareStateRecord) -> None:
        read = decode(*encode(record))
        assert read is not None
        self.states.replay(read)

    def remember(self, change: StateChange | None) -> None:
        if change is not None:
            self.write(self.states.write(KEY, change, 0, self.now_ms))

    @rule(count=st.integers(1, 12), hole=st.sampled_from([0, 0, 0, 3]), is_aborted=st.sampled_from([False, False, True]))
    def append(self, count: int, hole: int, is_aborted: bool) -> None:
        first_offset = self.log_end_offset + hole
        self.log_end_offset = first_offset + count
        self.log.append(LogBatch(first_offset, self.log_end_offset - 1))
        if is_aborted:
            self.aborted.add(first_offset)

    @rule(
        member=MEMBERS,
        max_records=st.integers(0, 20),
        batch_size=st.integers(1, 10),
        mode=st.sampled_from(AcquireMode),
        batch_count=st.integers(1, 3),
    )
    def fetch(self, member: str, max_records: int, batch_size: int, mode: AcquireMode, batch_count: int) -> None:
        if not self.share.can_acquire(self.limits):
            return
        fetch_offset = self.share.fetch_offset()
        found = [batch for batch in self.log if batch.last_offset >= fetch_offset][:batch_count]
        aborted = [batch for batch in found if batch.base_offset in self.aborted]
        wish = AcquireRequest(member, max_records, batch_size, mode)
        acquired, change = self.share.acquire(wish, fetch_offset, found, self.limits, self.now_ms, aborted)
        self.remember(change)
        for first_offset, last_offset, delivery_count in acquired:
            assert delivery_count <= self.limits.max_delivery_count
            for offset in range(first_offset, last_offset + 1):
                assert offset not in self.held, "two consumers have it"
                assert offset not in self.done, "it was done with"
                assert not any(batch.base_offset <= offset <= batch.last_offset for batch in aborted)
                self.held[offset] = (member, self.now_ms + LOCK_MS)
        if mode is AcquireMode.RECORD_LIMIT:
            assert sum(each.record_count for each in acquired) <= max_records

    @rule(
        member=MEMBERS,
        start=st.integers(0, 100),
        length=st.integers(1, 8),
        types=st.lists(st.sampled_from(AcknowledgeType), min_size=1, max_size=8),
        disk_is_full=st.sampled_from([False, False, False, True]),
    )
    def acknowledge(self, member: str, start: int, length: int, types: list[AcknowledgeType], disk_is_full: bool) -> None:
        own = sorted(offset for offset, (owner, _) in self.held.items() if owner == member)
        first_offset = own[start % len(own)] if own and start < 90 else start
        last_offset = first_offset + (len(types) if len(types) > 1 else length) - 1
        offsets = [offset for offset in range(first_offset, last_offset + 1) if offset >= self.share.start_offset]
        before = self.share.mark()
        said = [Acknowledgement(first_offset, last_offset, types)]
        refusal, change = None, None
        try:
            change = self.share.acknowledge(member, said, self.limits, self.now_ms)
        except KafkaError as error:
            refusal = error.code
        if refusal is not None:
            assert refusal in (ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST)
            assert self.share.mark() == before
            assert not all(self.held.get(offset, ("", 0))[0] == member for offset in offsets)
            return
        if disk_is_full:
            self.share.restore(before)
            return
        self.remember(change)
        for offset in offsets:
            if offset not in self.held and self.is_hole(offset):
                continue
            assert self.held[offset][0] == member
            what = types[offset - first_offset] if len(types) > 1 else types[0]
            if what == AcknowledgeType.RENEW:
                self.held[offset] = (member, self.now_ms + LOCK_MS)
                continue
            del self.held[offset]
            if what in FINAL:
                self.done.add(offset)

    def is_hole(self, offset: int) -> bool:
        return not any(batch.base_offset <= offset <= batch.last_offset for batch in self.log)

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.remember(self.share.release(member, self.limits))
        self.held = {offset: held for offset, held in self.held.items() if held[0] != member}

    @rule(ms=st.integers(1, LOCK_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.remember(self.share.expire_locks(self.limits, self.now_ms))
        self.held = {offset: held for offset, held in self.held.items() if held[1] > self.now_ms}
        deadlines = [deadline for _, deadline in self.held.values()]
        assert self.share.next_deadline_ms == min(deadlines, default=None)

    @rule(count=st.integers(1, 2))
    def delete_from_log(self, count: int) -> None:
        if len(self.log) <= count:
            return
        self.log = self.log[count:]
        self.log_start_offset = self.log[0].base_offset
        self.remember(self.share.move_start(self.log_start_offset))
        self.held = {offset: held for offset, held in self.held.items() if offset >= self.log_start_offset}

    @rule()
    def restart(self) -> None:
        self.share = self.replayed()
        self.held = {}

    def replayed(self) -> SharePartition:
        state = self.states.by_key[KEY]
        assert state.start_offset is not None
        return SharePartition(state.start_offset, state.state_epoch, state.batches)

    @invariant()
    def records_have_one_state_and_one_owner(self) -> None:
        expected = self.share.start_offset
        for batch in self.share.in_flight:
            assert batch.first_offset >= expected
            assert batch.runs[0].first_offset == batch.first_offset
            assert batch.runs[-1].last_offset == batch.last_offset
            for run, following in zip(batch.runs, batch.runs[1:], strict=False):
                assert run.last_offset + 1 == following.first_offset
            expected = batch.last_offset + 1
        assert self.share.next_offset >= expected
        owned = {
            offset: run.member_id
            for run in all_runs(self.share.in_flight)
            if run.state is RecordState.ACQUIRED
            for offset in range(run.first_offset, run.last_offset + 1)
        }
        assert owned == {offset: member for offset, (member, _) in self.held.items()}

    @invariant()
    def what_was_written_is_what_is_known(self) -> None:
        live, again = self.of_offsets(self.share), self.of_offsets(self.replayed())
        for offset, (state, count) in live.items():
            if state is RecordState.ACQUIRED:
                state, count = RecordState.AVAILABLE, count - 1
            unknown = (RecordState.AVAILABLE, 0)
            assert again.get(offset, unknown) == (state, count), offset
        for offset, (state, _) in again.items():
            assert state not in FINAL_STATES or live[offset][0] is state
        written = self.states.by_key[KEY]
        assert written.delivery_complete_count == sum(
            batch.state in FINAL_STATES and batch.last_offset - batch.first_offset + 1 for batch in written.batches
        )

    def of_offsets(self, share: SharePartition) -> dict[int, tuple[RecordState, int]]:
        return {
            offset: (run.state, run.delivery_count)
            for run in all_runs(share.in_flight)
            for offset in range(run.first_offset, run.last_offset + 1)
        }

    def teardown(self) -> None:
        """No record is lost: repeated fetches return every record that is not in a final state."""
        self.remember(self.share.expire_locks(self.limits, self.now_ms + LOCK_MS))
        self.held = {}
        for _ in range(2000):
            fetch_offset = self.share.fetch_offset()
            found = [batch for batch in self.log if batch.last_offset >= fetch_offset]
            if not found:
                break
            aborted = [batch for batch in found if batch.base_offset in self.aborted]
            wish = AcquireRequest("z", 5, 5)
            acquired, change = self.share.acquire(wish, fetch_offset, found, self.limits, self.now_ms, aborted)
            self.remember(change)
            for first_offset, last_offset, _ in acquired:
                accept = [Acknowledgement(first_offset, last_offset, [AcknowledgeType.ACCEPT])]
                self.remember(self.share.acknowledge("z", accept, self.limits, self.now_ms))
        assert self.share.start_offset >= self.log_end_offset
        assert self.share.in_flight == []


TestShare = Share.TestCase
TestShare.settings = settings(max_examples=60, stateful_step_count=40)
