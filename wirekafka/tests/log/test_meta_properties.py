"""The owner of a data directory: both versions of `meta.properties`, and the directories that a broker refuses."""

from __future__ import annotations

import pytest

from wirekafka.errors import ErrorCode, KafkaError
from wirekafka.log.checkpoint import MalformedFileError
from wirekafka.log.meta_properties import MetaProperties, MetaPropertiesVersion, owned, read_meta_properties

V0, V1 = MetaPropertiesVersion


def own(
    found: MetaProperties | None,
    version: MetaPropertiesVersion,
    *,
    cluster_id: str | None = "cluster",
    node_id: int = 3,
) -> MetaProperties:
    return owned(found, path="/data", version=version, cluster_id=cluster_id, node_id=node_id, new_id=lambda: "new")


@pytest.mark.parametrize(
    ("meta", "content"),
    [
        (MetaProperties(V1, "c", 3, "d"), b"cluster.id=c\ndirectory.id=d\nnode.id=3\nversion=1\n"),
        (MetaProperties(V0, "c", 3, None), b"cluster.id=c\nbroker.id=3\nversion=0\n"),
        (MetaProperties(V0, "c", 3, "d"), b"cluster.id=c\ndirectory.id=d\nbroker.id=3\nversion=0\n"),
    ],
)
def test_meta_properties_of_each_version_come_back(meta: MetaProperties, content: bytes) -> None:
    assert meta.write() == content
    assert read_meta_properties(content) == meta


def test_meta_properties_of_kafka_are_read_with_their_comments() -> None:
    data = b"#\n#Fri Nov 20 16:00:00 UTC 2026\nnode.id=1\ndirectory.id=abc\nversion=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\n"

    assert read_meta_properties(data) == (V1, "4L6g3nShT-eMCtK--X86sw", 1, "abc")


def test_meta_properties_of_version_0_need_only_the_broker() -> None:
    """Apache Kafka wrote no cluster id before 0.10.1, and no version in the first files."""
    assert read_meta_properties(b"broker.id=2\n") == (V0, None, 2, None)


@pytest.mark.parametrize("data", [b"", b"version=1\n", b"version=1\ncluster.id=c\n", b"version=1\nnode.id=1\n", b"broker.id=x\n"])
def test_meta_properties_that_name_nobody_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        read_meta_properties(data)


def test_meta_properties_of_a_newer_format_are_refused_in_plain_words() -> None:
    with pytest.raises(MalformedFileError, match="format version 2, which a newer release has written"):
        read_meta_properties(b"version=2\nnode.id=1\ncluster.id=x\n")


@pytest.mark.parametrize(
    ("found", "version", "cluster_id", "expected"),
    [
        (None, V1, None, MetaProperties(V1, "new", 3, "new")),
        (None, V1, "cluster", MetaProperties(V1, "cluster", 3, "new")),
        (None, V0, "cluster", MetaProperties(V0, "cluster", 3, None)),
        (MetaProperties(V1, "other", 3, "d"), V1, None, MetaProperties(V1, "other", 3, "d")),
        (MetaProperties(V1, "cluster", 3, None), V1, None, MetaProperties(V1, "cluster", 3, "new")),
        (MetaProperties(V0, "cluster", 3, None), V1, None, MetaProperties(V1, "cluster", 3, "new")),
        (MetaProperties(V0, "cluster", 3, None), V0, "cluster", MetaProperties(V0, "cluster", 3, None)),
        (MetaProperties(V0, "cluster", 3, "d"), V0, "cluster", MetaProperties(V0, "cluster", 3, "d")),
        (MetaProperties(V0, None, 3, None), V0, "cluster", MetaProperties(V0, "cluster", 3, None)),
    ],
)
def test_directory_gets_the_version_and_the_ids_that_it_lacks(
    found: MetaProperties | None, version: MetaPropertiesVersion, cluster_id: str | None, expected: MetaProperties
) -> None:
    assert own(found, version, cluster_id=cluster_id) == expected


@pytest.mark.parametrize(
    ("found", "version", "code", "words"),
    [
        (
            MetaProperties(V1, "cluster", 3, "d"),
            V0,
            ErrorCode.INVALID_CONFIG,
            "has version 1, and a broker with zookeeper",
        ),
        (MetaProperties(V0, "cluster", 4, None), V0, ErrorCode.INVALID_CONFIG, "belongs to broker 4: set broker.id=4"),
        (MetaProperties(V1, "cluster", 4, "d"), V1, ErrorCode.INVALID_CONFIG, "belongs to broker 4: set node.id=4"),
        (MetaProperties(V0, "x", 3, None), V0, ErrorCode.INCONSISTENT_CLUSTER_ID, "zookeeper.connect leads to cluster cluster"),
        (MetaProperties(V1, "x", 3, "d"), V1, ErrorCode.INCONSISTENT_CLUSTER_ID, "the directories before it to cluster"),
    ],
)
def test_directory_of_another_owner_is_refused(
    found: MetaProperties, version: MetaPropertiesVersion, code: ErrorCode, words: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        own(found, version)

    assert caught.value.code is code
    assert words in str(caught.value)
