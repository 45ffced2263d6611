"""Bytes <-> objects. No I/O, no clock, no trio."""
