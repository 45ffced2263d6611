"""The Java Admin client describes and changes several data directories while a client writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compat_tests.harness import tools
from compat_tests.harness.broker import Broker
from compat_tests.harness.clients import Agent, Record
from compat_tests.harness.tools import Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

MOVE = "MoveLogDir"
RECORDS = 20_000


def directories(tools_jvm: Tools, bootstrap: str, topic: str) -> dict[str, list[tuple[int, bool]]]:
    """Returns, by directory, the partitions in it and whether they are future replicas."""
    shown = tools_jvm.check(tools.LOG_DIRS, "--bootstrap-server", bootstrap, "--describe", "--topic-list", topic).out
    (described,) = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))["brokers"]
    return {
        each["logDir"]: [(int(entry["partition"].rpartition("-")[2]), entry["isFuture"]) for entry in each["partitions"]]
        for each in described["logDirs"]
    }


def test_partition_moves_to_another_directory_while_it_is_written_to(
    make_broker: Callable[..., Broker], tmp_path: Path, tools_jvm: Tools, writer: Agent
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    broker = make_broker({"log.dirs": f"{first},{second}"})
    create_topic(broker.bootstrap, "moved", 2)

    def is_in(path: Path) -> bool:
        return (0, False) in directories(tools_jvm, broker.bootstrap, "moved")[str(path)]

    found = directories(tools_jvm, broker.bootstrap, "moved")
    assert found == {str(first): [(0, False)], str(second): [(1, False)]}

    records = [Record(b"k%d" % n, bytes(5000), partition=0) for n in range(RECORDS // 20)]

    def write() -> None:
        for _ in range(20):
            writer.produce(broker.bootstrap, "moved", records)

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write)
        for path in (second, first, second):
            tools_jvm.check(MOVE, broker.bootstrap, "moved", "0", "1", str(path))
            wait_until(lambda path=path: is_in(path), timeout_s=60, what=f"the partition in {path}")
        writing.result(120)

    refused = tools_jvm.run(MOVE, broker.bootstrap, "moved", "0", "1", str(tmp_path / "nowhere"))
    assert refused.code != 0
    assert "LogDirNotFoundException" in refused.out + refused.err
    ends = tools_jvm.check(tools.GET_OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", "moved").lines()
    assert f"moved:0:{RECORDS}" in ends
    broker.kill()
    broker.start()
    ends = tools_jvm.check(tools.GET_OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", "moved").lines()
    assert f"moved:0:{RECORDS}" in ends


def test_reassign_partitions_tool_moves_a_partition_to_another_directory(
    make_broker: Callable[..., Broker], tmp_path: Path, tools_jvm: Tools, writer: Agent
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    broker = make_broker({"log.dirs": f"{first},{second}"})
    create_topic(broker.bootstrap, "reassigned", 1)
    writer.produce(broker.bootstrap, "reassigned", [Record(b"k%d" % n, b"v", partition=0) for n in range(100)])
    ((found, _),) = [item for item in directories(tools_jvm, broker.bootstrap, "reassigned").items() if item[1]]
    (target,) = {str(first), str(second)} - {found}
    wish = tmp_path / "wish.json"
    assignment = {"topic": "reassigned", "partition": 0, "replicas": [1], "log_dirs": [target]}
    wish.write_text(json.dumps({"version": 1, "partitions": [assignment]}))

    def reassign(action: str) -> str:
        options = ("--bootstrap-server", broker.bootstrap, "--reassignment-json-file", str(wish), action)
        return tools_jvm.check(tools.REASSIGN_PARTITIONS, *options).out

    assert f"moving log directory to {target}" in reassign("--execute")
    wait_until(
        lambda: f"Reassignment of replica reassigned-0-{1} completed" in reassign("--verify"),
        timeout_s=60,
        what="the partition has moved",
    )
    assert directories(tools_jvm, broker.bootstrap, "reassigned")[target] == [(0, False)]
    ends = tools_jvm.check(tools.GET_OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", "reassigned").lines()
    assert "reassigned:0:100" in ends
