"""One module for each Kafka API: its messages, its handler, and what differs from Apache Kafka.

The messages that brokers send too are in `wire.messages`.

A module is imported when a client first uses its API. Until then `index` has the name of the module.
"""
