"""Benchmarks of wirekafka and Apache Kafka in one run, under the same load: each figure, the ratio, and the facts of the machine.

The benchmarks assert nothing: a figure depends on the machine, and only the ratio of two figures of one run is meaningful.
"""
