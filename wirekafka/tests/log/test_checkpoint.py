from __future__ import annotations

import pytest

from wirekafka.log.checkpoint import (
    MalformedFileError,
    read_clean_shutdown,
    read_lock,
    read_offsets,
    read_partition_metadata,
    write_clean_shutdown,
    write_lock,
    write_offsets,
    write_partition_metadata,
)
from wirekafka.names import TopicPartition

TOPIC_ID = bytes(range(16))


def test_offsets_are_written_as_kafka_does_and_come_back() -> None:
    offsets = {TopicPartition("a.b_c-d", 0): 5, TopicPartition("a.b_c-d", 12): 2**40}

    data = write_offsets(offsets)

    assert data == b"0\n2\na.b_c-d 0 5\na.b_c-d 12 1099511627776\n"
    assert read_offsets(data) == offsets


def test_offsets_of_an_empty_file_are_none() -> None:
    assert read_offsets(b"") == {}


@pytest.mark.parametrize("data", [b"2\n0\n", b"0\n1\n", b"0\n1\nt 0\n", b"0\n1\nt x 0\n", b"0\n0\nt 0 0\n", b"\xfe"])
def test_offsets_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        read_offsets(data)


def test_partition_metadata_is_written_as_kafka_does_and_comes_back() -> None:
    data = write_partition_metadata(TOPIC_ID)

    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert read_partition_metadata(data) == TOPIC_ID
    assert read_partition_metadata(data.rstrip()) == TOPIC_ID


@pytest.mark.parametrize(
    "data", [b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\n", b"version: 0\ntopic_id: x"]
)
def test_partition_metadata_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        read_partition_metadata(data)


def test_clean_shutdown_is_kafkas_where_everything_is_on_the_disk() -> None:
    assert write_clean_shutdown(None) == b'{"version":0,"brokerEpoch":-1}'


@pytest.mark.parametrize(
    ("data", "boot_id"),
    [
        (write_clean_shutdown("a-b"), "a-b"),
        (write_clean_shutdown(None), None),
        (b"", None),
        (b'{"version":0,"brokerEpoch":12}', None),
    ],
)
def test_clean_shutdown_says_for_which_run_of_the_machine_it_holds(data: bytes, boot_id: str | None) -> None:
    assert read_clean_shutdown(data) == boot_id


@pytest.mark.parametrize("data", [b"garbage", b"[]", b"{"])
def test_clean_shutdown_that_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError, match="JSON"):
        read_clean_shutdown(data)


def test_clean_shutdown_of_a_newer_format_is_refused_in_plain_words() -> None:
    with pytest.raises(MalformedFileError, match="format version 1, which a newer release has written"):
        read_clean_shutdown(b'{"version":1,"brokerEpoch":-1}')


@pytest.mark.parametrize(
    ("data", "boot_id"),
    [(write_lock("a broker: 1", "a-b"), "a-b"), (write_lock("", "a-b"), "a-b"), (write_lock("x", None), None), (b"", None)],
)
def test_lock_file_names_the_run_of_the_machine(data: bytes, boot_id: str | None) -> None:
    assert read_lock(data) == boot_id


def test_lock_file_of_a_newer_format_is_refused_in_plain_words() -> None:
    with pytest.raises(MalformedFileError, match="format version 1, which a newer release has written"):
        read_lock(b"a broker\nversion: 1\nboot_id: a-b\n")
