"""A follower through elections, truncations, kills and a power loss: in the end its log is the leader's, byte for byte.

The leader's log is a real one. An election replaces its end: the new leader may lack any records that are not committed. The
follower finds the divergence by leader epochs, as KIP-101 and KIP-279 describe.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from wirekafka.log.log import Log
from wirekafka.log.producer_state import Ending
from wirekafka.log.storage import FileRegion
from wirekafka.pending import finish
from wirekafka.testing.remembering_storage import Fate, RememberingStorage
from wirekafka.tests.log.logs import NOW_MS, World, check_indexes, config_with, idempotent, transactional
from wirekafka.wire.control import EndMarker

LEADER = config_with(segment_bytes=1 << 20, index_interval_bytes=100)
FOLLOWER = config_with(segment_bytes=500, index_interval_bytes=100)
IDEMPOTENT, TRANSACTIONAL = 1, 2


class Replicas:
    """The log of a leader and the log of its follower."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = RememberingStorage(root)
        self.leader = World().open_log(root / "leader", LEADER)
        self.leader_epoch = 0
        self.follower_path = root / "topic-0"
        self.follower = self.open(World(storage=self.storage))
        self.follower.reader.folder.ledger.place.written += 1

    def open(self, world: World, *, has_lost_power: bool = False) -> Log:
        """Opens the follower's log with the offsets that are stored, if there are any."""
        recovery_point, log_start_offset, high_watermark = self.stored if hasattr(self, "stored") else (0, 0, 0)
        follower = world.open_log(
            self.follower_path,
            FOLLOWER,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            has_lost_power=has_lost_power,
        )
        follower.reader.services.store_offsets = lambda _: self.store()
        self.follower = follower
        self.store()
        return follower

    def store(self) -> None:
        """Writes the checkpoints of the follower."""
        reader = self.follower.reader
        self.stored = (self.follower.flusher.recovery_point, reader.log_start_offset, reader.high_watermark)

    # What happens to the leader

    def write(self) -> None:
        self._append(IDEMPOTENT)

    def transact(self) -> None:
        self._append(TRANSACTIONAL)

    def _append(self, producer_id: int) -> None:
        known = self.leader.reader.producers.find(producer_id)
        sequence = known.last_sequence + 1 if known is not None else 0
        build = transactional if producer_id == TRANSACTIONAL else idempotent
        records = build(sequence, 1 + sequence % 3, producer_id=producer_id)
        self.leader.append(records, leader_epoch=self.leader_epoch, now_ms=NOW_MS)

    def end_transaction(self) -> None:
        ending = Ending(EndMarker(self.leader_epoch % 2 == 0, 0), 1)
        self.leader.append_marker(TRANSACTIONAL, 0, ending, leader_epoch=self.leader_epoch, now_ms=NOW_MS)

    def elect(self) -> None:
        """Elects a leader that lacks the last records, but none that is committed."""
        committed_offset = self.follower.reader.high_watermark
        self._elect((committed_offset + self.leader.reader.log_end_offset) // 2)

    def elect_unclean(self) -> None:
        """Elects a leader that lacks committed records."""
        self._elect(self.leader.reader.log_end_offset // 2)

    def _elect(self, end_offset: int) -> None:
        self.leader.truncate_to(end_offset)
        self.leader_epoch += 1
        self.leader.begin_leader_epoch(self.leader_epoch)

    def delete_records(self) -> None:
        reader = self.leader.reader
        self.leader.retention.delete_records((reader.log_start_offset + reader.high_watermark) // 2)

    # What the follower does

    def fetch(self, max_bytes: int = 200) -> None:
        """Fetches and appends, or truncates to a divergence."""
        follower, leader = self.follower.reader, self.leader.reader
        offset, last_epoch = follower.log_end_offset, follower.epochs.latest
        if offset > leader.log_end_offset:
            self.follower.truncate_to(leader.log_end_offset)
        elif offset < leader.log_start_offset:
            self.follower.truncate_fully_and_start_at(leader.log_start_offset)
        elif last_epoch is None or not self._truncates(last_epoch, offset):
            self._append_from(offset, max_bytes)

    def _append_from(self, offset: int, max_bytes: int) -> None:
        follower, leader = self.follower.reader, self.leader.reader
        found = leader.read(offset, max_bytes=max_bytes, end_offset=leader.log_end_offset, min_one_batch=True)
        data = found.read() if isinstance(found, FileRegion) else found
        finish(self.follower.append_as_follower(memoryview(data), leader_epoch=self.leader_epoch))
        committed_offset = follower.log_end_offset
        if committed_offset > leader.high_watermark:
            leader.advance_high_watermark(committed_offset)
        self.follower.adopt_leader_offsets(high_watermark=leader.high_watermark, log_start_offset=leader.log_start_offset)

    def _truncates(self, last_epoch: int, offset: int) -> bool:
        if last_epoch == self.leader_epoch:
            return False
        """Truncates if the last epoch of the follower ended earlier for the leader, or the leader does not know it."""
        end = self.leader.reader.end_offset_for_epoch(last_epoch)
        assert end is not None, "the leader knows an epoch that is not earlier"
        if end.epoch == last_epoch and end.end_offset >= offset:
            return False
        own = self.follower.reader.end_offset_for_epoch(end.epoch)
        self.follower.truncate_to(end.end_offset if own is None else min(end.end_offset, own.end_offset))
        return True

    def roll(self) -> None:
        self.follower.roll()

    def flush(self) -> None:
        self.follower.flusher.flush()

    def kill(self) -> None:
        self.follower.reader.close()
        self.open(World(storage=self.storage))

    def lose_power(self, fate: Fate) -> None:
        image = self.storage.lose_power(len(self.storage.operations), contents=fate, names=fate)
        self.follower.reader.close()
        image.put(self.root / "disk")
        self.follower_path = self.root / "disk" / "topic-0"
        self.follower_path.mkdir(exist_ok=True)
        self.open(World(), has_lost_power=True)

    def converge(self) -> None:
        """Fetches until the follower has everything, and compares the logs."""
        leader, follower = self.leader.reader, self.follower.reader
        for _ in range(1000):
            former = follower.log_end_offset
            self.fetch()
            if follower.log_end_offset == former == leader.log_end_offset:
                break
        self.follower.adopt_leader_offsets(high_watermark=leader.log_end_offset, log_start_offset=leader.log_start_offset)
        start_offset = follower.log_start_offset
        assert start_offset >= leader.log_start_offset
        assert b"".join(follower.batches()) == b"".join(leader.batches(start_offset))
        check_indexes(self.follower)
        assert follower.log_start_offset <= follower.last_stable_offset <= follower.high_watermark == follower.log_end_offset
        if start_offset == 0:
            follower_epochs = [entry for entry in leader.epochs.entries if entry.start_offset < leader.log_end_offset]
            assert list(follower.epochs.entries) == follower_epochs
            assert follower.producers.open_transactions == leader.producers.open_transactions
            for producer_id in (IDEMPOTENT, TRANSACTIONAL):
                own, theirs = follower.producers.find(producer_id), leader.producers.find(producer_id)
                assert (own and own.last_sequence) == (theirs and theirs.last_sequence)
            aborted = [each.last_offset for each in leader.aborted_transactions(0, leader.log_end_offset)]
            assert [each.last_offset for each in follower.aborted_transactions(0, follower.log_end_offset)] == aborted


ACTIONS = ("write", "transact", "end_transaction", "fetch", "fetch", "fetch", "elect", "roll", "flush", "store", "kill")
RARE = (*ACTIONS, "elect_unclean", "delete_records")


def live(replicas: Replicas, actions: list[str]) -> None:
    for action in actions:
        getattr(replicas, action)()


@settings(max_examples=150)
@given(
    before=st.lists(st.sampled_from(RARE), max_size=30),
    fate=st.sampled_from(list(Fate)),
    after=st.lists(st.sampled_from(RARE), max_size=15),
)
def test_follower_has_the_leaders_log_in_the_end(before: list[str], fate: Fate, after: list[str]) -> None:
    root = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        replicas = Replicas(root)
        live(replicas, before)
        replicas.lose_power(fate)
        replicas.storage = RememberingStorage(root / "unused")
        live(replicas, [action for action in after if action != "kill"])
        replicas.converge()
        replicas.leader.reader.close()
        replicas.follower.reader.close()
    finally:
        shutil.rmtree(root)
