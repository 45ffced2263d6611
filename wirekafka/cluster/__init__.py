"""The cluster as this broker sees it: topics, partitions, and what waits for them."""
