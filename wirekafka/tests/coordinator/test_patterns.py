from __future__ import annotations

import pytest

from wirekafka.coordinator.patterns import check_pattern, matches_of

NAMES = ["a", "ab", "b", "ba", "ü"]
REGEXES = ["a.*", "b", "[ab]", "(?i)A|B", "ü", ".*", "a|ab", "c", "", "(", "a{1001}"]
EXPECTED = {
    "a.*": ["a", "ab"],
    "b": ["b"],
    "[ab]": ["a", "b"],
    "(?i)A|B": ["a", "b"],
    "ü": ["ü"],
    ".*": NAMES,
    "a|ab": ["a", "ab"],
    "c": [],
    "": [],
    "(": [],
    "a{1001}": [],
}
TOO_LARGE = "x{1000}" * 800 + "|a"


def test_matches_of_many_expressions_are_those_of_each() -> None:
    assert matches_of(REGEXES, NAMES) == matches_of(REGEXES[::-1], NAMES) == EXPECTED
    for regex in REGEXES:
        assert matches_of([regex], NAMES) == {regex: EXPECTED[regex]}
    assert matches_of(["(", "("], NAMES) == {"(": []}
    assert matches_of([], NAMES) == {}


def test_expressions_that_are_too_large_together_are_looked_for_in_parts() -> None:
    large = [f"{number}{'x{1000}' * 5}|ab?" for number in range(80)]
    assert matches_of(large, NAMES) == dict.fromkeys(large, ["a", "ab"])


def test_expression_that_is_too_large_for_anything_matches_nothing_and_spoils_nothing() -> None:
    assert matches_of(["a.*", TOO_LARGE, "b"], NAMES) == {"a.*": ["a", "ab"], TOO_LARGE: [], "b": ["b"]}
    with pytest.raises(ValueError, match="pattern too large"):
        check_pattern(TOO_LARGE)


@pytest.mark.parametrize(("regex", "reason"), [("(", "missing )"), ("a{1001}", "invalid repetition size"), ("(?=a)", "invalid")])
def test_what_is_no_expression_is_refused_with_the_reason(regex: str, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=reason.replace(")", r"\)")):
        check_pattern(regex)
    assert matches_of([regex], NAMES) == {regex: []}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "regex", [r"\pL" * 51, r"[^\PN\pL]*" * 3000, ".*x" * 10_900, "x{1000}" * 4600, "x{1,1000}" * 6], ids=lambda regex: regex[:10]
)
def test_expression_that_takes_long_to_compile_is_refused(regex: str) -> None:
    with pytest.raises(ValueError, match="pattern too large"):
        check_pattern(regex)


def test_alternative_of_thousands_of_topics_is_accepted() -> None:
    regex = "|".join(f"topic-{number}" for number in range(3000))
    check_pattern(regex)
    assert matches_of([regex], ["topic-7", "topic-3000"]) == {regex: ["topic-7"]}


def test_expression_of_many_states_matches_long_names_as_the_others_do() -> None:
    regex, name = r"\pL+\pN*.*" * 20, "x" * 249
    assert matches_of([regex], [name, "x" * 19]) == {regex: [name]}
