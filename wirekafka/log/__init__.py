"""Logs on disk. Only this room writes data files."""
