"""`wirekafka log` from the command line: its output and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from wirekafka.cli import main
from wirekafka.tests.inspection.folders import (
    BATCHES,
    SEGMENTS,
    headers_of,
    held_by_a_broker,
    make_data,
    overwrite,
    segment_file,
)
from wirekafka.wire.batch import Record, build_batch

SEALED, ACTIVE = SEGMENTS


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_data(tmp_path)


def test_verify_of_a_sound_directory_says_what_it_checked(folder: Path) -> None:
    result = run("verify", folder.parent)
    assert result.exit_code == 0
    assert result.output.startswith("checked 1 partitions, 2 segments, 120 batches, 120 records, ")
    assert result.output.endswith(": no damage\n")


def test_verify_of_a_damaged_directory_names_the_place_and_exits_with_1(folder: Path) -> None:
    log = segment_file(folder, SEALED, ".log")
    position, header = headers_of(log)[50]
    overwrite(log, position + 70, b"\xff")
    result = run("verify", folder.parent)
    assert result.exit_code == 1
    damage, summary = result.output.splitlines()
    assert damage.startswith(f"damaged: {log}, at byte {position}, offset {header.base_offset}: the checksum is wrong")
    assert summary.startswith("checked 1 partitions, 1 segments, 50 batches, 50 records")


@pytest.mark.parametrize(("options", "count"), [((), 1), (("--keep-going",), 2)])
def test_verify_names_one_damage_or_with_keep_going_that_of_every_partition(
    folder: Path, options: tuple[str, ...], count: int
) -> None:
    overwrite(segment_file(folder, SEALED, ".log"), 70, b"\xff")
    make_data(folder.parent / "more")
    (folder.parent / "more" / folder.name).rename(folder.parent / "topic-1")
    overwrite(segment_file(folder.parent / "topic-1", ACTIVE, ".log"), 70, b"\xff")
    result = run("verify", *options, folder.parent)
    assert result.exit_code == 1
    assert result.output.count("damaged: ") == count


def test_verify_under_a_broker_notes_a_torn_tail_and_exits_with_0(folder: Path) -> None:
    log = segment_file(folder, ACTIVE, ".log")
    log.write_bytes(log.read_bytes() + build_batch([Record()], base_offset=BATCHES)[:-1])
    with held_by_a_broker(folder.parent):
        result = run("verify", folder.parent)
        assert (result.exit_code, result.output[:5]) == (0, "note:")
        assert run("dump", folder).exit_code == 0
    assert run("verify", folder.parent).exit_code == 1
    assert run("dump", folder).exit_code == 1


def test_asking_for_what_is_not_there_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert run("verify", tmp_path / "missing").exit_code == 2
    assert run("verify", tmp_path).exit_code == 2
    assert run("dump", tmp_path / "notes.txt").exit_code == 2
    assert run("dump", tmp_path).exit_code == 2
    assert run("dump", tmp_path, "--format", "xml").exit_code == 2


def test_verify_of_a_directory_whose_folders_only_sound_like_partitions_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "python-3").mkdir()
    (tmp_path / "python-3" / "site.py").touch()
    assert run("verify", tmp_path).exit_code == 2


def test_verify_of_an_emptied_partition_exits_with_1(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    result = run("verify", folder.parent)
    assert result.exit_code == 1
    assert "topic-0 has records up to offset 120" in result.output


@pytest.mark.parametrize("command", [("verify",), ("dump",), ("dump", "--format", "jsonl", "--records")])
def test_output_on_a_full_disk_is_one_line_and_exit_code_1(folder: Path, command: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "wirekafka", "log", *command, str(folder.parent)]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "wirekafka: cannot write the output: No space left on device\n"


def test_output_into_a_closed_pipe_ends_quietly(folder: Path) -> None:
    program = [sys.executable, "-m", "wirekafka", "log", "dump", str(folder), "--records", "--format", "jsonl"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_dump_as_json_lines_gives_an_object_for_every_batch_and_record(folder: Path) -> None:
    result = run("dump", folder, "--records", "--format", "jsonl")
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert sum(row["type"] == "batch" for row in rows) == BATCHES
    assert [row["offset"] for row in rows if row["type"] == "record"] == list(range(BATCHES))
    assert {row["type"] for row in rows} == {
        "batch",
        "record",
        "offset_index_entry",
        "time_index_entry",
        "producer",
        "leader_epoch",
        "partition_metadata",
    }


def test_dump_as_a_table_gives_a_line_for_every_batch(folder: Path) -> None:
    log = segment_file(folder, SEALED, ".log")
    result = run("dump", log)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == str(log)
    assert sum(line.rstrip().endswith("yes") for line in lines) == ACTIVE
    assert "2023-11-14 22:13:20.001" in result.output


def test_dump_of_records_as_a_table_hides_nothing_and_obeys_nothing(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    records = [Record(b"[bold]key[/bold]", b"\x1b[2Jvalue"), Record(None, b"x" * 10_000)]
    log.write_bytes(build_batch(records))
    output = run("dump", log, "--records").output
    assert "[bold]key[/bold]" in output
    assert "\\x1b[2Jvalue" in output
    assert "\x1b" not in output
    assert "null" in output
    assert "x" * 59 + "…" in output


def test_dump_of_a_long_log_prints_it_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.cli.rows.PAGE_ROWS", 7)
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(b"".join(build_batch([Record(value=b"v", timestamp=1)], base_offset=offset) for offset in range(20)))
    output = run("dump", log).output
    assert output.count("max timestamp") == 3
    assert output.count(str(log)) == 1


def test_dump_of_a_damaged_file_shows_the_rest_and_exits_with_1(folder: Path) -> None:
    segment_file(folder, ACTIVE, ".snapshot").write_bytes(b"nonsense")
    result = run("dump", folder, "--format", "jsonl")
    assert result.exit_code == 1
    assert f"wirekafka: {segment_file(folder, ACTIVE, '.snapshot')}: 8 bytes are too few" in result.stderr
    assert result.stdout.count('"type": "batch"') == BATCHES


def test_the_command_line_imports_rich_for_the_log_alone() -> None:
    source = "import sys, wirekafka.cli; sys.exit(any(name.partition('.')[0] == 'rich' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
