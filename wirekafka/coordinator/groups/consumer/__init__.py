"""Groups of the consumer protocol (KIP-848): the broker assigns partitions, members learn of it in their heartbeats."""
