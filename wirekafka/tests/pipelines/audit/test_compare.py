from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.pipelines.audit.claims import MINUTE_MS
from wirekafka.pipelines.audit.compare import Counts, Finding, LakeCounts, Rules, compare
from wirekafka.pipelines.audit.counts import BrokerCount, ClaimCount, LakeCount, Minute
from wirekafka.pipelines.audit.offsets import PartitionOffsets, Place

TOPIC = "orders"


def at(minute: int, partition: int | None = 0) -> Minute:
    return Minute(TOPIC, partition, minute * MINUTE_MS)


def offsets(start: int = 0, end: int = 100, *, stable: int | None = None, first: int | None = None) -> PartitionOffsets:
    return PartitionOffsets(start, start if first is None else first, end if stable is None else stable, end)


def at_brokers(records: int, first_offset: int = 0, *, within: int | None = None, beyond: int = 0) -> BrokerCount:
    return BrokerCount(records, 0, 0, first_offset, (records if within is None else within,), (beyond,))


def kinds(findings: list[Finding]) -> dict[tuple[str, Minute], int]:
    return {(finding.kind, finding.minute): finding.records for finding in findings}


def with_lake(brokers: Mapping[Minute, BrokerCount], lake: Mapping[Minute, LakeCount]) -> Counts:
    return Counts({Place(TOPIC, 0): offsets()}, brokers, [LakeCounts("/lake", {TOPIC}, lake)])


def with_claims(brokers: Mapping[Minute, BrokerCount], claims: Mapping[Minute, int], **of_partition: Any) -> Counts:
    partitions = {Place(TOPIC, number): offsets(**of_partition) for number in range(2)}
    return Counts(partitions, brokers, claims={minute: ClaimCount(count, 0) for minute, count in claims.items()})


def test_equal_counts_have_no_findings() -> None:
    found = compare(with_lake({at(0): at_brokers(5)}, {at(0): LakeCount(5, within=5)}), Rules())
    assert found.differences == found.explained == []


def test_lost_record_is_a_difference_although_another_is_doubled() -> None:
    found = compare(with_lake({at(0): at_brokers(5)}, {at(0): LakeCount(5, duplicates=1, within=4)}), Rules())
    assert kinds(found.differences) == {("lost", at(0)): -1, ("duplicate", at(0)): 1}
    assert [(finding.broker, finding.in_lake, finding.lake) for finding in found.differences] == [(5, 5, "/lake")] * 2


def test_minute_that_the_lake_lacks_is_lost() -> None:
    found = compare(with_lake({at(0): at_brokers(5)}, {}), Rules())
    assert kinds(found.differences) == {("lost", at(0)): -5}


def test_minute_that_only_the_lake_has_is_extra() -> None:
    found = compare(with_lake({}, {at(3): LakeCount(2, within=2)}), Rules())
    assert kinds(found.differences) == {("extra", at(3)): 2}


def test_surplus_of_a_lake_in_a_compacted_topic_is_explained() -> None:
    found = compare(with_lake({at(0): at_brokers(1)}, {at(0): LakeCount(5, within=5)}), Rules(compacted_topics={TOPIC}))
    assert found.differences == []
    assert kinds(found.explained) == {("compacted", at(0)): 4}


def test_records_around_what_the_lake_has_reached_are_lag_and_skipped() -> None:
    found = compare(with_lake({at(0): at_brokers(10, within=3, beyond=5)}, {at(0): LakeCount(3, within=3)}), Rules())
    assert found.differences == []
    assert kinds(found.explained) == {("lag", at(0)): -5, ("skipped", at(0)): -2}


def test_records_that_retention_left_to_the_lake_are_explained() -> None:
    found = compare(with_lake({}, {at(0): LakeCount(7, deleted=7)}), Rules())
    assert found.differences == []
    assert kinds(found.explained) == {("deleted", at(0)): 7}


def test_topic_that_the_lake_does_not_read_is_not_compared_with_it() -> None:
    other = Minute("payments", 0, 0)
    found = compare(with_lake({other: at_brokers(5)}, {}), Rules())
    assert found.differences == found.explained == []


def test_second_lake_is_compared_by_its_own_counts() -> None:
    brokers = {at(0): BrokerCount(5, 0, 0, 0, (5, 3), (0, 2))}
    lakes = [
        LakeCounts("/a", {TOPIC}, {at(0): LakeCount(4, within=4)}),
        LakeCounts("/b", {TOPIC}, {at(0): LakeCount(3, within=3)}),
    ]
    found = compare(Counts({Place(TOPIC, 0): offsets()}, brokers, lakes), Rules())
    assert [(each.kind, each.lake) for each in found.differences + found.explained] == [("lost", "/a"), ("lag", "/b")]


def test_claim_of_more_records_than_the_brokers_have_is_missing() -> None:
    found = compare(with_claims({at(0): at_brokers(5)}, {at(0): 7, at(1): 1}), Rules())
    assert kinds(found.differences) == {("missing", at(0)): -2, ("missing", at(1)): -1}


def test_records_between_claimed_minutes_are_unclaimed() -> None:
    brokers = {at(minute): at_brokers(5, minute * 5) for minute in range(5)}
    found = compare(with_claims(brokers, {at(1): 5, at(3): 5}), Rules())
    assert kinds(found.differences) == {("unclaimed", at(2)): 5}
    assert kinds(found.explained) == {("open", at(4)): 5}, "the first minute was before the claims began"


def test_surplus_of_a_recent_minute_is_open() -> None:
    counts = with_claims({at(0): at_brokers(5), at(1): at_brokers(5, 5)}, {at(0): 3, at(1): 5})
    assert kinds(compare(counts, Rules(open_from_ms=0)).explained) == {("open", at(0)): 2}
    assert kinds(compare(counts, Rules(open_from_ms=MINUTE_MS)).differences) == {("unclaimed", at(0)): 2}


def test_claims_without_partitions_are_compared_with_all_partitions() -> None:
    brokers = {at(0, 0): at_brokers(2), at(0, 1): at_brokers(3)}
    assert compare(with_claims(brokers, {at(0, None): 5}), Rules()).differences == []
    found = compare(with_claims(brokers, {at(0, None): 6}), Rules())
    assert kinds(found.differences) == {("missing", at(0, None)): -1}


@pytest.mark.parametrize(
    ("of_partition", "claimed", "kind"),
    [
        ({}, 6, "missing"),
        ({"start": 10}, 6, "deleted"),
        ({"start": 10, "first": 20}, 6, "missing"),
        ({"stable": 98}, 7, "open"),
        ({"stable": 98}, 8, "missing"),
    ],
    ids=["whole log", "retention", "retention before the time", "open transaction", "more than the open transaction"],
)
def test_deficit_of_the_brokers_is_explained_by_the_offsets(of_partition: dict[str, int], claimed: int, kind: str) -> None:
    found = compare(with_claims({at(0): at_brokers(5, 10)}, {at(0): claimed}, **of_partition), Rules())
    assert [finding.kind for finding in found.differences + found.explained] == [kind]


def test_deficit_after_the_first_minute_of_the_log_is_not_explained_by_retention() -> None:
    brokers = {at(1): at_brokers(5, 10), at(2): at_brokers(5, 15)}
    found = compare(with_claims(brokers, {at(0): 5, at(1): 6, at(2): 6}, start=10), Rules())
    assert kinds(found.differences) == {("missing", at(2)): -1}
    assert kinds(found.explained) == {("deleted", at(0)): -5, ("deleted", at(1)): -1}


def test_deficit_in_a_compacted_topic_is_explained() -> None:
    found = compare(with_claims({at(0): at_brokers(1)}, {at(0): 9}), Rules(compacted_topics={TOPIC}))
    assert found.differences == []
    assert kinds(found.explained) == {("compacted", at(0)): -8}


def test_claims_are_compared_with_what_only_a_lake_still_has() -> None:
    counts = with_lake({at(0): at_brokers(2, 10)}, {at(0): LakeCount(12, within=2, deleted=10)})
    counts.claims = {at(0): ClaimCount(12, 0)}
    found = compare(counts, Rules())
    assert found.differences == []
    assert kinds(found.explained) == {("deleted", at(0)): 10}


def test_findings_have_the_counts_of_all_three_places() -> None:
    counts = with_lake({at(0): at_brokers(5)}, {at(0): LakeCount(4, within=4)})
    for claims in ({at(0): ClaimCount(6, 0)}, {at(0, None): ClaimCount(6, 0)}):
        counts.claims = claims
        found = compare(counts, Rules()).differences
        assert {(each.kind, each.broker, each.in_lake) for each in found} == {("lost", 5, 4), ("missing", 5, 4)}
        assert [each.claimed for each in found if each.kind == "missing"] == [6]
    counts.claims = {at(0): ClaimCount(6, 0)}
    assert [each.claimed for each in compare(counts, Rules()).differences] == [6, 6]


COUNT = st.integers(0, 5)


@given(st.dictionaries(st.builds(at, st.integers(0, 4)), st.tuples(COUNT, COUNT, COUNT, COUNT, COUNT, COUNT), max_size=5))
def test_findings_account_for_every_record(minutes: dict[Minute, tuple[int, ...]]) -> None:
    brokers = {m: BrokerCount(w + b + s, 0, 0, 0, (w,), (b,)) for m, (w, b, s, _, _, _) in minutes.items()}
    lake = {m: LakeCount(within + dup + gone, dup, within, gone) for m, (_, _, _, within, dup, gone) in minutes.items()}
    found = compare(with_lake(brokers, lake), Rules())
    for minute in minutes:
        changes = [finding.records for finding in found.differences + found.explained if finding.minute == minute]
        assert brokers[minute].records + sum(changes) == lake[minute].records
