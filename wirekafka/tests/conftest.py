"""`pytest wirekafka/tests/coordinator --rewrite-transcripts` writes into the transcripts what the coordinators do now."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the coordinators' transcripts anew instead of comparing them"
    )
