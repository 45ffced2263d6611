"""Check: proves that a lake has each record once, or names the records that are lost or doubled.

Rules of this room: the offsets of the lake, of the broker and of the segment files are compared in Spark; only counts and a few
offsets to name come to the driver. An offset without a row is accounted for by a dead letter, a control record, an aborted
record, compaction or retention; a committed record without any of these is lost.
"""
