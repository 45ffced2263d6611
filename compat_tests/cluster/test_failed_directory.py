"""A data directory of broker 3 fails: the controller gives the partitions in it other leaders, and the others stay."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.conftest import skip_or_fail
from compat_tests.harness import jars
from compat_tests.harness.mixed_cluster import JVM_IDS, WIREKAFKA_ID, MixedCluster, mixed_cluster
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("mixed-cluster")]

COUNT = 4
VALUES = [b"value %d" % number for number in range(100)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    reason = jars.missing_program()
    if reason is not None:
        skip_or_fail(reason)
    settings = {"replica.high.watermark.checkpoint.interval.ms": "500"}
    with mixed_cluster(tmp_path_factory.mktemp("cluster"), settings) as running:
        yield running


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Covers a directory with an empty file system that cannot be written; skips the test where nothing can be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_partitions_of_a_failed_directory_get_other_leaders(cluster: MixedCluster) -> None:
    member = cluster.brokers[WIREKAFKA_ID]
    kept, lost = member.data_dir, member.data_dir.with_name("lost")
    assert member.terminate() == 0
    member.settings = {**member.settings, "log.dirs": f"{kept},{lost}"}
    member.start()
    cluster.create_topic("spread", [[3, 1, 2]] * COUNT)
    for index in range(COUNT):
        cluster.until_leader("spread", index, WIREKAFKA_ID)
        cluster.produce("spread", index, VALUES)
    in_lost = {int(path.name.rpartition("-")[2]) for path in lost.glob("spread-*")}
    assert 0 < len(in_lost) < COUNT
    with read_only(lost):
        for index in in_lost:
            cluster.until_leader("spread", index, *JVM_IDS)
        views = cluster.describe("spread")
        assert {index for index, view in views.items() if view.leader == WIREKAFKA_ID} == set(range(COUNT)) - in_lost
        for index in range(COUNT):
            cluster.produce("spread", index, VALUES)
            assert cluster.consume("spread", index, 2 * len(VALUES)) == VALUES * 2
        wait_until(
            lambda: all(WIREKAFKA_ID not in cluster.describe("spread")[index].in_sync_replicas for index in in_lost),
            timeout_s=60,
            what="the lost replicas have left the in-sync replicas",
            poll_s=0.1,
        )
