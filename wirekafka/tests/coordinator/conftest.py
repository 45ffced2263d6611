"""`pytest wirekafka/tests/coordinator --rewrite` writes into the transcripts what the coordinator does now."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the coordinator's transcripts anew instead of comparing them")
