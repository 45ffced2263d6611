"""Share sessions: which partitions a member of a share group fetches, remembered from one request to the next.

A session belongs to a member, and to the connection on which it was opened: when that ends, so does the session, and what the
member has goes back. One that is opened in the place of another leaves the member what it has. Its epoch grows with each
request, so that one which comes twice, or from a member that is not in step, is refused.

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
    """Whose session it is."""

    group_id: str
    member_id: str


PartitionKey = tuple[bytes, int]
"""A topic's id and the index of a partition."""

OnClose = dict[object, Callable[[], object]]
"""What is to be done when a connection ends, by what it is for."""


class ShareSession:
    """What one member fetches.

    Attributes:
        epoch: the epoch that the next request must have.
        partitions: all of them, in the order in which they came; True for one of which the member is to be told even if there
            are no records: it is new, or the last answer was an error.
    """

    __slots__ = ("_on_close", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, partitions: Iterable[PartitionKey], on_close: OnClose) -> None:
        self.key = key
        self._on_close = on_close
        self.epoch = INITIAL_EPOCH + 1
        self.partitions: dict[PartitionKey, bool] = dict.fromkeys(partitions, False)

    def end_with_connection(self, end: Callable[[], object]) -> None:
        """Has `end` called when its connection ends, unless it has ended before."""
        self._on_close[self] = end

    def detach(self) -> None:
        """It has ended: its connection forgets it."""
        self._on_close.pop(self, None)

    def update(self, added: Iterable[PartitionKey], forgotten: Iterable[PartitionKey]) -> None:
        """Takes over what a request says of its partitions."""
        for partition in added:
            self.partitions.setdefault(partition, True)
        for partition in forgotten:
            self.partitions.pop(partition, None)

    def advance_epoch(self) -> None:
        """The next request has the next epoch; after the largest comes 1."""
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1

    def rotated(self, epoch: int) -> list[PartitionKey]:
        """Its partitions, begun with another each time, so that a limit starves none.

        Source: PartitionRotateStrategy.
        """
        partitions = list(self.partitions)
        start = epoch % len(partitions) if partitions and epoch >= 1 else 0
        return partitions[start:] + partitions[:start]

    def must_tell(self, partition: PartitionKey, *, has_records: bool, is_error: bool) -> bool:
        """Whether an answer must speak of a partition."""
        requires_update = self.partitions.get(partition)
        if requires_update is None:
            return True
        if is_error or requires_update:
            self.partitions[partition] = is_error
        return has_records or is_error or requires_update


class ShareSessions:
    """The sessions of one broker.

    Args:
        most: how many there may be (group.share.max.share.sessions).
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_key: dict[SessionKey, ShareSession] = {}
        self._member_counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: SessionKey) -> ShareSession:
        """The session of a member.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND.
        """
        session = self._by_key.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def find(self, key: SessionKey) -> ShareSession | None:
        """The session of a member, if it has one."""
        return self._by_key.get(key)

    def open(self, key: SessionKey, partitions: Iterable[PartitionKey], on_close: OnClose) -> ShareSession:
        """A new session, in the place of the member's former one.

        Args:
            on_close: that of its connection.

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
        """The session of a member whose request has this epoch.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self.get(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.advance_epoch()
        return session

    def remove(self, key: SessionKey) -> ShareSession | None:
        """Ends a session; returns it, None if there was none."""
        session = self._by_key.pop(key, None)
        if session is not None:
            session.detach()
            self._member_counts[key.group_id] -= 1
            if not self._member_counts[key.group_id]:
                del self._member_counts[key.group_id]
        return session

    def clear(self) -> list[ShareSession]:
        """Ends all sessions; returns them."""
        return [session for session in map(self.remove, tuple(self._by_key)) if session is not None]

    def has_members(self, group_id: str) -> bool:
        """Whether anybody of the group has a session."""
        return group_id in self._member_counts
