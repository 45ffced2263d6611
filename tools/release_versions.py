"""Writes wirekafka/api/releases.txt: the API versions of each release of Apache Kafka, from its kafka-clients jar.

    python tools/release_versions.py

It needs Maven and a JDK. The jars hold the declarations of the broker too: brokers and clients are built from the same ApiKeys.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

RELEASES = [
    "0.8.2.2", "0.9.0.1", "0.10.0.0", "0.10.1.1", "0.10.2.2", "0.11.0.3", "1.0.2", "1.1.1", "2.0.1", "2.1.1",
    "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.3", "2.7.2", "2.8.2", "3.0.2", "3.1.2", "3.2.3",
    "3.3.2", "3.4.1", "3.5.2", "3.6.2", "3.7.2", "3.8.1", "3.9.1", "4.0.0", "4.1.0", "4.2.0",
    "4.3.1",
]  # fmt: skip

HEADER = """\
# The API versions that the brokers of each release of Apache Kafka serve: the release, the version of the jar, KEY:FIRST-LAST.
# Written by tools/release_versions.py from ApiKeys of org.apache.kafka:kafka-clients (Maven Central), without unstable versions.
# The group APIs of 0.8.2 are left out: their messages differ from those of 0.9, and its brokers had no group coordinator.
"""

UNFINISHED = {"0.8.2.2": {11, 12}}
"""JoinGroup and Heartbeat before there were groups."""

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:get"
JAVA = Path(__file__).with_name("ApiVersionsOfRelease.java")
TABLE = Path(__file__).parent.parent / "wirekafka" / "api" / "releases.txt"


def jar_of(artifact: str, version: str) -> str:
    """Returns the path of a jar, after Maven has fetched it."""
    name = artifact.rpartition(":")[2]
    subprocess.run(["mvn", "-q", PLUGIN, f"-Dartifact={artifact}:{version}", "-Dtransitive=false"], check=True)
    folder = Path.home() / ".m2" / "repository" / artifact.replace(".", "/").replace(":", "/") / version
    return str(folder / f"{name}-{version}.jar")


def versions_of(release: str, classes: str, logger: str) -> Iterator[str]:
    """Yields KEY:FIRST-LAST for each API of the brokers of a release."""
    path = ":".join([classes, jar_of("org.apache.kafka:kafka-clients", release), logger])
    run = subprocess.run(["java", "-cp", path, JAVA.stem], check=True, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        key, first, last, listeners = line.split()
        is_served = int(first) <= int(last) and (listeners == "-" or "BROKER" in listeners)
        if is_served and int(key) not in UNFINISHED.get(release, ()):
            yield f"{key}:{first}-{last}"


def short_name(release: str) -> str:
    """Returns 2.8 for 2.8.2, and 0.10.2 for 0.10.2.2."""
    parts = release.split(".")
    is_long = parts[:2] in (["0", "8"], ["0", "10"])
    return ".".join(parts[: 3 if is_long else 2])


def main() -> None:
    """Writes the table."""
    logger = jar_of("org.slf4j:slf4j-api", "1.7.36")
    with TemporaryDirectory() as classes:
        subprocess.run(["javac", "-d", classes, str(JAVA)], check=True)
        lines = [f"{short_name(each)} {each} {' '.join(versions_of(each, classes, logger))}\n" for each in RELEASES]
    TABLE.write_text(HEADER + "".join(lines))


if __name__ == "__main__":
    main()
