"""The cases: a job, and the fault that hits its first request of an API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.client_outcomes.jobs import TOPIC


@dataclass(frozen=True)
class Case:
    """A row of a table.

    Attributes:
        job: the name of a method of `Client`.
        fault: the fields of the fault, but for `times`.
        times: how many requests are hit; None for all.
        has_second_part: the topic gets more records after the fault has hit a request and a later request has passed.
    """

    job: str
    fault: Mapping[str, Any]
    times: int | None = 1
    has_second_part: bool = False

    @property
    def label(self) -> str:
        """The arguments of `broker.fault`."""
        fields = {**self.fault, **({} if self.times == 1 else {"times": self.times})}
        return ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in fields.items())


def _cases(job: str, api: str | None, faults: list[dict[str, Any]], **more: Any) -> list[Case]:
    which = {} if api is None else {"api": api}
    return [Case(job, which | fault, **more) for fault in faults]


def _errors(*names: str) -> list[dict[str, Any]]:
    return [{"error": name} for name in names]


LOST: list[dict[str, Any]] = [{"lose": "request"}, {"lose": "reply"}]
CUT: list[dict[str, Any]] = [{"disconnect": "request"}, {"disconnect": "reply"}, {"disconnect": "mid_reply"}]
SLOW: list[dict[str, Any]] = [{"throttle_ms": 500}, {"delay_s": 1}, {"reply_delay_s": 1}]

WRITING = [
    *_cases(
        "write",
        "Produce",
        [
            *_errors("NOT_ENOUGH_REPLICAS", "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "KAFKA_STORAGE_ERROR"),
            *_errors("REQUEST_TIMED_OUT", "CORRUPT_MESSAGE", "MESSAGE_TOO_LARGE", "INVALID_RECORD"),
            *_errors("TOPIC_AUTHORIZATION_FAILED", "OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"),
            {"full_disk": True},
            *LOST,
            *CUT,
            {"trickle_bytes_per_s": 100},
            *SLOW,
        ],
    ),
    Case("write", {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS"}, times=None),
    Case("write", {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "probability": 0.5, "seed": 3}, times=None),
    *_cases("write", "Metadata", [*_errors("LEADER_NOT_AVAILABLE"), {"stale_metadata": True}, {"disconnect": "request"}]),
    *_cases("write", "ApiVersions", [{"disconnect": "request"}, {"delay_s": 1}]),
]

READING = [
    *_cases(
        "read",
        "Fetch",
        [
            {"topic": TOPIC, **fault}
            for fault in (
                *_errors("OFFSET_OUT_OF_RANGE", "NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"),
                *_errors("UNKNOWN_TOPIC_OR_PARTITION", "KAFKA_STORAGE_ERROR", "CORRUPT_MESSAGE", "TOPIC_AUTHORIZATION_FAILED"),
            )
        ],
    ),
    *_cases(
        "read",
        "Fetch",
        [
            *LOST,
            *CUT,
            {"trickle_bytes_per_s": 200},
            *SLOW,
        ],
    ),
    *_cases("read", "ListOffsets", [*_errors("NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH"), {"lose": "reply"}]),
]

JOINING = [
    *_cases("join", None, [{"coordinator": "moving"}, {"coordinator": "loading"}], times=3),
    *_cases("join", "FindCoordinator", [*_errors("COORDINATOR_NOT_AVAILABLE", "GROUP_AUTHORIZATION_FAILED")]),
    *_cases(
        "join",
        "JoinGroup",
        [
            *_errors("UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"),
            *_errors("INCONSISTENT_GROUP_PROTOCOL", "GROUP_MAX_SIZE_REACHED", "GROUP_AUTHORIZATION_FAILED"),
            {"disconnect": "reply"},
        ],
    ),
    *_cases(
        "join",
        "SyncGroup",
        [
            *_errors("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"),
            {"disconnect": "reply"},
        ],
    ),
    *_cases(
        "join",
        "Heartbeat",
        _errors("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"),
        has_second_part=True,
    ),
    *_cases("join", "OffsetFetch", _errors("COORDINATOR_LOAD_IN_PROGRESS", "UNSTABLE_OFFSET_COMMIT")),
    *_cases(
        "join",
        "OffsetCommit",
        [
            *_errors("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "NOT_COORDINATOR"),
            *_errors("COORDINATOR_LOAD_IN_PROGRESS", "OFFSET_METADATA_TOO_LARGE", "GROUP_AUTHORIZATION_FAILED"),
            {"lose": "reply"},
            {"disconnect": "reply"},
        ],
    ),
]

TRANSACTING = [
    *_cases("transact", None, [{"coordinator": "moving"}, {"coordinator": "loading"}], times=3),
    *_cases(
        "transact",
        "InitProducerId",
        [
            *_errors("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"),
            *_errors("INVALID_TRANSACTION_TIMEOUT", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
            {"lose": "reply"},
            {"disconnect": "reply"},
        ],
    ),
    *_cases(
        "transact",
        "AddPartitionsToTxn",
        [
            *_errors("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"),
            *_errors("TOPIC_AUTHORIZATION_FAILED"),
            {"lose": "reply"},
        ],
    ),
    *_cases(
        "transact",
        "Produce",
        [
            *_errors("NOT_LEADER_OR_FOLLOWER", "INVALID_PRODUCER_EPOCH", "OUT_OF_ORDER_SEQUENCE_NUMBER", "MESSAGE_TOO_LARGE"),
            {"lose": "reply"},
            {"disconnect": "reply"},
        ],
    ),
    *_cases(
        "transact",
        "EndTxn",
        [
            *_errors("CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"),
            *_errors("INVALID_TXN_STATE", "COORDINATOR_NOT_AVAILABLE"),
            *LOST,
            {"disconnect": "reply"},
        ],
    ),
]

SECTIONS = {"A producer": WRITING, "A consumer": READING, "A member of a group": JOINING, "A transaction": TRANSACTING}
"""The tables of the page."""
