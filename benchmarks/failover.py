"""How long clients wait while a broker or the controller fails over, in a cluster of wirekafka alone with many partitions.

    python -m benchmarks.failover --partitions 10000

It runs ZooKeeper and three brokers. A producer writes all the time to a topic of which each broker leads a partition. The other
partitions are at rest. Each fault is repeated, and the figures of each repetition are printed:

- gap: the longest time between two acknowledgements in one partition;
- session: until ZooKeeper has ended the session of the killed broker and another broker is the controller;
- read: until the new controller has read the cluster;
- taken over: until the new controller has elected leaders, and its requests are on their way;
- roles: until both surviving brokers have taken their roles.

The last four count from the fault, as the logs of the brokers say.
"""

from __future__ import annotations

import re
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click

from benchmarks.replication_rows import KINDS
from compat_tests.harness.broker import Broker
from compat_tests.harness.mixed_cluster import MixedCluster, mixed_cluster
from compat_tests.harness.steady_load import steady_load

IDS = (1, 2, 3)
PARTITIONS_OF_A_TOPIC = 100
SPREAD = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
STEPS = {
    "session": "This broker is the controller ",
    "read": "The controller has read the cluster",
    "taken over": "The controller has taken over the cluster",
}


def create_topics(cluster: MixedCluster, partitions: int, replicas: int) -> None:
    """Creates the topics at rest."""
    for number in range(-(-partitions // PARTITIONS_OF_A_TOPIC)):
        assignment = [SPREAD[index % 3][:replicas] for index in range(PARTITIONS_OF_A_TOPIC)]
        cluster.create_topic(f"resting-{number}", assignment)


def times_of(broker: Broker, text: str, after: float) -> list[float]:
    """Returns when the broker has logged lines with a text, in seconds after a time."""
    found = []
    for line in broker.log_text().splitlines():
        if text in line and (stamp := re.match(r"\S+", line)) is not None:
            seconds = datetime.fromisoformat(stamp[0]).timestamp() - after
            if seconds > 0:
                found.append(seconds)
    return found


def report(name: str, cluster: MixedCluster, failed: int, began: float, gap_s: float) -> None:
    """Prints the figures of one fault."""
    others = [broker for number, broker in cluster.brokers.items() if number != failed]
    steps = {step: [when for broker in others for when in times_of(broker, text, began)][:1] for step, text in STEPS.items()}
    steps["roles"] = [max((times_of(broker, "The replicas have taken their roles", began) or [0.0])[-1] for broker in others)]
    shown = "  ".join(f"{step} {when:.2f} s" for step, found in steps.items() for when in found)
    click.echo(f"{name}: gap {gap_s:.2f} s  {shown}")


def fail(cluster: MixedCluster, name: str, failed: int, fault: Callable[[Broker], object]) -> None:
    """Lets a broker fail under load of a new topic, reports, and starts the broker again."""
    loaded = f"loaded-{uuid.uuid4()}"
    cluster.create_topic(loaded, SPREAD)
    with steady_load(cluster, loaded, len(SPREAD)) as load:
        began = time.time()
        fault(cluster.brokers[failed])
        asked = next(number for number in IDS if number != failed)
        for index in range(len(SPREAD)):
            cluster.until_leader(loaded, index, *(set(IDS) - {failed}), asked=asked)
        load.until_more(50)
        time.sleep(1)
        gap_s = load.longest_gap_s
    report(name, cluster, failed, began, gap_s)
    cluster.brokers[failed].start()
    admin = cluster.admin()
    for topic in admin.list_topics(timeout=60).topics:
        cluster.until_in_sync(topic)
    admin.delete_topics([loaded])[loaded].result(60)


@click.command()
@click.option("--partitions", default=10_000, show_default=True, help="The partitions at rest.")
@click.option("--replicas", default=2, show_default=True, type=click.IntRange(1, 3), help="The replicas of each of them.")
@click.option("--session-timeout-ms", default=4_000, show_default=True, help="zookeeper.session.timeout.ms.")
@click.option("--repeat", default=3, show_default=True, help="How often each broker fails in each way.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where the files are; a new directory, which is removed.")
def main(partitions: int, replicas: int, session_timeout_ms: int, repeat: int, directory: Path | None) -> None:
    """Prints how long clients wait for a failover."""
    settings = {"zookeeper.session.timeout.ms": str(session_timeout_ms)}
    kinds = dict.fromkeys(IDS, KINDS["wirekafka"])
    with tempfile.TemporaryDirectory(dir=directory) as place, mixed_cluster(Path(place), settings, kinds) as cluster:
        create_topics(cluster, partitions, replicas)
        for _ in range(repeat):
            controller = cluster.controller_id()
            other = next(number for number in IDS if number != controller)
            fail(cluster, "leader killed", other, Broker.kill)
            fail(cluster, "controller killed", cluster.controller_id(), Broker.kill)
            controller = cluster.controller_id()
            other = next(number for number in IDS if number != controller)
            fail(cluster, "leader stopped in order", other, Broker.terminate)
            fail(cluster, "controller stopped in order", cluster.controller_id(), Broker.terminate)


if __name__ == "__main__":
    main()
