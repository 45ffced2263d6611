"""Logs on disk. Only this room writes the files of partitions."""
