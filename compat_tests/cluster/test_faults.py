"""Random faults of brokers, of their network and disks, and of ZooKeeper, in a cluster of wirekafka under load.

`--faults 100` makes more of them, `--fault-seed 7` repeats a choice of faults, and `--fault-brokers 5` makes a larger cluster.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.cluster_faults import ClusterFaults, small_disks
from compat_tests.harness.mixed_cluster import Member, MixedCluster, mixed_cluster
from compat_tests.harness.networks import ZOOKEEPER, CannotMakeNetworkError, Network, network
from compat_tests.harness.recorded_load import PLAIN, TRANSACTED, Loads
from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.files import Replica, read_data_directory
from wirekafka.simulation.history import Entry, History, TopicCreated

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("faults"), pytest.mark.timeout(10_800)]

DEFAULT_COUNT = 5
PARTITION_COUNT = 3
SESSION_TIMEOUT_S = 4.0
MORE_TIMEOUT_S = 150.0
"""A transactional producer of librdkafka that hangs is replaced after about 70 s."""

GAP_S = 45.0
"""A partition is asked to take records a second after the session of its leader has ended. A busy machine needs more."""

SEED_OF_CI = 1
"""CI repeats the same few faults; a longer run draws others each time."""

SETTINGS = {
    "zookeeper.session.timeout.ms": str(round(SESSION_TIMEOUT_S * 1000)),
    "replica.lag.time.max.ms": str(round(SESSION_TIMEOUT_S * 1000)),
    "log.segment.delete.delay.ms": "100",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


@contextlib.contextmanager
def network_if_possible(broker_ids: list[int]) -> Iterator[Network | None]:
    with contextlib.ExitStack() as stack:
        made = None
        try:
            made = stack.enter_context(network([ZOOKEEPER, *map(str, broker_ids)]))
        except CannotMakeNetworkError as error:
            print(f"no faults of the network: {error}")
        yield made


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    chosen = request.config.getoption("--fault-seed")
    if chosen is not None:
        return int(chosen)
    return SEED_OF_CI if request.config.getoption("--faults") is None else random.randrange(1 << 32)


def create_topics(cluster: MixedCluster) -> None:
    ids = list(cluster.brokers)
    assignment = [[ids[(index + place) % len(ids)] for place in range(3)] for index in range(PARTITION_COUNT)]
    for topic in (PLAIN, TRANSACTED):
        cluster.create_topic(topic, assignment, {"min.insync.replicas": "2"})


def test_nothing_is_lost_doubled_reordered_or_visible_too_early(
    tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    count = request.config.getoption("--faults") or DEFAULT_COUNT
    broker_ids = list(range(1, 1 + request.config.getoption("--fault-brokers")))
    print(f"{count} faults of {len(broker_ids)} brokers by seed {seed}")
    with (
        small_disks(tmp_path / "cluster", broker_ids) as no_disks,
        network_if_possible(broker_ids) as net,
        mixed_cluster(tmp_path / "cluster", SETTINGS, dict.fromkeys(broker_ids, Member), network=net) as cluster,
    ):
        if no_disks is not None:
            print(f"no full disks: {no_disks}")
        create_topics(cluster)
        faults = ClusterFaults(
            cluster, random.Random(seed), SESSION_TIMEOUT_S, PLAIN, PARTITION_COUNT, net, has_small_disks=no_disks is None
        )
        loads = Loads(tmp_path / "loads", PARTITION_COUNT)
        try:
            loads.start(cluster.bootstrap.split(","))
            make_faults(faults, loads, count)
            loads.stop()
            faults.until_in_sync()
            print(loads, flush=True)
        finally:
            loads.close()
        judge(cluster, loads)


def make_faults(faults: ClusterFaults, loads: Loads, count: int) -> None:
    """Makes faults, one after the other; after each, the cluster is in sync, and every client writes to every partition."""
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    heals: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(1, count + 1):
        fault = faults.next()
        loads.forget_gaps()
        print(f"{number}: {fault.__name__}", end=" ", flush=True)
        print(fault(), end="; ", flush=True)
        begin = time.monotonic()
        faults.until_in_sync()
        loads.until_more(MORE_TIMEOUT_S, 2)
        heals[fault.__name__].append(time.monotonic() - begin)
        gaps[fault.__name__].append(loads.longest_gap_s())
        by_load = ", ".join(f"{name} {gap:.1f}" for name, gap in loads.longest_gaps_s().items())
        print(
            f"healed in {heals[fault.__name__][-1]:.1f} s; longest gap {gaps[fault.__name__][-1]:.2f} s ({by_load})", flush=True
        )
    for name, each in gaps.items():
        print(f"{name}: {len(each)} times, gaps up to {max(each):.2f} s, healed within {max(heals[name]):.1f} s")
    assert max(map(max, gaps.values())) < GAP_S


def judge(cluster: MixedCluster, loads: Loads) -> None:
    """Stops the brokers in order, and checks the histories of the clients and the files of the brokers."""
    assert [broker.terminate(120) for broker in cluster.brokers.values()] == [0] * len(cluster.brokers)
    replicas = [each for number, broker in cluster.brokers.items() for each in read_data_directory(broker.data_dir, number)]
    created = [Entry(order, 0, TopicCreated(topic, PARTITION_COUNT, 2)) for order, topic in enumerate((PLAIN, TRANSACTED), 1)]
    history = History([*created, *loads.entries()])
    loaded = [each for each in replicas if each.topic in (PLAIN, TRANSACTED)]
    assert {each.key for each in loaded} == {(topic, index) for topic in (PLAIN, TRANSACTED) for index in range(PARTITION_COUNT)}
    violations = [str(each) for each in (*check(history, loaded, is_settled=True), *check_internal_topics(replicas))]
    print(f"{len(history)} entries, {len(replicas)} replicas, {len(violations)} violations")
    assert not violations, "\n\n".join(violations[:10])
    for broker in cluster.brokers.values():
        command = [sys.executable, "-m", "wirekafka", "log", "verify", str(broker.data_dir)]
        verified = subprocess.run(command, capture_output=True, text=True, check=False)
        assert verified.returncode == 0, verified.stdout + verified.stderr


def check_internal_topics(replicas: list[Replica]) -> list[object]:
    """Returns the violations in the logs of the coordinators, up to their high watermarks."""
    internal = [each for each in replicas if each.topic.startswith("__")]
    topics = sorted({each.topic for each in internal})
    created = [Entry(order, 0, TopicCreated(topic, 1, is_compacted=True)) for order, topic in enumerate(topics, 1)]
    return [*check(History(created), internal)]
