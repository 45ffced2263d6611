"""Answers to the probes of Docker, Kubernetes and load balancers.

GET /health        200 if clients can use the broker; 503 if not, with the reason
GET /health/live   200 while the loop of the broker turns
"""

from __future__ import annotations

from wirekafka.server.health import Health
from wirekafka.server.http.messages import Response

READY_PATH = "/health"
LIVE_PATH = "/health/live"
PATHS = (READY_PATH, LIVE_PATH)


def answer_probe(path: str, health: Health) -> Response:
    """Returns the answer to a request for one of `PATHS`."""
    if path == LIVE_PATH:
        return Response.of_json(200, {"live": True})
    if health.is_ready:
        return Response.of_json(200, {"live": True, "ready": True})
    return Response.of_json(503, {"live": True, "ready": False, "reason": health.reason})
