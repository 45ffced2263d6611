"""A cluster whose brokers are of older releases, or use an older `inter.broker.protocol.version`."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, JvmMember, Kafka28, Kafka33, Member, mixed_cluster
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

VALUES = [b"value %d" % number for number in range(200)]


LONG = pytest.mark.long("the oldest release is a peer in another case")
PEERS = [
    pytest.param("2.8", JvmMember, id="3.9 that talks as 2.8", marks=LONG),
    pytest.param("3.3", JvmMember, id="3.9 that talks as 3.3", marks=LONG),
    pytest.param("2.8", Kafka28, id="2.8"),
    pytest.param("3.3", Kafka33, id="3.3", marks=LONG),
]


@pytest.mark.parametrize(("release", "kind"), PEERS)
def test_member_follows_leads_and_stops_in_a_cluster_of_an_older_release(
    tmp_path: Path, release: str, kind: type[JvmMember]
) -> None:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    kinds = {1: kind, 2: kind, WIREKAFKA_ID: Member}
    with mixed_cluster(tmp_path, {"inter.broker.protocol.version": release}, kinds) as cluster:
        cluster.create_topic("old", [[1, 2, 3], [3, 1, 2]])
        for index in range(2):
            cluster.produce("old", index, VALUES)
            cluster.transact("old", [index], [b"in a transaction"])
            assert cluster.consume("old", index, len(VALUES) + 1) == [*VALUES, b"in a transaction"]
            cluster.until_equal("old", index)
        cluster.commit("group", "old", [1, 2])
        cluster.brokers[2].kill()
        cluster.produce("old", 1, VALUES)
        wait_until(
            lambda: cluster.describe("old")[1].in_sync_replicas == (1, 3), timeout_s=60, what="broker 2 has left", poll_s=0.1
        )
        cluster.brokers[2].start()
        cluster.until_in_sync("old")
        assert cluster.brokers[WIREKAFKA_ID].terminate(60) == 0
        cluster.until_leader("old", 1, *JVM_IDS)
        assert cluster.committed_offsets("group", "old", 2) == [1, 2]
