"""The settings of the transaction coordinator, read once from the broker configuration.

Source: TransactionStateManagerConfig.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The settings of all transactions. Names and defaults are those of Kafka's documentation."""

    max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    is_two_phase_commit_enabled: bool = False

    @classmethod
    def of(cls, config: BrokerConfig) -> TransactionSettings:
        """Returns the settings of a broker."""
        return cls(
            max_timeout_ms=config.integer("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=config.integer("transactional.id.expiration.ms"),
            is_two_phase_commit_enabled=config.boolean("transaction.two.phase.commit.enable"),
        )
