"""The error of the commands of `wirekafka cluster`."""

from __future__ import annotations


class ClusterCommandError(Exception):
    """A command has failed. The text is one sentence for the user: what failed, and what the user can do."""
