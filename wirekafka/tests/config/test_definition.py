"""Texts of settings, as clients and operators write them."""

import time

import pytest

from wirekafka.config.definition import Type, parse_text
from wirekafka.config.topic_table import TOPIC_SETTINGS

LONGEST = 32767
"""The most characters of a string in a request."""


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        (" a , b\t,c", ["a", "b", "c"]),
        ("a,,b", ["a", "", "b"]),
        ("a, ,", ["a"]),
        (",a", ["", "a"]),
    ],
)
def test_list_is_separated_by_commas_and_white_space(text: str, items: list[str]) -> None:
    assert parse_text(Type.LIST, text) == items


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), ("1.", 1.0), ("-1.5", -1.5), (".5", 0.5), ("2e3", 2000.0), ("1.5f", 1.5)]
)
def test_number_is_written_as_in_java(text: str, value: float) -> None:
    assert parse_text(Type.DOUBLE, text) == value


@pytest.mark.parametrize("text", ["", ".", "1..2", "1.5.2", "e3", "1x", "--1"])
def test_text_that_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_text(Type.DOUBLE, text)


def test_long_list_with_much_white_space_is_read_in_an_instant() -> None:
    begun = time.process_time()
    text = "a" + " " * (LONGEST - 2) + "b"
    assert parse_text(Type.LIST, text) == [text]
    assert time.process_time() - begun < 0.5


def test_long_text_that_is_almost_a_number_is_refused_in_an_instant() -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="1x"):
        parse_text(Type.DOUBLE, "1" * (LONGEST - 1) + "x")
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("text", "is_valid"), [("0:1,2:3", True), ("*", True), ("", True), ("0:1,*", False), ("0", False), ("0:1:2", False)]
)
def test_throttled_replicas(*, text: str, is_valid: bool) -> None:
    setting = TOPIC_SETTINGS["leader.replication.throttled.replicas"]
    check = setting.check
    assert check is not None
    assert check.holds(parse_text(Type.LIST, text)) is is_valid
