"""The pipelines, as users run them: against brokers, with kills, and on a cluster of Spark."""
