"""The names of the topics in the journal `wirekafka.metadata`, read without opening it for writing."""

from __future__ import annotations

import json
import os

from wirekafka.inspection.files import read_whole
from wirekafka.metadata.journal import FILE_NAME


def topics_in_journal(root: str) -> set[str] | None:
    """Returns the topics in the journal of a data directory; None without a journal, or if one of its lines cannot be read.

    The broker names such a line when it starts. Only the first of several data directories has a journal.
    """
    try:
        lines = read_whole(os.path.join(root, FILE_NAME)).split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    topics: set[str] = set()
    try:
        for change in map(json.loads, lines):
            if "deleted" in change:
                topics.discard(change["topic"])
            elif "topic" in change:
                topics.add(change["topic"])
    except (ValueError, KeyError, TypeError):
        return None
    return topics
