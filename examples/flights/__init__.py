"""The flights that left New York in 2013 as events: a replay, analytics in Spark, and a dashboard. README.md has the commands."""
