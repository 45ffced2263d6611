"""What real clients do under faults: the tables of docs/testing.md.

    python -m tools.client_outcomes

Rules of this package: a cell says what the program sees and what is in the log, never how long it took. So the cells are the same
in each run, and compat_tests/test_client_outcomes.py compares them with the page.
"""
