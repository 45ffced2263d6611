"""The encoding and decoding of bytes. This room does no I/O, reads no clock, and does not use trio."""
