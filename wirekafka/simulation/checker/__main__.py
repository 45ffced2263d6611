"""The command `python -m wirekafka.simulation.checker`: judges recorded histories, and the data directories of stopped brokers.

Exit status: 0 if no property is violated, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from wirekafka.simulation.checker.checking import check
from wirekafka.simulation.checker.files import read_data_directory
from wirekafka.simulation.history import History


def main(arguments: list[str]) -> int:
    """Runs the command, and returns the exit status."""
    options = _parse(arguments)
    history = History.from_lines(_lines(options.histories))
    replicas = [replica for broker_id, directory in options.broker for replica in read_data_directory(directory, broker_id)]
    violations = check(history, replicas, is_settled=options.settled)
    for violation in violations:
        print(violation, end="\n\n")
    print(f"{len(history)} entries, {len(replicas)} replicas, {len(violations)} violations")
    return int(bool(violations))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m wirekafka.simulation.checker", description="Judges recorded histories.")
    parser.add_argument("histories", nargs="+", type=Path, metavar="HISTORY", help="JSON lines of one recorder")
    parser.add_argument(
        "--broker",
        action="append",
        default=[],
        type=_broker,
        metavar="ID=DIRECTORY",
        help="the data directory of a stopped broker",
    )
    parser.add_argument("--settled", action="store_true", help="all brokers were in sync before they stopped in an orderly way")
    return parser.parse_args(arguments)


def _broker(argument: str) -> tuple[int, Path]:
    broker_id, _, directory = argument.partition("=")
    if not broker_id.isdecimal() or not directory:
        raise argparse.ArgumentTypeError(f"{argument!r} is not ID=DIRECTORY")
    return int(broker_id), Path(directory)


def _lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        with path.open(encoding="utf-8") as file:
            yield from file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
