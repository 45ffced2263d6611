"""The states of records as __share_group_state keeps them: batches of offsets in one state.

Rule of this file: data only. The rules for the states are in `share_delivery`.

Source: RecordState, PersisterStateBatch of Apache Kafka 4.3; KIP-932.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """The state of a record in a share group, by Kafka's numbers.

    A record alternates between AVAILABLE and ACQUIRED. ACKNOWLEDGED (accepted) and ARCHIVED (rejected, delivered too often, or
    deleted from the log) are final.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


FINAL_STATES = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class StateBatch(NamedTuple):
    """Neighbouring records in one state."""

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int


class StateChange(NamedTuple):
    """A change of a share partition that is to be stored.

    Attributes:
        delivery_complete_count: how many of the records from `start_offset` on are in a final state.
        batches: the records whose state has changed, in order.
    """

    start_offset: int
    delivery_complete_count: int
    batches: list[StateBatch]


def add_state(states: list[StateBatch], state: StateBatch) -> None:
    """Appends a batch, or extends the last batch if the new one continues it in the same state."""
    if states and states[-1].last_offset + 1 == state.first_offset and states[-1][2:] == state[2:]:
        states[-1] = states[-1]._replace(last_offset=state.last_offset)
    else:
        states.append(state)
