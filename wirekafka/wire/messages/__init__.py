"""The messages that brokers send to each other: one module for each API, with the versions of Kafka 2.8 to 3.9 and newer ones."""
