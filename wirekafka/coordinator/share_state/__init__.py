"""The persisted state of share partitions, and its log."""
