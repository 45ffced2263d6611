"""Finds the group of a request among the consumer groups or the share groups.

Rule of this file: a group is in the coordinator's table of groups once the log has a record of it, and only then.

Source: GroupMetadataManager (consumerGroup, shareGroup, getOrMaybeCreatePersistedConsumerGroup and its like) of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from wirekafka.coordinator.groups.modern.group import ModernGroup
from wirekafka.coordinator.groups.modern.topics import MetadataHashes, TopicImage
from wirekafka.coordinator.groups.types import Group
from wirekafka.errors import ErrorCode, KafkaError

G = TypeVar("G", bound=ModernGroup[Any])


class ModernGroups(Generic[G]):
    """The groups of one type.

    Args:
        group_class: the class of the groups.
        groups: all groups of all types, by id.
        image: the current topics.
        max_size: the largest number of members of a group.
        partition_of: returns the partition of __consumer_offsets that holds a group.
        forget: removes a group whose last tombstone is in the log from `groups`.
    """

    def __init__(
        self,
        group_class: type[G],
        groups: dict[str, Group],
        image: TopicImage,
        hashes: MetadataHashes,
        max_size: int,
        partition_of: Callable[[str], int],
        forget: Callable[[str], None],
    ) -> None:
        self.image = image
        self._group_class = group_class
        self._groups = groups
        self._hashes = hashes
        self._max_size = max_size
        self._partition_of = partition_of
        self._forget = forget

    @property
    def group_type(self) -> str:
        """The type, in lower case as in listings: `consumer` or `share`."""
        return self._group_class.type_name

    def find(self, group_id: str) -> G | None:
        """Returns the group with this id; None if it does not exist or has another type."""
        group = self._groups.get(group_id)
        return group if isinstance(group, self._group_class) else None

    def group(self, group_id: str) -> G:
        """Returns the group with this id.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND, also if the group has another type.
        """
        group = self.find(group_id)
        if group is None:
            is_other = group_id in self._groups
            message = f"Group {group_id} is not a {self.group_type} group." if is_other else f"Group {group_id} not found."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        return group

    def new_group(self, group_id: str) -> G:
        """Creates a group that is neither in the log nor in the table yet."""
        return self._group_class(group_id, self._partition_of(group_id), self.image)

    def check_room(self, group: G, member_id: str) -> None:
        """Raises unless the group has room for this member.

        Raises:
            KafkaError: GROUP_MAX_SIZE_REACHED.
        """
        if len(group.members) >= self._max_size and member_id not in group.members:
            message = f"The {self.group_type} group has reached its maximum capacity of {self._max_size} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
