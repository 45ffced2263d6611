"""`pytest wirekafka/tests/coordinator --rewrite-transcripts` writes into the transcripts what the coordinators do now."""

import pytest

from wirekafka.faults import forget_logged


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write the coordinators' transcripts anew instead of comparing them"
    )


@pytest.fixture(autouse=True)
def _forget_logged_faults() -> None:
    """Each test is told of a failure in full, whatever failed in the tests before it."""
    forget_logged()
