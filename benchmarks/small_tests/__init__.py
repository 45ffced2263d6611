"""The suites of small tests that `benchmarks.testing_rows` runs with pytest."""
