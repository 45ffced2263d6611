"""The znodes of a model as bytes, so that another process can go on with them.

How it works: a snapshot has the persistent znodes; all sessions end with the process, and so do their ephemeral znodes. The model
that goes on begins another epoch, as a ZooKeeper does with each leader: its transactions and sessions have greater numbers than
those of the former process, also than those that came after the snapshot. So a broker epoch is never used again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from wirekafka.zookeeper.model.server import FIRST_SESSION_ID, ModelServer
from wirekafka.zookeeper.model.tree import Znode

FORMAT_VERSION = 1
_EPOCH_BITS = 32
"""The lower half of a zxid counts the transactions of an epoch."""


class MalformedSnapshotError(Exception):
    """Bytes are not a snapshot that this version can read."""


def write_snapshot(server: ModelServer) -> bytes:
    """Returns the snapshot of a model."""
    znodes = [_write(path, znode) for path, znode in server.tree.persistent()]
    return json.dumps({"format": FORMAT_VERSION, "zxid": server.last_zxid, "znodes": znodes}, separators=(",", ":")).encode()


def read_snapshot(data: bytes, now_ms: Callable[[], int]) -> ModelServer:
    """Returns a model with the znodes of a snapshot.

    Args:
        now_ms: as of `ModelServer`.

    Raises:
        MalformedSnapshotError: the bytes are not a snapshot that this version can read.
    """
    try:
        content = json.loads(data)
        if content["format"] != FORMAT_VERSION:
            raise MalformedSnapshotError(f"it has format {content['format']}, and this version reads format {FORMAT_VERSION}")
        epoch = (int(content["zxid"]) >> _EPOCH_BITS) + 1
        znodes = [_read(fields) for fields in content["znodes"]]
        server = ModelServer(now_ms, last_zxid=epoch << _EPOCH_BITS, first_session_id=FIRST_SESSION_ID + (epoch << _EPOCH_BITS))
        for path, znode in sorted(znodes, key=lambda each: each[0].count("/")):
            server.tree.restore(path, znode)
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedSnapshotError(f"it cannot be read: {error!r}") from error
    return server


def _write(path: str, znode: Znode) -> list[Any]:
    data = None if znode.data is None else base64.b64encode(znode.data).decode("ascii")
    times = (znode.czxid, znode.mzxid, znode.pzxid, znode.ctime_ms, znode.mtime_ms)
    return [path, data, *times, znode.version, znode.created_children]


def _read(fields: list[Any]) -> tuple[str, Znode]:
    path, data, *numbers = fields
    czxid, mzxid, pzxid, ctime_ms, mtime_ms, version, created_children = map(int, numbers)
    content = None if data is None else base64.b64decode(data, validate=True)
    znode = Znode(content, czxid, mzxid, pzxid, ctime_ms, mtime_ms, version=version, created_children=created_children)
    return str(path), znode
