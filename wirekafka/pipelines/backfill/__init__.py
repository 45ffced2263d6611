"""The backfill: records of a lake go into topics, with keys, headers, timestamps and order, each record once."""
