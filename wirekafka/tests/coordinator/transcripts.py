"""Transcripts: text files with the inputs of a pure coordinator, their effects, and the state after each input.

A line that starts with `>` is an input and one with `#` a comment; the other lines are effects. With `--rewrite-transcripts`
the tests write the files again, and the diff shows what has changed.

An input is a verb, and words that are split as a shell does; words with a `=` are named arguments. The player has a method for
each verb, `do_join` for `join`, which takes the words as arguments and reports the effects.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from wirekafka.errors import KafkaError

FOLDER = Path(__file__).parent / "transcripts"


class Player:
    """Plays inputs; its subclasses have the verbs."""

    def tell(self, event: str) -> None:
        """Reports an effect of the input."""
        self.story().append(event)

    def story(self) -> list[str]:
        """The effects of the input so far; cleared before the next input."""
        raise NotImplementedError

    def states(self) -> list[str]:
        """Returns the state of the coordinator, one line for each object."""
        raise NotImplementedError

    def is_named(self, verb: str, word: str) -> bool:
        """Returns whether a word with a `=` is a named argument of the verb."""
        return True

    def play(self, text: str) -> str:
        """Returns the transcript with the present effects."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("#") or not line and lines and lines[-1]:
                lines.append(line)
            elif line.startswith(">"):
                lines += [line, *self._step(line[1:].strip())]
        return "\n".join(lines).rstrip() + "\n"

    def _step(self, line: str) -> list[str]:
        verb, *words = shlex.split(line)
        named = {word: "=" in word and self.is_named(verb, word) for word in words}
        self.story().clear()
        try:
            getattr(self, f"do_{verb.replace('-', '_')}")(
                *(word for word in words if not named[word]), **dict(word.split("=", 1) for word in words if named[word])
            )
        except KafkaError as error:
            self.tell(f"answer: {error.code.name}")
        return [f"    {event}" for event in self.story()] + [f"  {state}" for state in self.states()]


def transcripts_in(folder: str) -> list[Path]:
    """The transcripts of one coordinator."""
    return sorted((FOLDER / folder).glob("*.txt"))


def check(path: Path, player: Player, request: pytest.FixtureRequest) -> None:
    """Raises unless the effects are those in the transcript; with `--rewrite-transcripts`, writes the transcript instead."""
    text = path.read_text()
    replayed = player.play(text)
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(replayed)
    else:
        assert replayed == text
