"""Known bugs are in force only while they are planted."""

from __future__ import annotations

import pytest

from wirekafka.simulation.planted.catalogue import PLANTED
from wirekafka.simulation.planted.planting import PlantedBug, Replacement, plant


def _now(bug: PlantedBug) -> list[object]:
    return [each.owner.__dict__[each.name] for each in bug.replacements]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_replaces_methods_until_the_end_of_the_block(name: str) -> None:
    bug = PLANTED[name]
    former = _now(bug)

    with plant(bug):
        assert _now(bug) == [each.value for each in bug.replacements]
        assert _now(bug) != former

    assert _now(bug) == former


def test_planted_bug_ends_after_an_error_in_the_block() -> None:
    bug = next(iter(PLANTED.values()))
    former = _now(bug)

    with pytest.raises(ValueError), plant(bug):
        raise ValueError

    assert _now(bug) == former


def test_bug_whose_method_does_not_exist_plants_nothing() -> None:
    class Product:
        right = 1

    bug = PlantedBug("typo", "", "", (Replacement(Product, "right", 2), Replacement(Product, "rigth", 2)))

    with pytest.raises(KeyError), plant(bug):
        pass

    assert Product.right == 1


def test_no_bug_plants_nothing() -> None:
    with plant(None):
        assert [_now(bug) for bug in PLANTED.values()] != [[each.value for each in bug.replacements] for bug in PLANTED.values()]
