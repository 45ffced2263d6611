from __future__ import annotations

from pathlib import Path

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.storage import Storage
from wirekafka.metadata.producer_ids import BLOCK_SIZE, ProducerIds


def open_ids(path: Path, *, greatest_known: int = -1, storage: Storage | None = None) -> ProducerIds:
    file = str(path / "latest-producer-id-block")
    return ProducerIds(file, storage or Storage(), node_id=1, greatest_known=lambda: greatest_known)


def test_producer_ids_are_given_once_across_blocks_and_restarts(tmp_path: Path) -> None:
    ids = open_ids(tmp_path)
    given = [ids.take() for _ in range(BLOCK_SIZE + 1)]
    given += [open_ids(tmp_path).take(), open_ids(tmp_path).take()]
    assert given[: BLOCK_SIZE + 1] == list(range(BLOCK_SIZE + 1))
    assert given[BLOCK_SIZE + 1 :] == [2 * BLOCK_SIZE, 3 * BLOCK_SIZE]


def test_producer_ids_without_a_file_begin_after_those_in_the_logs(tmp_path: Path) -> None:
    assert open_ids(tmp_path, greatest_known=4711).take() == 4712
    assert open_ids(tmp_path, greatest_known=1_000_000).take() == 4712 + BLOCK_SIZE


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"block_end": "x"}', b"\xff\xfe"])
def test_producer_ids_with_a_damaged_file_begin_after_those_in_the_logs(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "latest-producer-id-block").write_bytes(content)
    assert open_ids(tmp_path, greatest_known=7).take() == 8


def test_producer_ids_of_a_newer_format_are_refused(tmp_path: Path) -> None:
    content = b'{"version": 2, "broker": 1, "block_start": "0", "block_end": "999"}'
    (tmp_path / "latest-producer-id-block").write_bytes(content)
    with pytest.raises(KafkaError, match="newer version") as error:
        open_ids(tmp_path).take()
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (tmp_path / "latest-producer-id-block").read_bytes() == content


def test_producer_ids_on_a_full_disk_give_an_error_and_none_twice(tmp_path: Path) -> None:
    class FullStorage(Storage):
        is_full = True

        def write_file(self, path: str, data: bytes, *, sync: bool = False) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().write_file(path, data, sync=sync)

    storage = FullStorage()
    ids = open_ids(tmp_path, storage=storage)
    with pytest.raises(KafkaError) as error:
        ids.take()
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    storage.is_full = False
    assert ids.take() == 0
