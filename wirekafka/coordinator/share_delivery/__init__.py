"""Delivery of records to share groups: share partitions, acquisition, sessions and fetching."""
