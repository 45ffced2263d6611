"""Share sessions: the partitions that a member of a share group fetches, kept from one request to the next.

A session belongs to a member and to the connection that opened it. When the connection closes, the session ends and the member's
acquired records are released. If the member opens a new session in place of an old one, it keeps its acquired records. The
session epoch grows with each request, so that a duplicate request or a request with an outdated epoch is refused.

Source: ShareSession, ShareSessionCache, SharePartitionManager.newContext and acknowledgeSessionUpdate; KIP-932.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from wirekafka.errors import ErrorCode, KafkaError

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF


class SessionKey(NamedTuple):
    """The group and the member that a session belongs to."""

    group_id: str
    member_id: str


PartitionKey = tuple[bytes, int]
"""A topic's id and the index of a partition."""

OnClose = dict[object, Callable[[], object]]
"""The callbacks that run when a connection closes, each by the object that it belongs to."""


class ShareSession:
    """The share session of one member.

    Attributes:
        epoch: The epoch that the next request must have.
        partitions: All partitions of the session, in the order of their addition. The value is True if the next response must
            include the partition even without records, because the partition is new or its last response was an error.
    """

    __slots__ = ("_on_close", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, partitions: Iterable[PartitionKey], on_close: OnClose) -> None:
        self.key = key
        self._on_close = on_close
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[PartitionKey, bool] = dict.fromkeys(partitions, False)

    def end_with_connection(self, end: Callable[[], object]) -> None:
        """Calls `end` when the connection closes, unless the session has ended before."""
        self._on_close[self] = end

    def detach(self) -> None:
        """Removes the callback of an ended session from its connection."""
        self._on_close.pop(self, None)

    def update(self, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        """Adds and removes the partitions that a request names."""
        for partition in added:
            self.partitions.setdefault(partition, True)
        for partition in forgotten:
            self.partitions.pop(partition, None)

    def advance_epoch(self) -> None:
        """Sets the epoch of the next request; `MAX_EPOCH` is followed by 1."""
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1

    def rotated(self, epoch: int) -> list[PartitionKey]:
        """Returns the partitions, rotated by the epoch, so that the limits of a fetch starve no partition.

        Source: PartitionRotateStrategy.
        """
        partitions = list(self.partitions)
        start = epoch % len(partitions) if partitions and epoch >= 1 else 0
        return partitions[start:] + partitions[:start]

    def must_tell(self, partition: PartitionKey, *, has_records: bool, is_error: bool) -> bool:
        """Returns whether a response must include a partition, and notes what the next response must include."""
        requires_update = self.partitions.get(partition)
        if requires_update is None:
            return True
        if is_error or requires_update:
            self.partitions[partition] = is_error
        return has_records or is_error or requires_update


class ShareSessions:
    """The sessions of one broker.

    Args:
        most: The largest number of sessions (group.share.max.share.sessions).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_key: dict[SessionKey, ShareSession] = {}
        self._member_counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: SessionKey) -> ShareSession:
        """Returns the session of a member.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND.
        """
        session = self._by_key.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def find(self, key: SessionKey) -> ShareSession | None:
        """Returns the session of a member; None if the member has no session."""
        return self._by_key.get(key)

    def open(self, key: SessionKey, partitions: Iterable[PartitionKey], on_close: OnClose) -> ShareSession:
        """Opens a session, which replaces the member's former session.

        Args:
            on_close: The callbacks of the session's connection.

        Raises:
            KafkaError: SHARE_SESSION_LIMIT_REACHED.
        """
        self.remove(key)
        if len(self._by_key) >= self._most:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._by_key[key] = ShareSession(key, partitions, on_close)
        self._member_counts[key.group_id] += 1
        return session

    def proceed(self, key: SessionKey, epoch: int) -> ShareSession:
        """Returns the session of a member for a request with this epoch, and advances the epoch of the session.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self.get(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.advance_epoch()
        return session

    def remove(self, key: SessionKey) -> ShareSession | None:
        """Ends a session and returns it; None if the member has no session."""
        session = self._by_key.pop(key, None)
        if session is not None:
            session.detach()
            self._member_counts[key.group_id] -= 1
            if not self._member_counts[key.group_id]:
                del self._member_counts[key.group_id]
        return session

    def clear(self) -> list[ShareSession]:
        """Ends all sessions and returns them."""
        return [session for session in map(self.remove, tuple(self._by_key)) if session is not None]

    def has_members(self, group_id: str) -> bool:
        """Whether a member of the group has a session."""
        return group_id in self._member_counts
