"""Bytes in, bytes out: listeners, connections and the way of a request to its handler."""
