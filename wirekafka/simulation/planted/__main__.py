"""The command `python -m wirekafka.simulation.planted`: shows for each known bug which seed finds it.

Exit status: 0 if all bugs were found, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys

from wirekafka.simulation.planted.catalogue import PLANTED
from wirekafka.simulation.planted.search import search


def main(arguments: list[str]) -> int:
    """Runs the command, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wirekafka.simulation.planted", description="Searches planted bugs.")
    names = ", ".join(PLANTED)
    parser.add_argument("bugs", nargs="*", choices=[[], *PLANTED], metavar="BUG", help=f"one of {names}; all by default")
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to try for each bug (2000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    options = parser.parse_args(arguments)
    is_complete = True
    for name in options.bugs or PLANTED:
        found = search(PLANTED[name], range(options.first, options.first + options.seeds))
        print(found, flush=True)
        is_complete &= found.outcome is not None
    return int(not is_complete)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
