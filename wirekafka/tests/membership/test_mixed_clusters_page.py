"""The messages that docs/mixed-clusters.md explains are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wirekafka.api.index import INDEX

ROOT = Path(__file__).parents[3]
TABLES = (ROOT / "docs" / "mixed-clusters.md").read_text().partition("## Messages at the start")[2]
MESSAGES = [message for row in re.findall(r"^\| (`.*?`(?: or `.*?`)*) \|", TABLES, re.MULTILINE) for message in row.split(" or ")]
PLACEHOLDERS = re.compile(
    r"zk1:2181|\d+|\.\.\.|\bDIR\b|\b[AB]\b|PLAINTEXT|process\.roles|zookeeper\.connect\b|broker\.id\b|inter\.broker\S+"
)
MIN_LENGTH = 6


def source() -> str:
    """Returns the code of the product, with the parts of each text joined."""
    paths = [path for path in (ROOT / "wirekafka").rglob("*.py") if "tests" not in path.parts]
    text = "\n".join(path.read_text() for path in paths)
    return PLACEHOLDERS.sub("", re.sub(r'"\s*\n\s*f?"', "", text))


@pytest.fixture(scope="module")
def code() -> str:
    return source()


@pytest.mark.parametrize("message", MESSAGES)
def test_message_of_the_cluster_page_is_in_the_code(message: str, code: str) -> None:
    parts = [part.strip(" `():=") for part in PLACEHOLDERS.split(message)]
    wanted = [part for part in parts if len(part) >= MIN_LENGTH]
    assert wanted, message
    assert [part for part in wanted if part not in code] == []


@pytest.mark.parametrize(
    "name",
    [
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
        "DescribeClientQuotas",
        "AlterClientQuotas",
        "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
    ],
)
def test_api_of_apache_kafka_3_9_that_no_member_serves_is_named(name: str) -> None:
    served = {api.name for api in INDEX.values()}
    page = (ROOT / "docs" / "mixed-clusters.md").read_text().partition("## Add a broker")[0]
    assert (name in served) != bool(re.search(rf"\b{name}\b", page))


def test_cluster_page_explains_messages() -> None:
    assert len(MESSAGES) > 20
