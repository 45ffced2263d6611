"""Fetch: reads record batches from partitions."""
