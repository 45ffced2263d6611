from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.pipelines.audit.claims import MINUTE_MS, Claim, ClaimCounter

NOON_MS = 1_700_000_040_000
"""A whole minute."""


def totals(claims: list[Claim]) -> dict[tuple[str, int | None, int], tuple[int, int]]:
    """Returns count and bytes by topic, partition and minute, as an audit adds them up."""
    last: dict[str, Claim] = {}
    for claim in claims:
        if claim.id not in last or claim.sequence > last[claim.id].sequence:
            last[claim.id] = claim
    sums: dict[tuple[str, int | None, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for claim in last.values():
        count, size = sums[claim.topic, claim.partition, claim.minute_ms]
        sums[claim.topic, claim.partition, claim.minute_ms] = (count + claim.count, size + claim.size_bytes)
    return dict(sums)


def test_value_of_a_claim_is_json_with_the_documented_fields() -> None:
    claim = Claim("r-1", 2, "shop", "orders", None, NOON_MS, 3, 40)
    assert claim.key() == b"r-1"
    assert json.loads(claim.value()) == {
        "id": "r-1",
        "sequence": 2,
        "producer": "shop",
        "topic": "orders",
        "partition": None,
        "minute_ms": NOON_MS,
        "count": 3,
        "size_bytes": 40,
    }


def test_minute_closes_when_a_record_comes_after_the_grace_period() -> None:
    counter = ClaimCounter("shop", run="r", grace_ms=10_000)
    assert counter.count("orders", 0, NOON_MS, 5) == []
    assert counter.count("orders", 0, NOON_MS + 59_999, 7) == []
    assert counter.count("orders", 0, NOON_MS + 69_999, 1) == []
    assert counter.count("orders", 1, NOON_MS + 70_000, 1) == [Claim("r-1", 1, "shop", "orders", 0, NOON_MS, 2, 12)]


def test_minutes_of_each_partition_are_claimed_apart() -> None:
    counter = ClaimCounter("shop")
    for partition in (0, 1, None):
        counter.count("orders", partition, NOON_MS, 1)
    assert totals(counter.close()) == {("orders", partition, NOON_MS): (1, 1) for partition in (0, 1, None)}


def test_late_record_of_a_closed_minute_gets_a_claim_of_its_own() -> None:
    counter = ClaimCounter("shop", grace_ms=0)
    counter.count("orders", 0, NOON_MS, 1)
    claims = counter.count("orders", 0, NOON_MS + MINUTE_MS, 1)
    assert counter.count("orders", 0, NOON_MS + 1, 1) == []
    claims += counter.close()
    assert len({claim.id for claim in claims}) == 3
    assert totals(claims)["orders", 0, NOON_MS] == (2, 2)


def test_snapshot_leaves_the_minute_open_and_the_next_claim_replaces_it() -> None:
    counter = ClaimCounter("shop", run="r")
    counter.count("orders", 0, NOON_MS, 1)
    first = counter.snapshot()
    assert counter.snapshot() == [], "nothing has changed"
    counter.count("orders", 0, NOON_MS, 1)
    second = counter.close()
    assert [(claim.id, claim.sequence, claim.count) for claim in first + second] == [("r-1", 1, 1), ("r-1", 2, 2)]
    assert counter.close() == []


def test_minute_that_was_claimed_by_a_snapshot_closes_without_a_claim() -> None:
    counter = ClaimCounter("shop", grace_ms=0)
    counter.count("orders", 0, NOON_MS, 1)
    assert len(counter.snapshot()) == 1
    assert counter.count("orders", 0, NOON_MS + MINUTE_MS, 1) == []


def test_runs_have_different_ids() -> None:
    ids = set()
    for _ in range(2):
        counter = ClaimCounter("shop")
        counter.count("orders", 0, NOON_MS, 1)
        ids |= {claim.id for claim in counter.close()}
    assert len(ids) == 2


def test_negative_grace_period_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        ClaimCounter("shop", grace_ms=-1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["orders", "refunds"]), st.sampled_from([None, 0, 1]), st.integers(0, 400_000), st.integers(0, 9)
        )
    ),
    st.integers(0, 120_000),
    st.integers(1, 10),
)
def test_claims_add_up_to_what_was_counted(
    records: list[tuple[str, int | None, int, int]], grace_ms: int, snapshot_every: int
) -> None:
    counter = ClaimCounter("shop", grace_ms=grace_ms)
    claims: list[Claim] = []
    counted: dict[tuple[str, int | None, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number, (topic, partition, timestamp_ms, size_bytes) in enumerate(records):
        claims += counter.count(topic, partition, timestamp_ms, size_bytes)
        if number % snapshot_every == 0:
            claims += counter.snapshot()
        place = (topic, partition, timestamp_ms // MINUTE_MS * MINUTE_MS)
        counted[place] = (counted[place][0] + 1, counted[place][1] + size_bytes)
    claims += counter.close()
    assert totals(claims) == counted
    assert totals(claims * 2) == counted, "claims that were sent twice change nothing"


def test_module_imports_only_the_standard_library() -> None:
    program = (
        "import sys; import wirekafka.pipelines.audit.claims;"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'numpy', 'confluent_kafka', 'plotly', 'trio', 'rich', 'click')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
