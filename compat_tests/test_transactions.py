"""Transactions with every client that has them: commit, abort, fencing, timeouts, a group's offsets, both isolation levels.

Java 4.3.1 speaks transactions v2 (KIP-890), the others the protocol before it: each is run against the same broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import CONFLUENT, TRANSACTIONAL_CLIENTS, Agent, AgentError, Client, Transactions
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import OLD, V2, RawProducer, ask, name_of, served
from compat_tests.harness.waiting import wait_until, wait_while

JAVA_MARKS = [pytest.mark.java, pytest.mark.xdist_group("java")]

every_client = pytest.mark.parametrize(
    "client", [pytest.param(client, id=client.name, marks=JAVA_MARKS if client.java else []) for client in TRANSACTIONAL_CLIENTS]
)

FENCED = "(?i)fenced|invalid_?producer_?epoch"
"""The errors of the libraries if a newer producer has the transactional id."""


class Place:
    """A topic and a client, which opens transactional producers and reads their records."""

    def __init__(self, agent: Agent, bootstrap: str, topic: str) -> None:
        self.agent, self.bootstrap, self.topic = agent, bootstrap, topic
        self.opened: list[Transactions] = []

    def open(self, transactional_id: str | None = None, **options: object) -> Transactions:
        """Opens a transactional producer; the topic's name is the default of its id."""
        self.opened.append(self.agent.open_transactions(self.bootstrap, transactional_id or self.topic, **options))
        return self.opened[-1]

    def read(self, isolation: str) -> list[str]:
        """Returns the sorted values up to the end for this isolation level."""
        records = self.agent.read(self.bootstrap, self.topic, 0, isolation=isolation, until="end")
        return sorted((record.value or b"").decode() for record in records)

    def committed(self) -> list[str]:
        return self.read("read_committed")

    def uncommitted(self) -> list[str]:
        return self.read("read_uncommitted")

    def close(self) -> None:
        """Closes the producers; a fenced producer may fail."""
        for transactions in self.opened:
            try:
                transactions.close()
            except AgentError:
                continue


@pytest.fixture
def place(agent: Callable[[Client], Agent], broker: Broker, client: Client, topic: str) -> Iterator[Place]:
    create_topic(broker.bootstrap, topic, 2)
    place = Place(agent(client), broker.bootstrap, topic)
    yield place
    place.close()


def group_offset(bootstrap: str, group: str, topic: str, *, is_stable: bool = True) -> int | None:
    """Returns the committed offset of partition 0; None if there is none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    found = admin.list_consumer_group_offsets(asked, require_stable=is_stable)[group].result(60)
    offset = found.topic_partitions[0].offset
    return None if offset < 0 else offset


def has_coordinators(connection: RawConnection, key: str) -> bool:
    """Returns whether there are a group coordinator and a transaction coordinator."""
    found = [ask(connection, "find_coordinator", 3, key_type=kind, key=key) for kind in (0, 1)]
    return [name_of(each.error_code) for each in found] == ["NONE", "NONE"]


@every_client
def test_each_isolation_level_sees_what_it_should_of_commits_and_aborts(place: Place) -> None:
    producer = place.open()
    producer.begin()
    producer.send(place.topic, "a1", "a2", partition=0)
    producer.send(place.topic, "a3", partition=1)
    producer.commit()
    producer.begin()
    producer.send(place.topic, "b1", "b2", partition=0)
    producer.send(place.topic, "b3", partition=1)
    producer.flush()
    producer.abort()
    assert place.committed() == ["a1", "a2", "a3"]
    assert place.uncommitted() == ["a1", "a2", "a3", "b1", "b2", "b3"]
    producer.begin()
    producer.send(place.topic, "c1", partition=0)
    producer.commit()
    assert place.committed() == ["a1", "a2", "a3", "c1"]


@every_client
def test_nothing_after_an_open_transaction_is_read_until_it_ends(place: Place) -> None:
    first, second = place.open(), place.open(f"{place.topic}-second")
    first.begin()
    first.send(place.topic, "open")
    first.flush()
    second.begin()
    second.send(place.topic, "second")
    second.commit()
    assert place.committed() == []
    assert place.uncommitted() == ["open", "second"]
    first.commit()
    assert place.committed() == ["open", "second"]


@every_client
def test_a_transaction_of_many_batches_is_read_whole(place: Place) -> None:
    producer = place.open(codec="lz4" if place.agent.client.name != "kafka-python-3" else "gzip")
    for ending in (producer.commit, producer.abort, producer.commit):
        producer.begin()
        for number in range(5):
            producer.send(place.topic, f"{ending.__name__} {number}", partition=number % 2)
            producer.flush()
        ending()
    assert place.committed() == sorted(f"commit {number}" for number in range(5) for _ in range(2))
    assert len(place.uncommitted()) == 15


@every_client
def test_a_transaction_of_nothing_ends_too(place: Place) -> None:
    producer = place.open()
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    producer.begin()
    producer.send(place.topic, "after")
    producer.commit()
    assert place.committed() == ["after"]


@every_client
def test_a_second_producer_with_the_id_aborts_what_the_first_left_and_fences_it(place: Place) -> None:
    first = place.open()
    first.begin()
    first.send(place.topic, "of the first")
    first.flush()
    second = place.open()
    assert place.committed() == []
    second.begin()
    second.send(place.topic, "of the second")
    with pytest.raises(AgentError, match=FENCED):
        first.commit()
    second.commit()
    assert place.committed() == ["of the second"]
    assert place.uncommitted() == ["of the first", "of the second"]


@every_client
def test_a_fenced_producer_can_write_nothing_more(place: Place) -> None:
    first = place.open()
    second = place.open()
    with pytest.raises(AgentError, match=FENCED):
        first.begin()
        first.send(place.topic, "late")
        first.flush()
        first.commit()
    second.begin()
    second.send(place.topic, "sound")
    second.commit()
    assert place.uncommitted() == ["sound"]


@every_client
def test_a_transaction_that_takes_too_long_is_aborted(place: Place) -> None:
    slow = place.open(transaction_timeout=1000)
    slow.begin()
    slow.send(place.topic, "slow")
    slow.flush()
    other = place.open(f"{place.topic}-other")
    other.begin()
    other.send(place.topic, "other")
    other.commit()
    wait_until(lambda: place.committed() == ["other"], timeout_s=60, what="the open transaction is out of the way")
    with pytest.raises(AgentError):
        slow.commit()
    again = place.open()
    again.begin()
    again.send(place.topic, "again")
    again.commit()
    assert place.committed() == ["again", "other"]


@every_client
def test_offsets_are_committed_with_the_transaction_or_not_at_all(place: Place) -> None:
    group = f"{place.topic}-group"
    producer = place.open()
    producer.begin()
    producer.offsets(group, place.topic, {0: 5})
    producer.send(place.topic, "five")
    producer.commit()
    wait_until(lambda: group_offset(place.bootstrap, group, place.topic) == 5, timeout_s=60, what="5 is committed")
    producer.begin()
    producer.offsets(group, place.topic, {0: 9})
    producer.send(place.topic, "nine")
    producer.flush()
    wait_while(
        lambda: group_offset(place.bootstrap, group, place.topic, is_stable=False) == 5, for_s=0.3, what="9 is not committed"
    )
    producer.abort()
    assert group_offset(place.bootstrap, group, place.topic) == 5
    producer.begin()
    producer.offsets(group, place.topic, {0: 7})
    producer.commit()
    wait_until(lambda: group_offset(place.bootstrap, group, place.topic) == 7, timeout_s=60, what="7 is committed")
    assert place.committed() == ["five"]


@every_client
def test_a_producer_goes_on_after_a_restart_of_the_broker(
    agent: Callable[[Client], Agent], make_broker: Callable[..., Broker], client: Client, topic: str
) -> None:
    """The broker is killed during a transaction; a new producer of the same id aborts the transaction and continues."""
    broker = make_broker()
    create_topic(broker.bootstrap, topic, 2)
    place = Place(agent(client), broker.bootstrap, topic)
    first = place.open()
    for word, end in (("committed", first.commit), ("aborted", first.abort)):
        first.begin()
        first.send(topic, word)
        first.flush()
        end()
    first.begin()
    first.send(topic, "open")
    first.flush()
    first.agent.close()
    broker.kill()
    broker.start()
    place = Place(agent(client), broker.bootstrap, topic)
    assert place.committed() == ["committed"]
    second = place.open()
    second.begin()
    second.send(topic, "after")
    second.commit()
    assert place.committed() == ["after", "committed"]
    assert place.uncommitted() == ["aborted", "after", "committed", "open"]
    place.close()


APIS_OF_A_TRANSACTION = {
    "produce": 0,
    "init_producer_id": 22,
    "add_partitions_to_txn": 24,
    "add_offsets_to_txn": 25,
    "end_txn": 26,
    "txn_offset_commit": 28,
}
"""The API keys of these requests."""


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("protocol", [OLD, V2])
def test_a_transaction_is_made_in_every_version_of_every_request(
    agent: Callable[[Client], Agent], broker: Broker, topic: str, step: int, protocol: str
) -> None:
    """The versions of all requests rise together up to their last; EndTxn 5, Produce 12 and TxnOffsetCommit 5 are v2."""
    create_topic(broker.bootstrap, topic)
    newest_of_old = {"produce": 11, "end_txn": 4, "txn_offset_commit": 4}
    oldest_of_v2 = {"produce": 12, "end_txn": 5, "txn_offset_commit": 5}
    with RawConnection(broker.address) as connection:
        wait_until(lambda: has_coordinators(connection, topic), timeout_s=60, what="the coordinators are known")
        producer = RawProducer(connection, topic, protocol)
        newest = served(connection)
        for api, key in APIS_OF_A_TRANSACTION.items():
            version = step + 5 if api == "produce" else step
            if protocol == OLD:
                version = min(version, newest_of_old.get(api, version))
            else:
                version = max(version, oldest_of_v2.get(api, 0))
            producer.versions[api] = min(version, newest[key])
        assert producer.init() == "NONE"
        for is_commit in (True, False, True):
            if protocol == OLD:
                assert (producer.add(topic), producer.add_offsets(topic)) == ("NONE", "NONE")
            word = "committed" if is_commit else "aborted"
            assert producer.produce(topic, word, word) == "NONE"
            offset = 10 * producer.sequences[topic, 0] + 7 if is_commit else 99
            assert producer.commit_offsets(topic, topic, offset) == "NONE"
            assert producer.end(is_commit=is_commit) == "NONE"
    place = Place(agent(CONFLUENT), broker.bootstrap, topic)
    assert place.committed() == ["committed"] * 4
    assert place.uncommitted() == ["aborted"] * 2 + ["committed"] * 4
    wait_until(lambda: group_offset(place.bootstrap, topic, topic) == offset, timeout_s=60, what="the offset is committed")
