"""Writes wirekafka/api/redpanda.txt: the API versions of releases of Redpanda, from a clone of its source.

    python tools/redpanda_versions.py REDPANDA

REDPANDA is a clone of github.com/redpanda-data/redpanda with its tags. Each header in src/v/kafka/server/handlers declares the
oldest and the newest version of an API, and handlers.h lists the APIs that brokers serve.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from wirekafka.api.kafka_apis import API_NAMES

RELEASES = ["22.3.25", "23.1.21", "23.2.29", "23.3.21", "24.1.18", "24.2.14", "24.3.2"]

HEADER = """\
# The API versions that the brokers of releases of Redpanda serve: the name here, the release, KEY:FIRST-LAST.
# Written by tools/redpanda_versions.py from src/v/kafka/server/handlers of github.com/redpanda-data/redpanda, at the tag v and
# the release, with enable_idempotence and enable_transactions as they are by default: true.
"""

HANDLERS = "src/v/kafka/server/handlers"
TABLE = Path(__file__).parent.parent / "wirekafka" / "api" / "redpanda.txt"
KEYS = {name: key for key, name in API_NAMES.items()}

DECLARED = re.compile(r"(?:using|struct) (\w+)_handler\s*[=:]\s*(?:public )?\w+_handler<\s*\w+_api,\s*(\d+),\s*(\d+)[,>]")
SERVED = re.compile(r"make_request_types<([^>]*)>;")


def git(clone: str, *arguments: str) -> str:
    """Returns what git says about a clone."""
    return subprocess.run(["git", "-C", clone, *arguments], check=True, capture_output=True, text=True).stdout


def versions_of(clone: str, tag: str) -> dict[int, str]:
    """Returns FIRST-LAST of each API, by its key, that the brokers of a release serve."""
    names = git(clone, "ls-tree", "-r", "--name-only", tag, HANDLERS).split()
    headers = "".join(git(clone, "show", f"{tag}:{name}") for name in names if name.endswith(".h"))
    declared = {name: f"{first}-{last}" for name, first, last in DECLARED.findall(headers)}
    (served,) = SERVED.findall(headers)
    found = [name.strip().removesuffix("_handler") for name in served.split(",")]
    return {KEYS[name.title().replace("_", "")]: declared[name] for name in found}


def line_of(clone: str, release: str) -> str:
    """Returns the line of a release."""
    versions = sorted(versions_of(clone, f"v{release}").items())
    return f"redpanda-{release.rpartition('.')[0]} {release} {' '.join(f'{key}:{each}' for key, each in versions)}\n"


def main() -> None:
    """Writes the table."""
    TABLE.write_text(HEADER + "".join(line_of(sys.argv[1], release) for release in RELEASES))


if __name__ == "__main__":
    main()
