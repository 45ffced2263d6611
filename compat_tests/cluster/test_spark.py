"""A streaming query of Spark with a checkpoint, which goes on while each broker of a cluster of wirekafka is killed in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.chaos import Source
from compat_tests.harness.mixed_cluster import ALONE, MixedCluster, mixed_cluster
from compat_tests.harness.spark import Stream
from compat_tests.harness.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long("spark/test_running shows a stream whose one broker was away"),
    pytest.mark.java,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]

PER_SECOND = 100
AFTER_THE_KILL = 50
"""So many records are sent while the broker is away, and the query has to read all before them."""


SHORT_TIMEOUTS = {"kafka.default.api.timeout.ms": "10000", "kafka.request.timeout.ms": "5000"}
"""For Spark's admin client (3.9): a ListOffsets request to a leader that is not in the metadata any more waits for the former."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path_factory.mktemp("cluster"), {"zookeeper.session.timeout.ms": "4000"}, ALONE) as running:
        yield running


@pytest.fixture
def source(cluster: MixedCluster) -> Iterator[Source]:
    """Writes to a topic each of whose brokers leads partitions."""
    cluster.create_topic("source", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    writing = Source(cluster.bootstrap, "source", PER_SECOND)
    yield writing
    writing.close()


def read_count(query: Any) -> int:
    """Returns the number of records that the query has read; it has not failed."""
    assert query.exception() is None, query.exception()
    progress = query.lastProgress
    ends = progress["sources"][0]["endOffset"] if progress else None
    return sum(json.loads(ends)["source"].values()) if ends else 0


def until_read(query: Any, count: int) -> None:
    wait_until(lambda: read_count(query) >= count, timeout_s=180, what=f"the query has read {count} records", poll_s=0.1)


def test_streaming_query_goes_on_through_the_loss_of_each_broker(
    cluster: MixedCluster, source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"subscribe": "source", "startingOffsets": "earliest", **SHORT_TIMEOUTS}
    stream = Stream(spark, cluster.bootstrap, tmp_path / "stream", **options)
    query = stream.start()
    try:
        until_read(query, 1)
        for broker_id in cluster.brokers:
            cluster.brokers[broker_id].kill()
            began = time.monotonic()
            until_read(query, source.sent + AFTER_THE_KILL)
            print(f"read {AFTER_THE_KILL} records more {time.monotonic() - began:.1f} s after broker {broker_id} was killed")
            if broker_id == max(cluster.brokers):
                query.stop()
                query = stream.start()  # from the checkpoint, while a broker is away
            cluster.brokers[broker_id].start()
            cluster.until_in_sync("source")
        source.finish()
        until_read(query, source.sent)
    finally:
        query.stop()
    assert sorted(map(int, stream.rows())) == list(range(source.sent))
