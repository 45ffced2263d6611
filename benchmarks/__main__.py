"""`make bench`: runs each row on each broker in turn, round after round, and prints the table."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from benchmarks import load, machine, report
from benchmarks.brokers import FLOOR, KINDS, delete_topics, open_broker
from benchmarks.consumer_rows import CONSUMER_ROWS
from benchmarks.group_rows import GROUP_ROWS
from benchmarks.log_rows import LOG_ROWS, LogRow
from benchmarks.replication_rows import GROWTH_ROWS, REPLICATION_ROWS, ClusterRow, open_cluster, warm_up
from benchmarks.replication_rows import delete_topics as delete_topics_of_cluster
from benchmarks.rows import RESTING, ROWS, SPARK_RECORDS, Figures, Row, Timing
from benchmarks.spark_rows import SPARK_ROWS
from benchmarks.testing_rows import LARGE_COPIES, TESTING_ROWS, KindRow, Place
from benchmarks.transaction_rows import TRANSACTION_ROWS
from compat_tests.harness import jars
from compat_tests.harness.broker import running

OWN_ROWS = (*LOG_ROWS, *GROUP_ROWS, *CONSUMER_ROWS, *GROWTH_ROWS)
NAMES = [
    row.name
    for row in (*RESTING, *ROWS, *TRANSACTION_ROWS, *SPARK_ROWS, *REPLICATION_ROWS, *OWN_ROWS, *TESTING_ROWS, LARGE_COPIES)
]

NAMES_OF_CLUSTERS = tuple(row.name for row in (*REPLICATION_ROWS, *GROWTH_ROWS))
NAMES_OF_TESTS = tuple(row.name for row in (*TESTING_ROWS, LARGE_COPIES))

Results = dict[str, dict[str, dict[str, list[float]]]]


def measure_resting(
    kind: str, rows: tuple[Row, ...], timing: Timing, directory: Path, results: Results, prepare: Callable[[], object]
) -> None:
    """Starts one broker, prepares the machine before each row, runs the rows, and adds their figures to the results."""
    if not rows:
        return
    prepare()
    with (
        tempfile.TemporaryDirectory(prefix=f"{kind}-", dir=directory) as place,
        running(broker := open_broker(kind, Path(place) / "broker")),
    ):
        for row in rows:
            click.echo(f"{kind}: {row.title}", err=True)
            note(kind, row, row.run(broker, timing), results)
            prepare()


def measure_in_turn(
    kinds: Sequence[str], rows: tuple[Row, ...], timing: Timing, directory: Path, results: Results, prepare: Callable[[], object]
) -> None:
    """Starts the brokers and runs each row on all of them in turn, so that other load of the machine affects them equally.

    The machine is prepared before each row, and the topics are deleted after it. The floor is restarted for each row.
    """
    if not rows:
        return
    with tempfile.TemporaryDirectory(prefix="brokers-", dir=directory) as place, ExitStack() as started:
        brokers = {kind: open_broker(kind, Path(place) / kind) for kind in kinds if kind != FLOOR}
        for broker in brokers.values():
            started.enter_context(running(broker))
        for row in rows:
            for kind in kinds:
                if kind == FLOOR and not row.has_floor:
                    continue
                prepare()
                click.echo(f"{kind}: {row.title}", err=True)
                if kind != FLOOR:
                    note(kind, row, row.run(brokers[kind], timing), results)
                    delete_topics(brokers[kind])
                    continue
                with tempfile.TemporaryDirectory(dir=place) as files, running(floor := open_broker(FLOOR, Path(files) / FLOOR)):
                    note(kind, row, row.run(floor, timing), results)


def measure_log(
    rows: tuple[LogRow, ...], timing: Timing, directory: Path, results: Results, prepare: Callable[[], object]
) -> None:
    """Runs rows that start brokers of their own, and adds their figures to the results."""
    for row in rows:
        click.echo(f"wirekafka: {row.title}", err=True)
        prepare()
        with tempfile.TemporaryDirectory(prefix="log-", dir=directory) as place:
            note("wirekafka", row, row.run(Path(place), timing), results)


def measure_tests(
    kinds: Sequence[str],
    rows: tuple[KindRow, ...],
    timing: Timing,
    directory: Path,
    results: Results,
    prepare: Callable[[], object],
) -> None:
    """Runs rows that start the brokers of a kind themselves, on each kind in turn, and adds their figures to the results."""
    for row in rows:
        for kind in kinds:
            if kind == FLOOR or (kind != "wirekafka" and not row.has_kafka):
                continue
            prepare()
            click.echo(f"{kind}: {row.title}", err=True)
            with tempfile.TemporaryDirectory(prefix="tests-", dir=directory) as place:
                note(kind, row, row.run(Place(kind, Path(place)), timing), results)


def measure_clusters(
    kinds: Sequence[str],
    rows: tuple[ClusterRow, ...],
    timing: Timing,
    directory: Path,
    results: Results,
    prepare: Callable[[], object],
) -> None:
    """Starts a cluster of each kind in turn, warms it up, runs the rows on it, and adds their figures to the results.

    The other cluster does not run meanwhile: three idle JVMs would take CPU time from the brokers that are measured. The machine
    is prepared before each row, and the topics are deleted after it.
    """
    for kind in kinds if rows else ():
        if kind == FLOOR:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="cluster-", dir=directory) as place,
            open_cluster(kind, Path(place)) as cluster,
        ):
            warm_up(cluster, timing)
            for row in rows:
                prepare()
                click.echo(f"{kind}: {row.title}", err=True)
                note(kind, row, row.run(cluster, timing), results)
                delete_topics_of_cluster(cluster)


def note(kind: str, row: Row, figures: Figures, results: Results) -> None:
    """Prints a row's figures and adds them to the results."""
    click.echo("    " + ", ".join(f"{row.figures[name].unit} {value:.4g}" for name, value in figures.items()), err=True)
    for name, value in figures.items():
        results[row.name][kind][name].append(value)


@click.command()
@click.option("--only", "names", multiple=True, type=click.Choice(NAMES), help="Run this row only; may be given several times.")
@click.option("--clusters", "is_of_clusters", is_flag=True, help="Run the rows about clusters only.")
@click.option(
    "--tests", "is_of_tests", is_flag=True, help="Run the rows about brokers in tests only; one of them needs 10 GiB of disk."
)
@click.option(
    "--broker",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS)),
    default=list(KINDS),
    show_default=True,
    help="Measure this one only; may be given several times.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often each broker has its turn; medians are shown.",
)
@click.option("--seconds", type=click.IntRange(1), default=5, show_default=True, help="How long a row measures.")
@click.option("--warmup", type=click.IntRange(1), default=6, show_default=True, help="How long a row warms up before that.")
@click.option(
    "--spark-records",
    type=click.IntRange(1000),
    default=SPARK_RECORDS,
    show_default=True,
    help="How many records Spark reads in each of the rows spark-100 and spark-1k, which run only if --only names them.",
)
@click.option(
    "--free-memory",
    "is_memory_free",
    is_flag=True,
    help="Leave free memory as it is, instead of filling it with page cache before each row: on a virtual machine "
    "whose host takes free memory back, page faults then decide.",
)
@click.option("--quick", is_flag=True, help="One round of 2 seconds after 3 of warm-up: to see that it works, not to quote.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write every round's figures here."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path(tempfile.gettempdir()),
    show_default=True,
)
def main(
    names: tuple[str, ...],
    is_of_clusters: bool,
    is_of_tests: bool,
    kinds: tuple[str, ...],
    rounds: int,
    seconds: int,
    warmup: int,
    spark_records: int,
    is_memory_free: bool,
    quick: bool,
    json_path: Path | None,
    directory: Path,
) -> None:
    """Measures wirekafka, Apache Kafka and the floor in the same way, and prints each figure and the ratio."""
    if is_of_clusters:
        names += NAMES_OF_CLUSTERS
    if is_of_tests:
        names += NAMES_OF_TESTS
    if quick:
        rounds, seconds, warmup = 1, 2, 3
    if "kafka" in kinds and (reason := jars.missing_program()) is not None:
        raise click.ClickException(f"Apache Kafka {reason}")
    facts = machine.facts(directory) | {"free memory": "left as it was" if is_memory_free else "filled with page cache"}
    timing = Timing(warmup, seconds, spark_records)
    results: Results = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    resting, loaded = (
        tuple(row for row in rows if not names or row.name in names) for rows in (RESTING, (*ROWS, *TRANSACTION_ROWS))
    )
    loaded += tuple(row for row in SPARK_ROWS if row.name in names)
    of_clusters = tuple(row for row in REPLICATION_ROWS if not names or row.name in names)
    of_log = tuple(row for row in OWN_ROWS if not names or row.name in names)
    of_tests = tuple(row for row in TESTING_ROWS if not names or row.name in names)
    of_tests += tuple(row for row in (LARGE_COPIES,) if row.name in names)
    try:
        load.program()
        with tempfile.TemporaryDirectory(prefix="page-cache-", dir=directory) as pages:
            prepare = partial(machine.settle, None if is_memory_free else Path(pages))
            for _ in range(rounds):
                for kind in kinds:
                    if kind != FLOOR:
                        measure_resting(kind, resting, timing, directory, results, prepare)
                measure_in_turn(kinds, loaded, timing, directory, results, prepare)
                measure_clusters(kinds, of_clusters, timing, directory, results, prepare)
                measure_tests(kinds, of_tests, timing, directory, results, prepare)
                kinds = kinds[::-1]  # the first broker may find the machine in another state
                if "wirekafka" in kinds:
                    measure_log(of_log, timing, directory, results, prepare)
    except load.LoadError as error:
        raise click.ClickException(str(error)) from None
    finally:  # after a failure, the figures so far are shown too
        if results:
            report.print_report(facts, (*resting, *loaded, *of_clusters, *of_log, *of_tests), results)
        if json_path is not None:
            json_path.write_text(json.dumps({"machine": facts, "figures": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
