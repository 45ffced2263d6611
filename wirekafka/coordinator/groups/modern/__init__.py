"""What groups have in common whose assignments the broker makes: topics as they see them, assignors (KIP-848, KIP-932)."""
