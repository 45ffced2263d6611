"""The health of a broker: whether clients can use it.

Rules of this file: a broker that starts or stops is alive and not ready, so that it gets no clients and is not restarted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Health:
    """Whether clients can use a broker.

    Attributes:
        reason: why they cannot; None if they can.
    """

    reason: str | None = "the broker starts"

    @property
    def is_ready(self) -> bool:
        """Whether clients can use the broker."""
        return self.reason is None
