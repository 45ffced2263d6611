"""Random numbers from a seed. Only this module draws them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A source of random numbers.

    Every part of a simulation has dice of its own, so that a change of one part does not change the random numbers of the others.

    Args:
        seed: the same text gives the same numbers, in every process.
    """

    __slots__ = ("_random", "_seed")

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._random = random.Random(seed)

    def fork(self, name: str) -> Dice:
        """Returns dice for one part of the simulation."""
        return Dice(f"{self._seed}/{name}")

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self._random.random() < probability

    def between(self, least: int, most: int) -> int:
        """Returns a number from `least` to `most`, both included."""
        return self._random.randint(least, most)

    def choose(self, choices: Sequence[T]) -> T:
        """Returns one of the choices."""
        return choices[self._random.randrange(len(choices))]

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """Returns `count` different choices, in any order."""
        return self._random.sample(choices, count)
