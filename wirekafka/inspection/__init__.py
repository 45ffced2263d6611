"""Looking into data directories from outside: every file that Apache Kafka and wirekafka keep, shown and checked."""
