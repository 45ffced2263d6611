"""Partitions, the requests that wait for them, and fetch sessions."""
