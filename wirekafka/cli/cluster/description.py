"""What `wirekafka cluster describe` prints: the whole snapshot as JSON, or tables of what an operator looks for.

Rules of this file: JSON has everything, and its keys are stable. A table shows `MOST_ROWS` rows, and says how many more
there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wirekafka.cli.cluster.snapshot import Broker, PartitionInfo, Snapshot

MOST_ROWS = 50
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the snapshot as one JSON object."""
    partitions = snapshot.partitions.values()
    return {
        "cluster_id": snapshot.cluster_id,
        "controller": snapshot.controller_id,
        "is_degraded": snapshot.is_degraded,
        "topic_count": snapshot.topic_count,
        "partition_count": len(snapshot.partitions),
        "brokers": _brokers(snapshot),
        "offline_partitions": [_partition(each) for each in partitions if each.is_offline],
        "under_min_isr_partitions": [_partition(each) for each in partitions if each.is_under_min_isr],
        "under_replicated_partitions": [_partition(each) for each in partitions if each.is_under_replicated],
        "out_of_sync_replicas": [
            {"topic": each.name.topic, "partition": each.name.partition, "replica": replica, "lag_records": lag}
            for each in partitions
            for replica, lag in each.lags.items()
        ],
        "reassignments": [
            {
                "topic": each.name.topic,
                "partition": each.name.partition,
                "replicas": [*each.replicas],
                "adding_replicas": [*each.reassignment.adding],
                "removing_replicas": [*each.reassignment.removing],
            }
            for each in partitions
            if each.reassignment is not None
        ],
        "notes": snapshot.notes,
    }


def _brokers(snapshot: Snapshot) -> list[dict[str, Any]]:
    leaders: Counter[int | None] = Counter(each.leader for each in snapshot.partitions.values())
    preferred: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    for each in snapshot.partitions.values():
        preferred.update(each.replicas[:1])
        replicas.update(each.replicas)
        out_of_sync.update(each.out_of_sync)
    return [
        {
            **_broker(snapshot, broker),
            "leader_count": leaders[broker_id],
            "preferred_leader_count": preferred[broker_id],
            "replica_count": replicas[broker_id],
            "out_of_sync_count": out_of_sync[broker_id],
        }
        for broker_id, broker in snapshot.brokers.items()
    ]


def _broker(snapshot: Snapshot, broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "is_registered": broker.is_registered,
        "is_controller": broker.broker_id == snapshot.controller_id,
        "bytes": sum(broker.replica_bytes.values()) if broker.problem is None else None,
        "failed_log_dirs": broker.failed_log_dirs,
        "problem": broker.problem,
    }


def _partition(partition: PartitionInfo) -> dict[str, Any]:
    return {
        "topic": partition.name.topic,
        "partition": partition.name.partition,
        "leader": partition.leader,
        "replicas": [*partition.replicas],
        "isr": [*partition.isr],
        "min_insync_replicas": partition.min_isr,
    }


def print_tables(snapshot: Snapshot, console: Console) -> None:
    """Prints the cluster, its brokers, and tables of everything that is not in order or in progress."""
    console.print(Text(_headline(snapshot), style="bold"), soft_wrap=True)
    console.print(_brokers_table(snapshot))
    partitions = list(snapshot.partitions.values())
    troubled = [(each, state) for each in partitions if (state := _state(each))]
    _print_rows(
        console,
        "Partitions that are offline, or lack replicas in sync",
        ("topic", "partition", "leader", "replicas", "in sync", "state"),
        [
            (*_name(each), _or_none(each.leader), _ids(each.replicas), _ids(each.isr), Text(state, style="red"))
            for each, state in troubled
        ],
    )
    _print_rows(
        console,
        "Replicas out of sync on brokers that run",
        ("topic", "partition", "broker", "lag in records"),
        [
            (*_name(each), str(replica), "unknown" if lag is None else f"{lag:,}")
            for each in partitions
            for replica, lag in each.lags.items()
            if snapshot.brokers[replica].is_registered
        ],
    )
    _print_rows(
        console,
        "Reassignments in progress",
        ("topic", "partition", "replicas", "adding", "removing"),
        [
            (*_name(each), _ids(each.replicas), _ids(each.reassignment.adding), _ids(each.reassignment.removing))
            for each in partitions
            if each.reassignment is not None
        ],
    )
    for note in [*snapshot.notes, *_notes_of_brokers(snapshot)]:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _headline(snapshot: Snapshot) -> str:
    states = Counter(_state(each) for each in snapshot.partitions.values())
    del states[""]
    troubles = [f"{count:,} {state}" for state, count in sorted(states.items())]
    silent = sum(broker.is_registered and broker.problem is not None for broker in snapshot.brokers.values())
    if silent:
        troubles.append(f"{counted(silent, 'broker')} without an answer")
    controller = "no controller" if snapshot.controller_id is None else f"controller {snapshot.controller_id}"
    live = sum(broker.is_registered for broker in snapshot.brokers.values())
    counts = (
        counted(live, "broker"),
        controller,
        counted(snapshot.topic_count, "topic"),
        counted(len(snapshot.partitions), "partition"),
    )
    state = f" ({', '.join(troubles)})" if troubles else ", all in sync"
    return f"Cluster {snapshot.cluster_id or 'without an id'}: {', '.join(counts)}{state}"


def _state(partition: PartitionInfo) -> str:
    """Returns what is wrong with a partition, its worst state only; empty if nothing is."""
    if partition.is_offline:
        return "offline"
    if partition.is_under_min_isr:
        return "under min.insync.replicas"
    return "under-replicated" if partition.is_under_replicated else ""


def _brokers_table(snapshot: Snapshot) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("broker", "address", "rack"):
        table.add_column(heading, no_wrap=True)
    for heading in ("leaders", "preferred", "replicas", "out of sync", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for fields in _brokers(snapshot):
        broker = snapshot.brokers[fields["id"]]
        state = _broker_state(snapshot, broker)
        table.add_row(
            str(broker.broker_id),
            f"{broker.host}:{broker.port}" if broker.is_registered else "",
            broker.rack or "",
            f"{fields['leader_count']:,}",
            f"{fields['preferred_leader_count']:,}",
            f"{fields['replica_count']:,}",
            f"{fields['out_of_sync_count']:,}",
            "unknown" if fields["bytes"] is None else shown_bytes(fields["bytes"]),
            Text(state, style="" if state in ("", "controller") else "red"),
        )
    return table


def _broker_state(snapshot: Snapshot, broker: Broker) -> str:
    states = []
    if broker.broker_id == snapshot.controller_id:
        states.append("controller")
    if not broker.is_registered:
        states.append("down")
    elif broker.problem is not None:
        states.append("does not answer")
    if broker.failed_log_dirs:
        states.append(f"{len(broker.failed_log_dirs)} failed log.dirs")
    return ", ".join(states)


def _notes_of_brokers(snapshot: Snapshot) -> Iterable[str]:
    replicas = Counter(replica for each in snapshot.partitions.values() for replica in each.replicas)
    for broker in snapshot.brokers.values():
        if not broker.is_registered:
            count = counted(replicas[broker.broker_id], "replica")
            yield f"broker {broker.broker_id} is down: start it, or move its {count} to other brokers"
        elif broker.problem is not None:
            yield f"broker {broker.broker_id}: {broker.problem}"
        for directory in broker.failed_log_dirs:
            yield f"broker {broker.broker_id}: the data directory {directory} has failed"


def _print_rows(console: Console, title: str, headings: Sequence[str], rows: Sequence[tuple[str | Text, ...]]) -> None:
    if not rows:
        return
    table = Table(box=SIMPLE_HEAD, padding=0)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in ("partition", "lag in records") else "left", no_wrap=True)
    for row in rows[:MOST_ROWS]:
        table.add_row(*row)
    console.print(Text(f"{title}: {len(rows):,}", style="bold"))
    console.print(table)
    if len(rows) > MOST_ROWS:
        console.print(Text(f"... and {len(rows) - MOST_ROWS:,} more; --json has all"))


def _name(partition: PartitionInfo) -> tuple[str, str]:
    return partition.name.topic, str(partition.name.partition)


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def _or_none(broker_id: int | None) -> str:
    return "none" if broker_id is None else str(broker_id)


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 broker`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shown_bytes(count: float) -> str:
    """Returns a number of bytes with a unit, such as `1.5 GiB`."""
    unit = 0
    while abs(count) >= 1024 and unit < len(UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 else f"{count:.1f} {UNITS[unit]}"
