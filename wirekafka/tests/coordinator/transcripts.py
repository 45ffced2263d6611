"""Transcripts: what a pure coordinator is told, what it asks for, and the state that it is in afterwards, as text files.

A line that starts with `>` is an input and one with `#` a comment; the rest is what came of it. Run with
`--rewrite-transcripts`, they are written anew, and the diff is what to look at.

An input is a verb, and words as a shell would split them; those with a `=` in them are named. The player has a method for each
verb, `do_join` for `join`, which takes the words as arguments and tells the story of what happens.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from wirekafka.errors import KafkaError

FOLDER = Path(__file__).parent / "transcripts"


class Player:
    """Plays inputs; its heirs have the verbs."""

    def tell(self, event: str) -> None:
        """Writes down something that happened, or was answered, because of the input."""
        self.story().append(event)

    def story(self) -> list[str]:
        """What has come of the input so far; emptied before the next."""
        raise NotImplementedError

    def states(self) -> list[str]:
        """A line for each thing that the coordinator knows."""
        raise NotImplementedError

    def is_named(self, verb: str, word: str) -> bool:
        """Whether a word with a `=` in it is a named argument of the verb."""
        return True

    def play(self, text: str) -> str:
        """The transcript as it would be written now."""
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
    """Whether the coordinator does what the transcript says; with `--rewrite-transcripts`, the transcript says what it does."""
    text = path.read_text()
    replayed = player.play(text)
    if request.config.getoption("--rewrite-transcripts", default=False):
        path.write_text(replayed)
    else:
        assert replayed == text
