"""What consumer groups and share groups have in common: the broker assigns partitions to the members (KIP-848, KIP-932)."""
