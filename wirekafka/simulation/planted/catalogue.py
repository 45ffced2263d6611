"""All known bugs, by their switches."""

from __future__ import annotations

from wirekafka.simulation.planted import fencing, replication, ruling
from wirekafka.simulation.planted.planting import PlantedBug

PLANTED: dict[str, PlantedBug] = {bug.name: bug for bug in (*replication.BUGS, *fencing.BUGS, *ruling.BUGS)}
"""The bugs by name."""
