"""The transcripts of the transaction coordinator, in `transcripts/transactions`.

Inputs, with their defaults; a producer is ID/EPOCH, times are milliseconds from the start: `settings max_timeout=60000
expiration=100000 two_phase=no` (first line only), `init timeout=10000 expected=PRODUCER two_phase=no keep=no`,
`add PRODUCER PARTITION.. version=2`, `verify PRODUCER PARTITION..`, `commit PRODUCER version=2`, `abort PRODUCER version=2`,
`describe`, `list states=A,B producers=1,2 longer=MS pattern=REGEX`, `pass MS`, `abort-timed-out`, `expire`, `epoch NUMBER`,
`disk full`, `disk free`, `break PARTITION..`, `mend PARTITION..`, `retry`, `reload`. Inputs about one transactional id have the
argument `id=x`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.coordinator.transactions.requests import InitRequest, ProducerIdentity, TransactionFilter
from wirekafka.coordinator.transactions.settings import TransactionSettings
from wirekafka.names import TopicPartition
from wirekafka.pending import finish
from wirekafka.tests.coordinator import transcripts
from wirekafka.tests.coordinator.transactions.world import World, describe_transaction


@pytest.mark.parametrize("path", transcripts.transcripts_in("transactions"), ids=lambda path: path.stem)
def test_transcript_replayed_is_unchanged(path: Path, request: pytest.FixtureRequest) -> None:
    transcripts.check(path, TransactionPlayer(), request)


def producer_of(text: str) -> ProducerIdentity:
    producer_id, epoch = text.split("/")
    return ProducerIdentity(int(producer_id), int(epoch))


def partition_of(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


class TransactionPlayer(transcripts.Player):
    def __init__(self) -> None:
        self.world = World()

    def story(self) -> list[str]:
        return self.world.story

    def states(self) -> list[str]:
        return self.world.states()

    def do_settings(self, max_timeout: str = "60000", expiration: str = "100000", two_phase: str = "no") -> None:
        self.world = World(TransactionSettings(int(max_timeout), int(expiration), two_phase == "yes"))

    def do_init(
        self, id: str = "x", timeout: str = "10000", expected: str | None = None, two_phase: str = "no", keep: str = "no"
    ) -> None:
        producer = None if expected is None else producer_of(expected)
        request = InitRequest(id, int(timeout), producer, two_phase == "yes", keep == "yes")
        found = self.world.run(self.world.coordinator.init_producer_id(request, self.world.now_ms))
        self.tell(f"answer: producer {found.producer_id}/{found.producer_epoch}")

    def do_add(self, producer: str, *partitions: str, id: str = "x", version: str = "2") -> None:
        world = self.world
        places = frozenset(map(partition_of, partitions))
        who = producer_of(producer)
        world.run(world.coordinator.add_partitions(id, who, places, client_version=int(version), now_ms=world.now_ms))
        self.tell("answer: NONE")

    def do_verify(self, producer: str, *partitions: str, id: str = "x") -> None:
        places = frozenset(map(partition_of, partitions))
        errors = self.world.coordinator.verify_partitions(id, producer_of(producer), places)
        for place in sorted(places):
            self.tell(f"answer: {place} {errors[place].name if place in errors else 'NONE'}")

    def do_commit(self, producer: str, id: str = "x", version: str = "2") -> None:
        self.end(id, producer, True, int(version))

    def do_abort(self, producer: str, id: str = "x", version: str = "2") -> None:
        self.end(id, producer, False, int(version))

    def end(self, id: str, producer: str, is_commit: bool, version: int) -> None:
        world = self.world
        who = producer_of(producer)
        after = world.run(world.coordinator.end(id, who, is_commit=is_commit, client_version=version, now_ms=world.now_ms))
        self.tell(f"answer: producer {after.producer_id}/{after.producer_epoch}")

    def do_describe(self, id: str = "x") -> None:
        known, partitions = self.world.coordinator.describe(id)
        self.tell(f"answer: {describe_transaction(known)}; not marked {' '.join(map(str, partitions)) or 'none'}")

    def do_list(self, states: str = "", producers: str = "", longer: str | None = None, pattern: str | None = None) -> None:
        wanted = TransactionFilter(
            states=[state for state in states.split(",") if state],
            producer_ids=[int(producer) for producer in producers.split(",") if producer],
            open_longer_than_ms=None if longer is None else int(longer),
            pattern=pattern,
        )
        found = finish(self.world.coordinator.list_transactions(wanted, self.world.now_ms))
        self.tell("answer: " + (" ".join(sorted(known.transactional_id for known in found)) or "none"))

    def do_pass(self, ms: str) -> None:
        self.world.now_ms += int(ms)

    def do_abort_timed_out(self) -> None:
        self.world.abort_timed_out()

    def do_expire(self) -> None:
        self.world.expire()

    def do_epoch(self, number: str, id: str = "x") -> None:
        self.world.set_epoch(id, int(number))

    def do_disk(self, how: str) -> None:
        self.world.is_disk_full = how == "full"

    def do_break(self, *partitions: str) -> None:
        self.world.broken |= set(map(partition_of, partitions))

    def do_mend(self, *partitions: str) -> None:
        self.world.broken -= set(map(partition_of, partitions))

    def do_retry(self) -> None:
        self.world.retry()

    def do_reload(self) -> None:
        self.world.reload()
