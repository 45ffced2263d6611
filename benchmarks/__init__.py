"""wirekafka beside Apache Kafka in one run: the same load on both, each figure, their ratio, and the machine it was measured on.

Nothing here is asserted: a figure depends on the machine, and only the ratio of two figures of one run says something.
"""
