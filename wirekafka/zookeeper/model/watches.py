"""The watches of the model's server.

Rules: a watch ends with its first event. A watcher has at most one watch of each kind on a path, and receives one event for one
change, even if watches of both kinds fire.

Source: org.apache.zookeeper.server.watch.WatchManager and DataTree of ZooKeeper 3.8.
"""

from __future__ import annotations

from typing import Protocol

from wirekafka.zookeeper.session import WatchEvent, WatchEventType


class Watcher(Protocol):
    """A connection that leaves watches."""

    def on_watch_event(self, event: WatchEvent) -> None:
        """Receives the event that ended a watch."""


class Watches:
    """The watches that have not fired yet: on data (and on existence), and on children."""

    def __init__(self) -> None:
        # Dicts, not sets, so that events go out in the order in which the watches were left.
        self._data: dict[str, dict[Watcher, None]] = {}
        self._children: dict[str, dict[Watcher, None]] = {}
        self._paths: dict[Watcher, set[str]] = {}

    def __len__(self) -> int:
        return sum(len(watchers) for kind in (self._data, self._children) for watchers in kind.values())

    def watch_data(self, path: str, watcher: Watcher) -> None:
        """Leaves a watch that fires when the znode is created or deleted, and when its data change."""
        self._data.setdefault(path, {})[watcher] = None
        self._paths.setdefault(watcher, set()).add(path)

    def watch_children(self, path: str, watcher: Watcher) -> None:
        """Leaves a watch that fires when the znode is deleted, and when a child is created or deleted."""
        self._children.setdefault(path, {})[watcher] = None
        self._paths.setdefault(watcher, set()).add(path)

    def fire(self, event: WatchEvent) -> None:
        """Ends the watches that the event concerns, and tells their watchers."""
        match event.type:
            case WatchEventType.NODE_DELETED:
                watchers = self._data.pop(event.path, {}) | self._children.pop(event.path, {})
            case WatchEventType.NODE_CHILDREN_CHANGED:
                watchers = self._children.pop(event.path, {})
            case WatchEventType.NODE_CREATED | WatchEventType.NODE_DATA_CHANGED:
                watchers = self._data.pop(event.path, {})
        for watcher in watchers:
            self._forget(event.path, watcher)
            watcher.on_watch_event(event)

    def _forget(self, path: str, watcher: Watcher) -> None:
        if any(watcher in kind.get(path, ()) for kind in (self._data, self._children)):
            return
        paths = self._paths[watcher]
        paths.discard(path)
        if not paths:
            del self._paths[watcher]

    def remove(self, watcher: Watcher) -> None:
        """Ends all watches of a watcher, without an event."""
        for path in self._paths.pop(watcher, ()):
            for kind in (self._data, self._children):
                watchers = kind.get(path, {})
                watchers.pop(watcher, None)
                if not watchers:
                    kind.pop(path, None)
