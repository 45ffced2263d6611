"""Brokers of Apache Kafka 3.9 are replaced by wirekafka on their data directories, and back again, under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.cluster_load import PARTITION_COUNT, TOPICS, ClusterLoad
from compat_tests.harness.mixed_cluster import AnyMember, JvmMember, Member, MixedCluster, mixed_cluster

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster"), pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    with mixed_cluster(tmp_path, kinds=dict.fromkeys((1, 2, 3), JvmMember)) as running:
        yield running


def test_brokers_are_replaced_on_their_data_directories_and_back_without_loss(
    cluster: MixedCluster, tmp_path: Path, is_long: bool
) -> None:
    replacements: list[tuple[int, type[AnyMember]]] = [(3, Member), (3, JvmMember)]
    if is_long:
        replacements = [(3, Member), (2, Member), (3, JvmMember), (2, JvmMember)]
    load = ClusterLoad(cluster, tmp_path)
    cluster.commit("group", "load", [1, 2, 3])
    with load.running():
        for number, kind in replacements:
            cluster.replace(number, kind)
            for topic in (*TOPICS, "__consumer_offsets", "__transaction_state"):
                cluster.until_in_sync(topic, 1)
            for index in range(PARTITION_COUNT):
                cluster.elect_preferred_if_needed("load", index)
            assert cluster.committed_offsets("group", "load", 3) == [1, 2, 3]
    load.check(cluster)
