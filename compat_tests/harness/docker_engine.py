"""Finds a Docker engine, and leaves no socket open if none answers."""

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
    """Returns why no Docker engine can be used; None if an engine answers.

    docker-py leaves its socket unclosed if it cannot connect. The ResourceWarning comes when the garbage collector finds the
    socket, during any later test. So a socket of this function tries the address first.
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
    """Raises OSError unless a process listens on the address."""
    parts = urlsplit(host)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(parts.path)
    elif parts.scheme in ("tcp", "http", "https"):
        with socket.create_connection((parts.hostname or "localhost", parts.port or 2375), timeout=PROBE_SECONDS):
            pass
