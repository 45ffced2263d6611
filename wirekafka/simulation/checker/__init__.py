"""Checks a run of a cluster, from the history of its clients and from the files of the brokers.

`checking.check` returns the violations of six properties. The rooms of the checker are one module for each property, the facts of
a history (`facts`), and a reader of Apache Kafka's files (`files`).

Rules of this room: it imports nothing of the broker but the events of histories, and has a reader of its own for the files. Code
that both sides share would hide its own errors. All checks take time in proportion to the entries and records, but for sorting.
"""
