"""Which errors of Kafka end a sink for good, and what the user can do about them."""

from __future__ import annotations

from typing import Any

from wirekafka.pipelines.errors import PipelineError, UnreachableError

REMEDIES = {
    "MSG_SIZE_TOO_LARGE": "raise the topic's max.message.bytes",
    "INVALID_TIMESTAMP": "raise the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    "INVALID_RECORD": "a compacted topic takes no record without a key; see the broker's log",
    "INVALID_TRANSACTION_TIMEOUT": "lower the client's transaction.timeout.ms to the broker's transaction.max.timeout.ms",
    "TOPIC_AUTHORIZATION_FAILED": "allow the user to write and describe the topic",
    "GROUP_AUTHORIZATION_FAILED": "allow the user to read the groups that begin with wirekafka.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow the user to write the transactional ids that begin with wirekafka.",
    "CLUSTER_AUTHORIZATION_FAILED": "allow the user to write idempotently",
    "_AUTHENTICATION": "check the user and the password in the options of the client",
    "_UNKNOWN_PARTITION": "the target topic needs at least as many partitions as the records name",
    "UNKNOWN_TOPIC_OR_PART": "the target topic was deleted; create it again",
    "_INVALID_ARG": "check the options of the client",
}
"""What to do about an error that a second attempt meets again."""


class SinkInterrupted(UnreachableError):
    """A transaction did not commit because of an outage, or because another process took the source partition over.

    The transaction has no effect. The same frame can be written again.
    """


def is_final(error: Any) -> bool:
    """Whether a second attempt meets the same KafkaError."""
    return error.name() in REMEDIES


def failure(error: Any, doing: str) -> Exception:
    """Returns what to raise for a KafkaError: PipelineError if a second attempt fails too, SinkInterrupted otherwise."""
    remedy = REMEDIES.get(error.name())
    if remedy is None:
        return SinkInterrupted(f"{doing}: {error.name()}: {error.str()}")
    return PipelineError(f"{doing}: {error.str()}: {remedy}")
