"""The topics of the example, and how they are created."""

from __future__ import annotations

from confluent_kafka.admin import NewTopic

from wirekafka.pipelines.kafka import Cluster, partition_counts

EVENTS = "flights.events"
WEATHER = "flights.weather"
PLANES = "flights.planes"
AIRPORTS = "flights.airports"

DELAYS = "flights.delays"
DEPARTURES = "flights.departures"
DAYS = "flights.days"

PARTITIONS = {EVENTS: 4, WEATHER: 1, PLANES: 1, AIRPORTS: 1, DELAYS: 2, DEPARTURES: 2, DAYS: 2}
COMPACTED = frozenset({PLANES, AIRPORTS, DELAYS, DEPARTURES, DAYS})

SOURCES = (EVENTS, WEATHER, PLANES, AIRPORTS)
RESULTS = (DELAYS, DEPARTURES, DAYS)


def create_topics(bootstrap: str, names: tuple[str, ...]) -> None:
    """Creates those of the topics that do not exist.

    The timestamps are those of the events, in 2013, so nothing is deleted by its age.

    Raises:
        PipelineError: no broker answers.
    """
    cluster = Cluster(bootstrap)
    missing = set(names) - partition_counts(cluster).keys()
    if not missing:
        return
    admin = cluster.admin()
    futures = admin.create_topics([NewTopic(name, PARTITIONS[name], config=_settings(name)) for name in missing])
    for future in futures.values():
        future.result(timeout=15)


def _settings(name: str) -> dict[str, str]:
    return {"cleanup.policy": "compact"} if name in COMPACTED else {"retention.ms": "-1"}
