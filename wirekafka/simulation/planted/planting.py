"""How a known bug is switched on: its methods and functions replace those of the product, and are put back at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """An attribute of a class or a module that a bug replaces.

    Attributes:
        name: the attribute; the class itself must have it, and the module must look it up at each call.
        value: what stands there while the bug is planted.
    """

    owner: type | ModuleType
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A known bug.

    Attributes:
        name: the switch.
        summary: what the broker does wrong.
        source: the change of Apache Kafka that has ended or prevents the bug.
    """

    name: str
    summary: str
    source: str
    replacements: tuple[Replacement, ...]


@contextmanager
def plant(bug: PlantedBug | None) -> Iterator[None]:
    """Lets all brokers of this process have the bug, until the block ends; None plants nothing.

    Only one bug is planted at a time, and no broker that is in use may run in this process.
    """
    if bug is None:
        yield
        return
    former = [(each, each.owner.__dict__[each.name]) for each in bug.replacements]
    try:
        for each in bug.replacements:
            setattr(each.owner, each.name, each.value)
        yield
    finally:
        for each, value in former:
            setattr(each.owner, each.name, value)
