"""The command that judges recorded histories."""

from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.simulation.checker.__main__ import main
from wirekafka.simulation.history import RecordRead, SendAcknowledged
from wirekafka.tests.simulation.checker.worlds import acked, history, read, sent
from wirekafka.wire.batch import Record, build_batch


def record(path: Path, *events: object) -> str:
    path.write_text("".join(history(*events).to_lines()))  # type: ignore[arg-type]
    return str(path)


def make_directory(path: Path, value: bytes) -> Path:
    (path / "t-0").mkdir(parents=True)
    data = build_batch([Record(key=None, value=value, timestamp=1)], leader_epoch=0)
    (path / "t-0" / "00000000000000000000.log").write_bytes(data)
    (path / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (path / "replication-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    return path


def test_command_on_a_legal_run_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = record(tmp_path / "history", sent("a"), acked("a", 0), read("a", 0))
    brokers = [f"--broker={number}={make_directory(tmp_path / str(number), b'a')}" for number in (1, 2)]

    assert main([lines, *brokers, "--settled"]) == 0
    assert capsys.readouterr().out == "3 entries, 2 replicas, 0 violations\n"


def test_command_on_a_run_that_violates_a_property_tells_it_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = record(tmp_path / "history", sent("a"), acked("a", 0))

    assert main([lines, f"--broker=1={make_directory(tmp_path / '1', b'a')}", f"--broker=2={tmp_path / '1'}"]) == 0
    assert main([lines, f"--broker=3={make_directory(tmp_path / '3', b'b')}"]) == 1
    assert "an acknowledged record is not at its offset in a log" in capsys.readouterr().out


def test_command_merges_the_histories_of_several_recorders(tmp_path: Path) -> None:
    whole = list(history(sent("a"), SendAcknowledged("a", 0), RecordRead("c", "t", 0, 0, "a", False, 0)).to_lines())
    (tmp_path / "producer").write_text("".join(whole[:2]))
    (tmp_path / "consumer").write_text(whole[2])

    assert main([str(tmp_path / "consumer"), str(tmp_path / "producer")]) == 0


def test_command_refuses_a_broker_without_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["history", "--broker=1"])

    assert "'1' is not ID=DIRECTORY" in capsys.readouterr().err
