"""Replies that hold regions of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wirekafka.log.storage import FileHandle, FileRegion
from wirekafka.server.drivers import SEND_PER_TURN_BYTES, SENDFILE_BYTES
from wirekafka.tests.log.logs import World, append, batch, config_with
from wirekafka.tests.server.driver_bench import Bench, receive, run
from wirekafka.tests.server.frames import frame


@pytest.mark.parametrize("size", [10, SENDFILE_BYTES - 1, SENDFILE_BYTES, 5_000_000])
def test_region_of_a_file_is_sent_among_bytes(kind: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    content = os.urandom(size + 100)
    path.write_bytes(content)

    async def test(bench: Bench) -> None:
        file = FileHandle(os.open(path, os.O_RDONLY))
        bench.dispatcher.answer = lambda payload: [b"begin", FileRegion(file, 50, size), b"end", FileRegion(file, 0, 3)]
        stream = await bench.connect()
        expected = b"begin" + content[50 : 50 + size] + b"end" + content[:3]
        for _ in range(2):
            await stream.send_all(frame(b"some request"))
            assert await receive(stream, len(expected)) == expected

    run(kind, test)


def test_turn_sends_so_much_of_a_region_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"")
    size, most_at_once = 5 * SEND_PER_TURN_BYTES // 2, SEND_PER_TURN_BYTES * 3 // 4
    asked = []

    def take(_: int, __: int, position: int, count: int) -> int:
        asked.append((position, count))
        return min(count, most_at_once)

    monkeypatch.setattr(os, "sendfile", take)

    async def test(bench: Bench) -> None:
        file = FileHandle(os.open(path, os.O_RDONLY))
        bench.dispatcher.answer = lambda payload: [FileRegion(file, 50, size), b"end"]
        stream = await bench.connect()
        await stream.send_all(frame(b"some request"))
        assert await receive(stream, 3) == b"end"
        turns = [SEND_PER_TURN_BYTES, SEND_PER_TURN_BYTES, size - 2 * SEND_PER_TURN_BYTES]
        expected, position = [], 50
        for turn in turns:
            while turn:
                expected.append((position, turn))
                sent = min(turn, most_at_once)
                position += sent
                turn -= sent
        assert asked == expected

    run("epoll", test)


@pytest.mark.parametrize("size", [100, 100_000])
def test_region_of_a_log_that_was_truncated_and_appended_ends_the_connection(kind: str, size: int, tmp_path: Path) -> None:
    log = World().open_log(tmp_path, config_with(segment_bytes=1 << 20))
    append(log, batch(bytes(size)))
    region = log.reader.read(0, max_bytes=2 * size, end_offset=1, min_one_batch=True)
    log.truncate_to(0)
    append(log, batch(b"other" + bytes(size)))
    assert isinstance(region, FileRegion)

    async def test(bench: Bench) -> None:
        bench.dispatcher.answer = lambda payload: [region]
        stream = await bench.connect()
        await stream.send_all(frame(b"some request"))
        assert not await stream.receive_some()

    run(kind, test)


@pytest.mark.parametrize("size", [100, 100_000])
def test_region_of_a_file_that_was_cut_ends_the_connection(kind: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(50))

    async def test(bench: Bench) -> None:
        file = FileHandle(os.open(path, os.O_RDONLY))
        bench.dispatcher.answer = lambda payload: [FileRegion(file, 0, size)]
        stream = await bench.connect()
        await stream.send_all(frame(b"some request"))
        while await stream.receive_some():
            pass

    run(kind, test)
