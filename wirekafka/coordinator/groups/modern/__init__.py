"""The part that consumer groups and share groups share: the broker assigns partitions to the members (KIP-848, KIP-932)."""
