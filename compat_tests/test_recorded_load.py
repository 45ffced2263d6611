"""What clients record while the brokers of a cluster fail, and what the checker finds in it."""

from __future__ import annotations

from pathlib import Path

from compat_tests.harness.recorded_load import RecordedLoad
from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.violations import Kind
from wirekafka.simulation.history import History, RecordRead, RecordSent, SendAcknowledged


def recorded(directory: Path, *lines: str, number: int = 0) -> RecordedLoad:
    """Returns a load whose process has written these lines, one each microsecond."""
    load = RecordedLoad(f"load-{number}", number, [], directory)
    load.follow()
    load.history_path.write_text("".join(f"{at * 1000}\t{line}\n" for at, line in enumerate(lines, 1)))
    load.refresh()
    load.close()
    return load


def kinds_of(*loads: RecordedLoad) -> list[Kind]:
    entries = sorted((entry for load in loads for entry in load.entries), key=lambda entry: entry.order)
    return [violation.kind for violation in check(History(entries))]


def test_lines_of_two_loads_become_events_in_the_order_of_time(tmp_path: Path) -> None:
    writer = recorded(tmp_path, "sent\tme\tplain\t0\tfirst\t-", "acked\tfirst\t7")
    reader = recorded(tmp_path, "read\tyou\tplain\t0\t7\tfirst\t7", number=1)
    entries = sorted([*writer.entries, *reader.entries], key=lambda entry: entry.order)
    assert [type(entry.event) for entry in entries] == [RecordSent, RecordRead, SendAcknowledged]
    assert writer.acknowledged["plain", 0].count == 1
    assert reader.read_ends == {("plain", 0): 8}


def test_longest_time_without_an_acknowledgement_is_kept(tmp_path: Path) -> None:
    sent = [f"sent\tme\tplain\t0\t{number}\t-" for number in range(3)]
    load = recorded(tmp_path, *sent, "acked\t0\t0", "acked\t1\t1", "read\tme\tplain\t0\t0\t0\t0", "acked\t2\t2")
    assert load.acknowledged["plain", 0].longest_gap_ns == 2000


def test_acknowledged_record_that_a_reader_was_led_past_is_found(tmp_path: Path) -> None:
    sent = ("sent\tme\tplain\t0\tlost\t-", "acked\tlost\t0", "sent\tme\tplain\t0\tkept\t-", "acked\tkept\t1")
    sound = recorded(tmp_path, *sent, "read\tme\tplain\t0\t0\tlost\t0", "read\tme\tplain\t0\t1\tkept\t1")
    assert kinds_of(sound) == []
    assert kinds_of(recorded(tmp_path, *sent, "read\tme\tplain\t0\t1\tkept\t0")) != []


def test_record_of_an_aborted_transaction_that_a_reader_got_is_found(tmp_path: Path) -> None:
    begun = ("begun\tt\tid\t1", "sent\tme\tplain\t0\tsecret\tt", "acked\tsecret\t0", "end\tt\tabort", "aborted\tt")
    assert kinds_of(recorded(tmp_path, *begun)) == []
    assert kinds_of(recorded(tmp_path, *begun, "read\tme\tplain\t0\t0\tsecret\t0")) == [Kind.TRANSACTION_DIVIDED]


def test_committed_offset_that_goes_back_is_found(tmp_path: Path) -> None:
    commits = [
        line
        for number in (1, 2)
        for line in (f"offsets-sent\tcommit-{number}\tg\tplain\t0\t{number}", f"offsets-acked\tcommit-{number}")
    ]
    assert kinds_of(recorded(tmp_path, *commits, "offsets-read\tg\tplain\t0\t2\tcommit-2\t4500\tnow")) == []
    assert kinds_of(recorded(tmp_path, *commits, "offsets-read\tg\tplain\t0\t1\tcommit-1\t4500\tstale")) == []
    assert kinds_of(recorded(tmp_path, *commits, "offsets-read\tg\tplain\t0\t1\tcommit-1\t4500\tnow")) != []
