"""What groups whose assignments the broker makes have in common: what they see of topics, assignors, targets (KIP-848, KIP-932)."""
