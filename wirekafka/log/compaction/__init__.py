"""Log compaction: the cleaner and its two passes."""
