"""Times on the command line: `2026-05-01T12:00:00`, `1777636800000`, `-2h`."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_time_ms(text: str, now_ms: int) -> int:
    """Returns milliseconds since 1970.

    Args:
        text: ISO 8601, in UTC if it names no time zone; milliseconds since 1970; or how long ago, such as -90m.
        now_ms: the present.

    Raises:
        click.UsageError: the text is none of these.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return now_ms - round(float(ago[1]) * MILLISECONDS[ago[2]])
    if text.isdecimal() and len(text) >= 10:  # a shorter number is none in milliseconds since 2001; ISO 8601 has 20260501
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{text} is no time: accepted is 2026-05-01T12:00:00 (UTC), milliseconds since 1970, or -90m for 90 minutes ago."
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
