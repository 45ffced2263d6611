"""The errors that a user of a pipeline can meet."""

from __future__ import annotations


class PipelineError(Exception):
    """A pipeline cannot start or go on. The text says what is wrong and what the user can do."""


class UnreachableError(PipelineError):
    """The brokers do not answer. Another attempt may succeed, and a running pipeline makes one."""
