"""Checks all properties of one run."""

from __future__ import annotations

from collections.abc import Sequence

from wirekafka.simulation.checker.acknowledged import check_acknowledged
from wirekafka.simulation.checker.contents import check_contents
from wirekafka.simulation.checker.end_offsets import check_end_offsets
from wirekafka.simulation.checker.facts import Facts
from wirekafka.simulation.checker.files import Replica
from wirekafka.simulation.checker.group_offsets import check_group_offsets
from wirekafka.simulation.checker.occurrences import find_occurrences
from wirekafka.simulation.checker.replicas import check_replicas
from wirekafka.simulation.checker.sequences import check_sequences
from wirekafka.simulation.checker.transactions import check_transactions
from wirekafka.simulation.checker.violations import Violation
from wirekafka.simulation.history import History


def check(history: History, replicas: Sequence[Replica] = (), *, is_settled: bool = False) -> list[Violation]:
    """Returns the violations of a run, by property.

    Args:
        history: the requests and responses of all clients that have written to the topics.
        replicas: the logs, while the cluster runs or at its end. Without logs only the history is judged.
        is_settled: whether all brokers were online and in sync after the last request, and were stopped cleanly. Then the logs
            must be equal to their ends, and their checkpoints must be true.
    """
    facts = Facts(history)
    occurrences = list(find_occurrences(facts, replicas, is_settled=is_settled))
    return [
        *check_acknowledged(facts, replicas, is_settled=is_settled),
        *check_contents(facts, occurrences),
        *check_end_offsets(facts),
        *check_replicas(facts, replicas, is_settled=is_settled),
        *check_sequences(facts, replicas, occurrences),
        *check_transactions(facts, replicas, is_settled=is_settled),
        *check_group_offsets(facts),
    ]
