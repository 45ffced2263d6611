"""Reads data directories offline: shows and checks every file that Apache Kafka and wirekafka keep there."""
