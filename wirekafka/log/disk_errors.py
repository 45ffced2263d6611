"""Explains file system errors to the operator.

Source: Linux, write(2), open(2).
"""

from __future__ import annotations

import errno

READ_ONLY_ERRORS = frozenset({errno.EBADF, errno.EACCES, errno.EPERM})
"""The file, its folder or the whole file system cannot be written."""

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk is full or a quota is reached; writes succeed again after space is freed."""


def explain_disk_error(error: OSError) -> tuple[str, str]:
    """Returns the meaning of a file system error, and what the operator can do.

    A file without write permission is opened only for reading, so a write to it fails with EBADF.
    """
    if error.errno in READ_ONLY_ERRORS:
        return "No permission to write", "Give the broker's user permission to write the folder and the files in it, and restart"
    if error.errno in FULL_ERRORS:
        return "The disk is full", "Free some space; appends succeed again once there is room"
    return "The disk failed", "Check the disk, then restart the broker"
