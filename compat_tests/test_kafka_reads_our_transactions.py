"""Apache Kafka continues the transactions that wirekafka began, and wirekafka continues those of Kafka.

One broker of each kind gets the same data: transactional ids that were never used, that have committed and aborted, and some with
an open transaction. Then wirekafka opens Kafka's data directory, and wirekafka's files are copied into Kafka's folders of
__transaction_state and the topic. Each broker describes the ids as the other did, and the producers continue without errors.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness import tools
from compat_tests.harness.broker import ApacheKafka, Broker, Wirekafka
from compat_tests.harness.exactly_once import read_all
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.tools import run_alone
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import OLD, TRANSIENT, V2, RawProducer, ask, name_of
from compat_tests.harness.waiting import wait_until
from compat_tests.test_kafka_reads_our_files import place_files
from wirekafka.api.describe_transactions import DescribeTransactionsRequest
from wirekafka.errors import ErrorCode

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("java"),
    pytest.mark.wirekafka_only("both brokers are part of the test"),
    pytest.mark.timeout(300),
]

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
TOPIC = "written"
STATES = ("empty", "committed", "aborted", "twice", "open")
IDS = tuple(f"{state}-{protocol}" for protocol in (OLD, V2) for state in STATES)


def has_coordinators(connection: RawConnection) -> bool:
    found = [ask(connection, "find_coordinator", 3, key_type=kind, key=TOPIC) for kind in (0, 1)]
    return [name_of(each.error_code) for each in found] == ["NONE", "NONE"]


def write(producer: RawProducer, word: str) -> None:
    """Writes one record to each partition, in a transaction."""
    if producer.protocol == OLD:
        assert producer.add(TOPIC, [0, 1]) == "NONE NONE"
    for partition in range(2):
        wait_until(lambda p=partition: producer.produce(TOPIC, word, partition=p) == "NONE", timeout_s=60, what="it is taken")


def fill(connection: RawConnection) -> dict[str, RawProducer]:
    """Makes producers in different states; the name of each says its state."""
    producers = {}
    for name in IDS:
        state, _, protocol = name.partition("-")
        producers[name] = producer = RawProducer(connection, name, protocol)
        assert producer.init(900_000) == "NONE"
        for number in range({"empty": 0, "twice": 2}.get(state, 1)):
            write(producer, f"{name} {number}")
            if state != "open":
                assert producer.end(is_commit=state != "aborted") == "NONE"
    return producers


def described(connection: RawConnection) -> dict[str, tuple[object, ...]]:
    """Describes every id once no transaction is ending. Raw requests, because kio's codecs refuse a time of -1."""

    def find() -> dict[str, tuple[object, ...]] | None:
        states = connection.ask(DescribeTransactionsRequest(transactional_ids=list(IDS)), 0).transaction_states
        if any(ErrorCode(each.error_code).name in TRANSIENT or each.transaction_state.startswith("Prepare") for each in states):
            return None
        return {
            each.transactional_id: (
                each.error_code,
                each.transaction_state,
                each.producer_epoch,
                each.transaction_timeout_ms,
                sorted((topic.topic, *sorted(topic.partitions)) for topic in each.topics),
                each.producer_id,
                each.transaction_start_time_ms,
            )
            for each in states
        }

    return wait_until(find, timeout_s=60, what="the transactions are complete") or {}


def go_on(connection: RawConnection, before: Mapping[str, RawProducer]) -> dict[str, int]:
    """Ends each producer's transaction or makes a new one; returns the producer ids of two new producers."""
    for name, old in before.items():
        producer = RawProducer(connection, name, old.protocol)
        producer.producer_id, producer.epoch, producer.sequences = old.producer_id, old.epoch, old.sequences
        if not name.startswith("open"):
            write(producer, f"{name} later")
        assert producer.commit() == "NONE", name
        write(producer, f"{name} and later")
        assert producer.commit() == "NONE", name
    new = {f"new-{number}": RawProducer(connection, f"new-{number}", V2) for number in range(2)}
    assert [producer.init() for producer in new.values()] == ["NONE", "NONE"]
    return {name: producer.producer_id for name, producer in new.items()}


def expected_words() -> list[str]:
    """Returns the values that a read_committed consumer finds in each partition at the end."""
    words = [f"{name} 0" for name in IDS if name.partition("-")[0] in ("committed", "twice", "open")]
    words += [f"{name} 1" for name in IDS if name.startswith("twice")]
    words += [f"{name} later" for name in IDS if not name.startswith("open")]
    return sorted(words + [f"{name} and later" for name in IDS])


@dataclass
class Exchange:
    """The descriptions of the ids by both brokers, keyed by the broker that wrote them, and the results."""

    before: Mapping[str, dict[str, tuple[object, ...]]]
    after: Mapping[str, dict[str, tuple[object, ...]]]
    words: Mapping[str, list[list[str]]]
    new_ids: Mapping[str, dict[str, int]]
    printed: str


def adopt(
    broker: Broker, producers: Mapping[str, RawProducer]
) -> tuple[dict[str, tuple[object, ...]], dict[str, int], list[list[str]]]:
    """Returns the descriptions, the new ids and the values after a broker has continued another's transactions."""
    with RawConnection(broker.address) as connection:
        wait_until(lambda: has_coordinators(connection), timeout_s=60, what="the coordinators are known")
        after = described(connection)
        new_ids = go_on(connection, producers)
        described(connection)
    found = read_all(broker.bootstrap, TOPIC, "read_committed", partition_count=2)
    return after, new_ids, [sorted((each.value() or b"").decode() for each in messages) for messages in found.values()]


@pytest.fixture(scope="module")
def exchange(tmp_path_factory: pytest.TempPathFactory) -> Exchange:
    directory = tmp_path_factory.mktemp("exchanged-transactions")
    wirekafka, kafka = Wirekafka(directory / "wirekafka", SETTINGS), ApacheKafka(directory / "kafka", SETTINGS)
    adopting = Wirekafka(directory / "adopting", SETTINGS)
    before, after, words, new_ids, producers = {}, {}, {}, {}, {}
    for name, broker in (("wirekafka", wirekafka), ("kafka", kafka)):
        broker.directory.mkdir()
        with brokers.running(broker):
            create_topic(broker.bootstrap, TOPIC, 2)
            with RawConnection(broker.address) as connection:
                wait_until(lambda connection=connection: has_coordinators(connection), timeout_s=60, what="coordinators")
                producers[name] = fill(connection)
                before[name] = described(connection)
            if broker is wirekafka:
                printed = printed_states(broker)
            assert broker.terminate() in (0, 143)
    adopting.directory.mkdir()
    shutil.copytree(kafka.data_dir, adopting.data_dir)
    with brokers.running(adopting):
        after["kafka"], new_ids["kafka"], words["kafka"] = adopt(adopting, producers["kafka"])
        assert adopting.terminate() == 0
    for folder in ("__transaction_state-0", f"{TOPIC}-0", f"{TOPIC}-1"):
        place_files(wirekafka.data_dir / folder, kafka.data_dir / folder)
    with brokers.running(kafka):
        after["wirekafka"], new_ids["wirekafka"], words["wirekafka"] = adopt(kafka, producers["wirekafka"])
    return Exchange(before, after, words, new_ids, printed)


def printed_states(broker: Broker) -> str:
    """Returns the output of Kafka's console consumer for __transaction_state."""
    formatter = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
    arguments = ("--bootstrap-server", broker.bootstrap, "--topic", "__transaction_state", "--from-beginning")
    return run_alone(tools.CONSOLE_CONSUMER, *arguments, "--formatter", formatter, "--timeout-ms", "8000").out


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("writer", ["wirekafka", "kafka"])
def test_a_transactional_id_is_what_it_was_in_the_other_broker(exchange: Exchange, writer: str, name: str) -> None:
    assert exchange.after[writer][name] == exchange.before[writer][name]


@pytest.mark.parametrize("name", IDS)
def test_both_brokers_say_the_same_of_a_transactional_id(exchange: Exchange, name: str) -> None:
    *ours, _, _ = exchange.before["wirekafka"][name]
    *theirs, _, _ = exchange.before["kafka"][name]
    assert ours == theirs


@pytest.mark.parametrize("writer", ["wirekafka", "kafka"])
def test_the_producers_go_on_in_the_other_broker(exchange: Exchange, writer: str) -> None:
    assert exchange.words[writer] == [expected_words()] * 2
    given = {description[-2] for description in exchange.before[writer].values()}
    assert not given & set(exchange.new_ids[writer].values()), "nobody is given an id that another has"


def test_kafkas_console_consumer_reads_the_log_of_transactions(exchange: Exchange) -> None:
    for name in IDS:
        assert f'"transactionalId":"{name}"' in exchange.printed
    states = {int(state) for state in re.findall(r'"transactionStatus":(\d+)', exchange.printed)}
    assert states == set(range(6)), "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
