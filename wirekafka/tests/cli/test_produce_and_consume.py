"""`wirekafka produce` and `wirekafka consume` as clients of an embedded broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from wirekafka.cli import main
from wirekafka.cli.client.errors import ClientCommandError
from wirekafka.cli.client.input_records import LineFormat, NewRecord, read_lines
from wirekafka.cli.client.record_text import RecordText
from wirekafka.inspection.text import BytesStyle
from wirekafka.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def timed(broker: EmbeddedBroker) -> str:
    """Returns a topic with the records 0 to 9 in partition 0, of 10 successive milliseconds, and x in partition 1."""
    broker.create_topic("timed", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(10):
        producer.produce("timed", str(number), partition=0, timestamp=1_000_000_000_000 + number)
    producer.produce("timed", "x", partition=1, timestamp=1_000_000_000_000)
    assert producer.flush(60) == 0
    return "timed"


def run(broker: EmbeddedBroker, *arguments: str, data: str | bytes | None = None, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*arguments, "-b", broker.bootstrap, "--timeout", "60"], input=data)
    assert result.exit_code == exit_code, result.output
    return result


def values(broker: EmbeddedBroker, *arguments: str) -> list[str]:
    return run(broker, "consume", *arguments).stdout.splitlines()


# Writing


def test_lines_become_records_with_key_value_and_headers(broker: EmbeddedBroker) -> None:
    broker.create_topic("lines")
    written = run(broker, "produce", "lines", "-K", ":", "-H", "from=test", "--null", "-", data="a:1\nb:2:3\na:-\n")
    assert written.stdout == "3 records written to lines: partition 0 offsets 0 to 2\n"
    records = broker.records("lines")
    assert [(each.key, each.value) for each in records] == [(b"a", b"1"), (b"b", b"2:3"), (b"a", None)]
    assert [(name, value) for name, value in records[0].headers] == [("from", b"test")]


def test_one_record_comes_from_options_and_may_be_a_tombstone(broker: EmbeddedBroker) -> None:
    broker.create_topic("single", 2)
    assert run(broker, "produce", "single", "-k", "a", "--value", "1", "-p", "1").stdout == (
        "1 record written to single: partition 1 offset 0\n"
    )
    run(broker, "produce", "single", "-k", "a", "--tombstone", "-p", "1", "-q")
    assert [(each.key, each.value) for each in broker.records("single", 1)] == [(b"a", b"1"), (b"a", None)]


def test_files_are_lines_or_whole_records(broker: EmbeddedBroker, tmp_path: Path) -> None:
    broker.create_topic("files")
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}\n!")
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    run(broker, "produce", "files", *paths)
    run(broker, "produce", "files", *paths, "--whole")
    assert [each.value for each in broker.records("files")] == [b"one", b"!", b"two", b"!", b"one\n!", b"two\n!"]


def test_key_chooses_the_partition_that_java_clients_choose(broker: EmbeddedBroker) -> None:
    broker.create_topic("keyed", 7)
    run(broker, "produce", "keyed", "-K", ":", data="foobar:1\n21:2\n")
    # The hashes of org.apache.kafka.common.utils.UtilsTest: foobar -790332482, 21 -973932308.
    expected = [((-790332482 & 0x7FFFFFFF) % 7, b"foobar"), ((-973932308 & 0x7FFFFFFF) % 7, b"21")]
    assert sorted((each.partition, each.key) for each in broker.records("keyed")) == sorted(expected)


def test_malformed_line_ends_the_input_and_is_named(broker: EmbeddedBroker) -> None:
    broker.create_topic("malformed")
    result = run(broker, "produce", "malformed", "-K", ":", data="a:1\nb\nc:3\n", exit_code=1)
    assert result.stderr == "wirekafka: standard input, line 2: no ':' divides it into key and value\n"
    assert [each.value for each in broker.records("malformed")] == [b"1"]


def test_record_that_fails_is_counted_and_the_exit_code_is_1(broker: EmbeddedBroker) -> None:
    broker.create_topic("small", max_message_bytes=100)
    result = run(broker, "produce", "small", "--value", "x" * 1000, exit_code=1)
    assert result.stdout == "0 records written to small\n"
    assert result.stderr.startswith("wirekafka: 1 of 1 records failed: ")
    assert "`wirekafka topic alter --set max.message.bytes=N`" in result.stderr


def test_topic_is_created_by_the_broker_or_asked_for(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.cli.client.sending.SECONDS_FOR_A_NEW_TOPIC", 0.5)
    run(broker, "produce", "automatic", "--value", "1")
    assert [each.value for each in broker.records("automatic")] == [b"1"]
    with EmbeddedBroker(auto_create_topics_enable="false") as strict:
        result = CliRunner().invoke(main, ["produce", "t", "--value", "1", "-b", strict.bootstrap, "--timeout", "60"])
    assert result.exit_code == 1
    assert "topic t does not exist, and the broker does not create it; `wirekafka topic create t`" in result.stderr


def test_broker_that_refuses_a_topic_is_quoted_at_once(broker: EmbeddedBroker) -> None:
    refused = run(broker, "produce", "no name!", "--value", "1", exit_code=1)
    assert refused.stderr.startswith("wirekafka: topic no name!: ")
    assert "Invalid topic" in refused.stderr


def test_closed_standard_input_is_said(broker: EmbeddedBroker) -> None:
    broker.create_topic("closed")
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m wirekafka produce closed -b {broker.bootstrap} --timeout 60 <&-"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "wirekafka: the standard input is closed: name a FILE\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tombstone"],
        ["--value", "1", "--tombstone", "-k", "a"],
        ["--value", "1", "--json"],
        ["--json", "-K", ":"],
        ["-K", ""],
        ["--value", "z", "--bytes", "hex"],
        ["-H", "nameless"],
    ],
    ids=" ".join,
)
def test_options_of_produce_that_contradict_each_other_are_refused(broker: EmbeddedBroker, arguments: list[str]) -> None:
    run(broker, "produce", "never", *arguments, exit_code=2)


def test_json_lines_may_have_any_value_and_unknown_fields_are_refused() -> None:
    lines = [b'{"key": "k", "value": {"a": [1, null]}, "headers": {"h": "v"}, "timestamp": 5}\n', b"\n", b'{"value": null}\n']
    assert list(read_lines("f", lines, LineFormat(), is_json=True)) == [
        NewRecord(b"k", b'{"a":[1,null]}', None, 5, [("h", b"v")]),
        NewRecord(),
    ]
    for line, message in [
        (b'{"vlaue": 1}', "unknown field vlaue"),
        (b"[]", "no JSON object"),
        (b"{", "line 1"),
        (b'{"key":"x"}', ""),
    ]:
        style = BytesStyle.HEX if message == "" else BytesStyle.TEXT
        with pytest.raises(ClientCommandError, match=f"f, line 1: .*{message.removeprefix('line 1')}"):
            list(read_lines("f", [line], LineFormat(style=style), is_json=True))


# Reading


def test_everything_is_printed_up_to_the_end(broker: EmbeddedBroker, timed: str) -> None:
    assert sorted(values(broker, timed)) == [*map(str, range(10)), "x"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--from 7", "789"),
        ("--from -2", "89"),
        ("--from +8", "89"),
        ("--from @1000000000006", "6789"),
        ("--from @2001-09-09T01:46:40.008", "89"),
        ("--from @-1h", ""),
        ("--from 99", ""),
        ("--until 2", "01"),
        ("--until -8", "01"),
        ("--from 3 --until @1000000000005", "34"),
        ("--from 3 -n 4", "3456"),
        ("--from 8 --until-end", "89"),
    ],
)
def test_reading_begins_and_ends_where_it_is_told(broker: EmbeddedBroker, timed: str, arguments: str, expected: str) -> None:
    assert "".join(values(broker, timed, "-p", "0", *arguments.split())) == expected


def test_json_lines_of_consume_are_read_by_produce_without_loss(broker: EmbeddedBroker) -> None:
    for name in ("original", "copy"):
        broker.create_topic(name, 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for partition, key, value in [(0, b"\xff", b"\x00\xfe"), (1, None, b""), (0, b"a", None)]:
        producer.produce("original", value, key, partition, timestamp=1234, headers=[("h", b"\xff"), ("none", None)])
    assert producer.flush(60) == 0
    lines = run(broker, "consume", "original", "--json", "--bytes", "base64").stdout
    assert len(lines.splitlines()) == 3
    run(broker, "produce", "copy", "--json", "--bytes", "base64", data=lines)
    [copies, originals] = [
        [(each.partition, each.offset, each.key, each.value, each.timestamp, each.headers) for each in broker.records(name)]
        for name in ("copy", "original")
    ]
    assert copies == originals


def test_format_shows_every_part_of_a_record(broker: EmbeddedBroker) -> None:
    broker.create_topic("formatted")
    line = json.dumps({"key": "k", "value": None, "timestamp": 1_000_000_000_000, "headers": [["a", "1"], ["b", None]]})
    run(broker, "produce", "formatted", "--json", data=line)
    shown = run(broker, "consume", "formatted", "-F", r"%t %p %o %k %v %s %h %T %d %K %S %%\t\x41\n").stdout
    assert shown == "formatted 0 0 k null null a=1,b=null 1000000000000 2001-09-09T01:46:40.000Z 1 0 %\tA\n"
    assert run(broker, "consume", "formatted", "-K", "%", "--null", "-", "--key-bytes", "hex").stdout == "6b%-\n"
    assert "%z is unknown" in run(broker, "consume", "formatted", "-F", "%z", exit_code=2).stderr


def test_terminal_gets_no_control_characters() -> None:
    class Record:
        def value(self) -> bytes:
            return "ä\x1b[31m\n\t\x9b\xff".encode("latin-1") + "ä".encode()

    for is_terminal, expected in [(True, b"\\xe4\\x1b[31m\n\t\\x9b\\xff\xc3\xa4"), (False, Record().value())]:
        text = RecordText(BytesStyle.TEXT, BytesStyle.TEXT, is_terminal=is_terminal)
        assert text.formatter("%v")(Record()) == expected


def test_group_goes_on_after_what_was_printed(broker: EmbeddedBroker, timed: str) -> None:
    assert len(values(broker, timed, "-g", "readers", "-n", "4")) == 4
    assert len(values(broker, timed, "-g", "readers")) == 7
    assert values(broker, timed, "-g", "readers") == []
    [found] = json.loads(run(broker, "group", "describe", "readers", "--json").stdout)
    assert (found["lag"], found["state"]) == (0, "empty")


def test_records_of_transactions_are_printed_when_they_are_committed(broker: EmbeddedBroker) -> None:
    broker.create_topic("transactional")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "transactional.id": "t"})
    producer.init_transactions(60)
    for value, end in [("committed", producer.commit_transaction), ("aborted", producer.abort_transaction)]:
        producer.begin_transaction()
        producer.produce("transactional", value)
        assert producer.flush(60) == 0
        end(60)
    assert values(broker, "transactional") == ["committed"]
    assert values(broker, "transactional", "--isolation-level", "read_uncommitted") == ["committed", "aborted"]


def test_follow_prints_what_comes_until_a_signal(broker: EmbeddedBroker) -> None:
    broker.create_topic("followed")
    run(broker, "produce", "followed", "--value", "first")
    command = [sys.executable, "-m", "wirekafka", "consume", "followed", "--follow", "-b", broker.bootstrap, "--timeout", "60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        run(broker, "produce", "followed", "--value", "second")
        assert process.stdout.readline() == "second\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message", "exit_code"),
    [
        (["nope"], "topic nope does not exist", 1),
        (["timed", "-p", "7"], "topic timed has no partition 7", 1),
        (["timed", "--from", "end"], "add --follow", 2),
        (["timed", "--from", "then"], "then is no position", 2),
        (["timed", "--follow", "--until", "5"], "--until and --follow exclude each other", 2),
        (["timed", "--follow", "--until-end"], "--until-end excludes", 2),
        (["timed", "--json", "-F", "%v"], "exclude each other", 2),
        (["timed", "-g", "g", "-p", "0"], "--group excludes", 2),
        (["timed", "-g", "g", "--from", "5"], "With --group, --from is beginning or end", 2),
    ],
)
def test_consume_that_makes_no_sense_is_refused(
    broker: EmbeddedBroker, timed: str, arguments: list[str], message: str, exit_code: int
) -> None:
    assert message in run(broker, "consume", *arguments, exit_code=exit_code).stderr
