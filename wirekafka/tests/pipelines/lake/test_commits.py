"""The commits of a lake with a writer that is killed, or paused while another writes, at each of its operations on files."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.lake.commits import Change, CommitLog
from wirekafka.tests.pipelines.lake.fake_files import FakeFiles, Killed

BATCHES = 4
RECORDS = 3
ALL = sorted(f"{batch}:{record}" for batch in range(BATCHES) for record in range(RECORDS))
NAMES = itertools.count()


class Writer:
    """A process that fills a table with batches and compacts it; each file is one record, or the merged ones of a compaction."""

    def __init__(self, files: FakeFiles) -> None:
        self.files = files
        self.batches = CommitLog(files, "query", "batches/query", "staging")
        self.compactions = CommitLog(files, "compaction", "compactions", "staging")

    def start(self) -> None:
        for log in (self.batches, self.compactions):
            log.settle()
        for log in (self.batches, self.compactions):
            log.clean()

    def write(self, batch: int) -> None:
        attempt = self.batches.begin(batch)
        if attempt is None:
            return
        added = {}
        for record in range(RECORDS):
            name = f"part-{next(NAMES)}"
            self.files.write(f"{attempt.data}/{name}", f"{batch}:{record} ".encode())
            added[f"{attempt.data}/{name}"] = f"table/{name}"
        self.batches.commit(attempt, Change(added))

    def compact(self) -> None:
        number = (self.compactions.last() or 0) + 1
        attempt = self.compactions.begin(number)
        if attempt is None:
            return
        self.compactions.settle()
        old = sorted(self.files.sizes("table"))
        merged = b"".join(self.files.read(path) or b"" for path in old)
        name = f"part-{next(NAMES)}"
        self.files.write(f"{attempt.data}/{name}", merged)
        self.compactions.commit(attempt, Change({f"{attempt.data}/{name}": f"table/{name}"}, old))

    def run(self, first: int = 0, last: int = BATCHES) -> None:
        self.start()
        for batch in range(first, last):
            self.write(batch)
            if batch % 2:
                self.compact()


def table(content: dict[str, bytes]) -> list[str]:
    files = [data for path, data in content.items() if path.startswith("table/")]
    return sorted(b"".join(files).decode().split())


def operations() -> int:
    files = FakeFiles()
    Writer(files).run()
    return files.count


OPERATIONS = operations()


def restarted_batch(content: dict[str, bytes]) -> int:
    """Returns the batch that Spark repeats: its own commit file may lack for the last batch that the lake has."""
    last = CommitLog(FakeFiles(content), "query", "batches/query", "staging").last()
    return 0 if last is None else last


def test_batches_that_are_written_without_a_kill_are_in_the_table_once() -> None:
    files = FakeFiles()
    Writer(files).run()
    assert table(files.content) == ALL


@pytest.mark.parametrize("killed_at", range(1, OPERATIONS + 1))
def test_records_are_in_the_table_once_after_a_kill_at_any_operation(killed_at: int) -> None:
    content: dict[str, bytes] = {}
    with pytest.raises(Killed):
        Writer(FakeFiles(content, killed_at=killed_at)).run()
    seen = table(content)
    assert len(seen) == len(set(seen)), "a reader that knows nothing of commits sees a record twice"
    files = FakeFiles(content)
    Writer(files).run(restarted_batch(content))
    assert table(content) == ALL


@pytest.mark.parametrize("killed_at", range(1, OPERATIONS + 1, 3))
def test_records_are_in_the_table_once_after_a_second_kill_in_the_recovery(killed_at: int) -> None:
    content: dict[str, bytes] = {}
    with pytest.raises(Killed):
        Writer(FakeFiles(content, killed_at=killed_at)).run()
    for again in range(1, 40):
        copy = dict(content)
        with pytest.raises(Killed):
            Writer(FakeFiles(copy, killed_at=again)).run(restarted_batch(copy))
            raise Killed  # the run ended before that operation
        Writer(FakeFiles(copy)).run(restarted_batch(copy))
        assert table(copy) == ALL


@pytest.mark.parametrize("interrupted_at", range(1, OPERATIONS + 1))
def test_paused_writer_adds_nothing_twice_after_another_one_has_gone_on(interrupted_at: int) -> None:
    content: dict[str, bytes] = {}

    def work() -> None:
        Writer(FakeFiles(content)).run(restarted_batch(content))

    paused = Writer(FakeFiles(content, interrupted_at=interrupted_at, interruption=work))
    with contextlib.suppress(PipelineError):
        paused.run()
    Writer(FakeFiles(content)).start()
    assert table(content) == ALL


@pytest.mark.parametrize("interrupted_at", range(1, OPERATIONS + 1, 2))
def test_paused_writer_adds_nothing_twice_after_one_that_was_killed(interrupted_at: int) -> None:
    for killed_at in range(1, 60, 2):
        content: dict[str, bytes] = {}

        def work(content: dict[str, bytes] = content, killed_at: int = killed_at) -> None:
            try:
                Writer(FakeFiles(content, killed_at=killed_at)).run(restarted_batch(content))
            except Killed:
                return

        paused = Writer(FakeFiles(content, interrupted_at=interrupted_at, interruption=work))
        with contextlib.suppress(PipelineError):
            paused.run()
        Writer(FakeFiles(content)).run(restarted_batch(content))
        assert table(content) == ALL


def test_paused_attempt_that_began_after_the_start_of_the_other_writer_is_refused_its_commit() -> None:
    content: dict[str, bytes] = {}
    other = Writer(FakeFiles(content))
    other.start()
    paused = Writer(FakeFiles(content))
    attempt = paused.batches.begin(0)
    assert attempt is not None
    for batch in range(3):
        other.write(batch)
    with pytest.raises(PipelineError, match="another process"):
        paused.batches.commit(attempt, Change({}))


def test_repeated_batch_is_refused() -> None:
    writer = Writer(FakeFiles())
    for batch in (0, 1):
        writer.write(batch)
    assert [writer.batches.begin(batch) for batch in (0, 1)] == [None, None]
    assert writer.batches.begin(2) is not None


def test_commits_of_many_batches_leave_one_file() -> None:
    files = FakeFiles()
    writer = Writer(files)
    for batch in range(20):
        writer.write(batch)
    assert files.names("batches/query") == ["000000000019.json"]
    assert files.names("staging") == []


def test_start_removes_what_a_killed_attempt_has_left() -> None:
    content: dict[str, bytes] = {}
    writer = Writer(FakeFiles(content))
    attempt = writer.batches.begin(0)
    assert attempt is not None
    writer.files.write(f"{attempt.data}/part-x", b"0:0 ")
    Writer(FakeFiles(content)).start()
    assert content == {}


def test_decided_commit_is_not_settled_until_its_files_are_in_place() -> None:
    content: dict[str, bytes] = {}
    writer = Writer(FakeFiles(content))
    attempt = writer.batches.begin(0)
    assert attempt is not None
    writer.files.write(f"{attempt.data}/part-x", b"0:0 ")
    assert writer.batches.is_settled()
    writer.files.killed_at = writer.files.count + 3  # the manifest, the claim, and then nothing
    with pytest.raises(Killed):
        writer.batches.commit(attempt, Change({f"{attempt.data}/part-x": "table/x"}))
    reader = CommitLog(FakeFiles(content), "query", "batches/query", "staging")
    assert not reader.is_settled()
    reader.settle()
    assert reader.is_settled()
    assert table(content) == ["0:0"]


@pytest.mark.parametrize("interrupted_at", range(1, 14))
def test_commit_during_the_start_of_another_process_is_whole_or_refused(interrupted_at: int) -> None:
    content: dict[str, bytes] = {}
    writer = Writer(FakeFiles(content))
    attempt = writer.batches.begin(0)
    assert attempt is not None
    writer.files.write(f"{attempt.data}/part-x", b"0:0 ")
    added = []

    def commit() -> None:
        # The process dies before it moves the files, so the other one finds them in staging.
        writer.files.killed_at = writer.files.count + 3
        with pytest.raises((PipelineError, Killed)):
            writer.batches.commit(attempt, Change({f"{attempt.data}/part-x": "table/x"}))
        if "batches/query/000000000000.json" in content:
            added.append("0:0")

    starting = Writer(FakeFiles(content, interrupted_at=interrupted_at, interruption=commit))
    starting.start()
    Writer(FakeFiles(content)).start()
    assert table(content) == added
