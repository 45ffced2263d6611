"""Ingest: topics of a Kafka cluster into a lake, each record once.

Rules of this room: Spark's checkpoint holds the offsets. A batch is planned before anything is written, and a repeated batch
follows the stored plan (`batch_plans`), so it gives the same rows and the same dead letters. The lake takes a batch once, and so
does the dead-letter topic. Values are decoded by expressions of Spark's JVM; only records that do not fit pass through Python.
"""
