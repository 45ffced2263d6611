"""Produce: appends record batches to partitions."""
