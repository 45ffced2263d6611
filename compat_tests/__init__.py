"""Real clients, tools and Spark against a running broker."""
