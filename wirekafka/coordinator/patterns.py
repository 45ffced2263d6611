"""The regular expressions that clients send. RE2 evaluates them, in time linear in the text.

How it works: the expressions are matched by `re2.Set` only, which is one automaton for all of them. A single RE2 object
falls back to a slower algorithm that takes 1 ms for a long name and an expression of 200 characters (2026-11). Compiling takes
longer than matching: 0.1 to 0.3 ms for each Unicode class and 0.1 ms for 1,000 repetitions, and it holds CPython's interpreter.
So the numbers of both and the size of the program are bounded, and an expression is compiled or refused in about 20 ms.

Rules of this file: RE2 is imported when a client first sends an expression.

Differs from Apache Kafka:
    A regular expression is invalid if it has more than 50 Unicode classes, if the numbers of its repetitions are more than 5,000
    together, or if its program exceeds 1 MiB. In Apache Kafka its size is not limited.

Source: com.google.re2j.Pattern, by which Apache Kafka evaluates them; KIP-848, KIP-1152.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

MAX_PROGRAM_BYTES = 1 << 20
"""The largest program of a compiled expression; an alternative of 3,000 topic names is smaller."""

MAX_UNICODE_CLASSES = 50

_SET_BYTES = 8 << 20
"""The most memory for the automaton of a set, including its states; RE2's default."""

MAX_REPETITIONS = 5000

_UNICODE_CLASS = re.compile(r"\\[pP]")
_REPETITION = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")


def check_pattern(regex: str) -> None:
    """Raises unless the text is a regular expression within the limits.

    Raises:
        ValueError: the reason, in RE2's words if RE2 refuses the expression.
    """
    import re2

    if _takes_long(regex):
        raise ValueError("pattern too large - too many Unicode classes or repetitions")
    try:
        re2.compile(regex, options=_options(MAX_PROGRAM_BYTES))
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else reason) from error


def work_of(regex: str) -> int:
    """Returns the work of compiling an expression, measured in characters of an ordinary expression."""
    return len(regex) + 500 * len(_UNICODE_CLASS.findall(regex))


def matches_of(regexes: Sequence[str], texts: Sequence[str]) -> dict[str, list[str]]:
    """Returns the texts that each of the expressions matches as a whole; none for an invalid expression.

    One automaton matches all expressions at once: 100 expressions with 10,000 names take 20 ms; one by one they take 1.6 s
    (2026-11). If the expressions are too large together, they are divided in halves.
    """
    import re2

    found: dict[str, list[str]] = {regex: [] for regex in regexes}
    automaton = re2.Set.FullMatchSet(_options(_SET_BYTES))
    known = []
    for regex in found:
        if _takes_long(regex):
            continue
        try:
            automaton.Add(regex)
        except re2.error:
            continue
        known.append(regex)
    try:
        automaton.Compile()
    except re2.error:
        if len(known) <= 1:
            return found
        middle = len(known) // 2
        return found | matches_of(known[:middle], texts) | matches_of(known[middle:], texts)
    for text in texts:
        for index in automaton.Match(text) or ():
            found[known[index]].append(text)
    return found


def matcher(regex: str) -> Callable[[str], bool]:
    """Returns a function that tells whether an expression matches a whole text; it matches none if it is invalid."""
    import re2

    automaton = re2.Set.FullMatchSet(_options(_SET_BYTES))
    if _takes_long(regex):
        return lambda text: False
    try:
        automaton.Add(regex)
        automaton.Compile()
    except re2.error:
        return lambda text: False
    return lambda text: bool(automaton.Match(text))


def _takes_long(regex: str) -> bool:
    """Whether RE2 would need long to refuse the expression for its size, or longer than the size of its program suggests."""
    if len(_UNICODE_CLASS.findall(regex)) > MAX_UNICODE_CLASSES:
        return True
    counts = (int(most or least) for least, most in _REPETITION.findall(regex))
    return sum(counts) > MAX_REPETITIONS


def _options(max_bytes: int) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = max_bytes
    return options
