"""Kafka's reader of log files finds no fault in the files that the broker wrote, and finds the fault in damaged files."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness import broker as brokers
from compat_tests.harness import jars, tools
from compat_tests.harness.broker import CLASSES, WIREKAFKA, Broker
from compat_tests.harness.clients import (
    AIOKAFKA,
    ALL_CODECS,
    CONFLUENT,
    GZIP,
    JAVA,
    JAVA_0_10,
    KAFKA_PYTHON,
    KAFKA_PYTHON_2,
    LZ4,
    NONE,
    SNAPPY,
    Agent,
    Client,
    Member,
    Record,
)
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from wirekafka.pending import finish
from wirekafka.tests.log.logs import (
    World,
    append,
    close,
    config_with,
    end_transaction,
    idempotent,
    read,
    transactional,
)

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

Agents = Callable[[Client], Agent]

START_MS = 1_700_000_000_000
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


def data_files(*directories: Path) -> list[str]:
    """Returns the files in the partitions' directories that the tool can read."""
    found = sorted(path for directory in directories for path in directory.rglob("*") if path.suffix in SUFFIXES)
    return [str(path) for path in found if "__cluster_metadata" not in str(path)]


def faults(jvm: Tools, files: Iterable[str]) -> list[str]:
    """Returns the faults that DumpLogSegments reports.

    The tool reports a fault on stderr (index and log disagree, timestamps out of order, offsets with gaps, a corrupt snapshot),
    in the line of a batch with a wrong CRC, in a line about bytes that are not a batch, or by its exit code.
    """
    files = list(files)
    indexes = [path for path in files if path.endswith("index")]
    found = []
    for option, some in (("--deep-iteration", files), ("--index-sanity-check", indexes)):
        outcome = jvm.run(tools.DUMP_LOG, option, "--files", ",".join(some), timeout_s=120)
        found += complaints(outcome.err)
        found += [line for line in outcome.out.splitlines() if re.search(r"(?i)isvalid: false|invalid bytes at the end", line)]
        if outcome.code != 0:
            found.append(f"exit code {outcome.code}")
        else:
            dumped = re.findall(r"^Dumping (.*)$", outcome.out, re.MULTILINE)
            assert dumped == some, "every file is looked at"
    return found


def complaints(text: str) -> list[str]:
    """Returns the lines on stderr without one that is a bug of Kafka 4.3.1's tool: for every segment after the first, the tool
    takes the first offset for the end of a gap (`-1 is followed by 200` in 00000000000000000200.log).
    """
    lines: list[str] = []
    base_offset = -1
    for line in filter(str.strip, text.splitlines()):
        heading = re.fullmatch(r"Non-consecutive offsets in .*/(\d{20})\.log", line)
        if heading is not None:
            base_offset = int(heading[1])
        elif line != f"  -1 is followed by {base_offset}":
            lines.append(line)
    return lines


def varied(count: int, first: int = 0, partition: int = 0) -> list[Record]:
    """Makes records whose timestamps rise, fall and repeat."""
    return [
        Record(
            None if n % 4 == 0 else b"key %d" % (n % 9),
            None if n % 7 == 3 else (b"value %d " % n) * (n % 40),
            timestamp_ms=START_MS + (n * 7919) % 5000,
            partition=partition,
        )
        for n in range(first, first + count)
        if not (n % 4 == 0 and n % 7 == 3)
    ]


def fill(broker: Broker, agent: Agents, *, old_formats: bool) -> None:
    """Writes with every client and codec, in every format, into segments rolled by size and by time."""
    settings = {"segment.bytes": "1048576", "index.interval.bytes": "512"}
    create_topic(broker.bootstrap, "codecs", len(ALL_CODECS), settings)
    for client in (KAFKA_PYTHON, CONFLUENT, AIOKAFKA, JAVA):
        for index, codec in enumerate(ALL_CODECS):
            records = [record for turn in range(3) for record in varied(40, turn * 40, index)]
            agent(client).produce(broker.bootstrap, "codecs", records, codec=codec, idempotent=1)
    if old_formats:
        create_topic(broker.bootstrap, "formats", 4, settings)
        olds: list[tuple[Client, dict[str, Any]]] = [
            (KAFKA_PYTHON_2, {"api_version": "0.8.2"}),
            (KAFKA_PYTHON_2, {"api_version": "0.10.0"}),
            (JAVA_0_10, {}),
        ]
        for client, options in olds:
            for index, codec in enumerate((NONE, GZIP, SNAPPY, LZ4)):
                agent(client).produce(broker.bootstrap, "formats", varied(50, 0, index), codec=codec, **options)
    create_topic(broker.bootstrap, "rolled-by-size", 1, settings)
    big = [Record(b"k", os.urandom(50_000), timestamp_ms=START_MS + n) for n in range(80)]
    agent(CONFLUENT).produce(broker.bootstrap, "rolled-by-size", big, idempotent=1)
    create_topic(broker.bootstrap, "rolled-by-time", 1, {**settings, "segment.ms": "1000"})
    for day in range(3):
        late = [Record(b"k", b"v", timestamp_ms=START_MS + day * 86_400_000 + n) for n in range(20)]
        agent(KAFKA_PYTHON).produce(broker.bootstrap, "rolled-by-time", late)
    create_topic(broker.bootstrap, "append-time", 1, {**settings, "message.timestamp.type": "LogAppendTime"})
    agent(JAVA).produce(broker.bootstrap, "append-time", varied(100), codec=LZ4)


def segment_count(directory: Path) -> int:
    return len(list(directory.glob("*.log")))


def test_nothing_is_wrong_with_the_files_of_a_broker_that_ran_stopped_crashed_and_recovered(
    make_broker: Callable[..., Broker], broker_kind: str, agent: Agents, join: Callable[..., Member], tools_jvm: Tools
) -> None:
    broker = make_broker()
    fill(broker, agent, old_formats=broker_kind != jars.KAFKA)
    member = join(CONFLUENT, "readers", "codecs", bootstrap=broker.bootstrap, limit=100, max_poll=100)
    member.wait_until_left(40)
    assert segment_count(broker.data_dir / "rolled-by-size-0") >= 4
    assert segment_count(broker.data_dir / "rolled-by-time-0") >= 3
    if broker_kind == WIREKAFKA:
        # While Apache Kafka runs, its indexes have free space at their ends, which the sanity check takes for damage.
        assert faults(tools_jvm, data_files(broker.data_dir)) == []

    broker.terminate()
    files = data_files(broker.data_dir)
    assert {Path(path).suffix for path in files} >= {".log", ".index", ".timeindex", ".snapshot"}
    assert faults(tools_jvm, files) == []

    broker.start()
    agent(CONFLUENT).produce(broker.bootstrap, "codecs", varied(500), codec=SNAPPY, idempotent=1)
    broker.kill()
    broker.start()
    agent(CONFLUENT).produce(broker.bootstrap, "codecs", varied(100, 500), idempotent=1)
    broker.terminate()
    assert faults(tools_jvm, data_files(broker.data_dir)) == []


def test_the_records_of_groups_are_kafkas_own(
    make_broker: Callable[..., Broker], agent: Agents, join: Callable[..., Member], tools_jvm: Tools
) -> None:
    broker = make_broker({"offsets.topic.num.partitions": "1"})
    create_topic(broker.bootstrap, "read")
    agent(KAFKA_PYTHON).produce(broker.bootstrap, "read", varied(20))
    member = join(JAVA, "readers", "read", bootstrap=broker.bootstrap, limit=5, max_poll=5)
    member.wait_until_left(40)
    broker.terminate()
    files = data_files(broker.data_dir / "__consumer_offsets-0")
    logs = ",".join(path for path in files if path.endswith(".log"))
    decoded = tools_jvm.check(tools.DUMP_LOG, "--offsets-decoder", "--files", logs).out
    commits = re.findall(r'"data":\{"group":"readers","topic":"read","partition":0\}\} payload: \{[^|]*?"offset":(\d+)', decoded)
    assert "5" in commits
    groups = re.findall(r'"data":\{"group":"readers"\}\} payload: (\{.*)$', decoded, re.MULTILINE)
    assert any('"protocol":"range"' in group and '"clientHost":"/127.0.0.1"' in group for group in groups)
    assert '"members":[]' in groups[-1]
    assert faults(tools_jvm, files) == []


@pytest.fixture(scope="module")
def sound_partition(broker_kind: str, agent: Agents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of a partition with two segments, written by a broker that has stopped."""
    directory = tmp_path_factory.mktemp("sound")
    with brokers.running(CLASSES[broker_kind](directory)) as broker:
        create_topic(broker.bootstrap, "sound", 1, {"segment.bytes": "1048576", "index.interval.bytes": "1024"})
        records = [Record(b"k", os.urandom(5_000), timestamp_ms=START_MS + n) for n in range(300)]
        agent(KAFKA_PYTHON).produce(broker.bootstrap, "sound", records, idempotent=1)
        broker.terminate()
    partition = broker.data_dir / "sound-0"
    assert segment_count(partition) == 2
    return partition


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Replaces some bytes; from the end if the position is negative."""
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
        file.write(data)


def flip_a_byte_of_a_record(partition: Path) -> None:
    overwrite(partition / f"{0:020}.log", 2000, bytes([(partition / f"{0:020}.log").read_bytes()[2000] ^ 1]))


def tear_the_last_batch(partition: Path) -> None:
    path = max(partition.glob("*.log"))
    os.truncate(path, path.stat().st_size - 100)


def point_an_index_entry_elsewhere(partition: Path) -> None:
    offset, position = struct.unpack(">ii", (partition / f"{0:020}.index").read_bytes()[:8])
    overwrite(partition / f"{0:020}.index", 0, struct.pack(">ii", offset - 1, position))


def end_an_index_before_its_segment(partition: Path) -> None:
    overwrite(partition / f"{0:020}.index", -8, struct.pack(">i", -1))


def put_a_wrong_time_into_the_time_index(partition: Path) -> None:
    timestamp, offset = struct.unpack(">qi", (partition / f"{0:020}.timeindex").read_bytes()[:12])
    overwrite(partition / f"{0:020}.timeindex", 0, struct.pack(">qi", timestamp - 1, offset))


def change_a_producer_snapshot(partition: Path) -> None:
    path = max(partition.glob("*.snapshot"))
    overwrite(path, path.stat().st_size - 1, b"\x55")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (flip_a_byte_of_a_record, "isvalid: false"),
        (tear_the_last_batch, "invalid bytes at the end|exit code 1"),
        (point_an_index_entry_elsewhere, "Mismatches in"),
        (end_an_index_before_its_segment, "CorruptIndexException"),
        (put_a_wrong_time_into_the_time_index, "timestamp mismatch"),
        (change_a_producer_snapshot, "(?i)snapshot"),
    ],
)
def test_damage_is_found(
    sound_partition: Path, tools_jvm: Tools, tmp_path: Path, damage: Callable[[Path], None], complaint: str
) -> None:
    """Shows that the two tests above can fail."""
    copy = tmp_path / sound_partition.name
    shutil.copytree(sound_partition, copy)
    assert faults(tools_jvm, data_files(copy)) == []
    damage(copy)
    assert re.search(complaint, "\n".join(faults(tools_jvm, data_files(copy))))


@pytest.mark.wirekafka_only("the log is made in this process")
def test_nothing_is_wrong_with_the_files_of_a_follower_that_was_truncated(tmp_path: Path, tools_jvm: Tools) -> None:
    """The follower has batches of two leaders: of the first one up to the divergence, then of the second one."""
    config = config_with(segment_bytes=2000, index_interval_bytes=200)
    first, second = (World().open_log(tmp_path / name) for name in ("first-0", "second-0"))
    follower = World().open_log(tmp_path / "follower-0", config)
    for number in range(60):
        timestamp = START_MS + number * 7919 % 5000
        append(first, transactional(number // 4 * 3, 3, producer_id=number % 4, timestamp=timestamp), leader_epoch=1)
        if number % 10 == 9:
            for producer_id in range(4):
                end_transaction(first, producer_id, is_commit=producer_id % 2 == 0)
    finish(follower.append_as_follower(memoryview(read(first, 0)), leader_epoch=1))
    divergence = 100
    finish(second.append_as_follower(memoryview(read(first, 0)), leader_epoch=1))
    second.truncate_to(divergence)
    for number in range(100):
        append(second, idempotent(number * 2, 2, producer_id=9, timestamp=START_MS + number * 7919 % 5000), leader_epoch=2)

    follower.truncate_to(divergence)
    finish(follower.append_as_follower(memoryview(read(second, follower.reader.log_end_offset)), leader_epoch=2))
    close(follower)

    assert follower.reader.log_end_offset == second.reader.log_end_offset
    assert b"".join(path.read_bytes() for path in sorted((tmp_path / "follower-0").glob("*.log"))) == read(second, 0)
    assert segment_count(tmp_path / "follower-0") > 3
    assert faults(tools_jvm, data_files(tmp_path / "follower-0")) == []
