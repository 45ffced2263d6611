"""The look for a Docker engine, which leaves nothing open if there is none."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from urllib.parse import urlsplit

from docker.errors import DockerException

import docker

DEFAULT_HOST = "unix:///var/run/docker.sock"
PROBE_SECONDS = 5.0


def why_no_engine() -> str | None:
    """Why no Docker engine can be used; None if one answers.

    docker-py leaves its socket unclosed if it cannot connect. The ResourceWarning comes when the garbage collector finds the
    socket, in whatever test runs then. So a socket of our own tries the address first.
    """
    host = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    try:
        _probe(host)
        with closing(docker.from_env()) as client:
            client.ping()
    except (DockerException, OSError) as error:
        return f"{host}: {error}"
    return None


def _probe(host: str) -> None:
    """Raises OSError unless something listens on the address."""
    parts = urlsplit(host)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(parts.path)
    elif parts.scheme in ("tcp", "http", "https"):
        with socket.create_connection((parts.hostname or "localhost", parts.port or 2375), timeout=PROBE_SECONDS):
            pass
