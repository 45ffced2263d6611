"""Regular expressions that clients send: RE2's, which take no longer than their input is long, whatever the expression.

Rules of this file: RE2 is imported when a client first sends one.

Source: com.google.re2j.Pattern, by which Apache Kafka evaluates them; KIP-848, KIP-1152.
"""

from __future__ import annotations

from typing import Protocol


class Pattern(Protocol):
    """A compiled regular expression."""

    def fullmatch(self, text: str) -> object:
        """Something if it matches the whole text, else None."""


def compile_pattern(regex: str) -> Pattern:
    """The regular expression, compiled.

    Raises:
        ValueError: it is none, in RE2's own words.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        pattern: Pattern = re2.compile(regex, options=options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else reason) from error
    return pattern
