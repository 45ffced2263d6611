"""One module for each Kafka API: its messages, its handler, and what differs from Apache Kafka.

A module is imported when a client first asks for its API; which one that is says `index`, until then.
"""
