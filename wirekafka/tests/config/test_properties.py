import pytest

from wirekafka.config import ConfigError
from wirekafka.config.properties import parse_entries, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a=1", {"a": "1"}),
        (b"a = 1 ", {"a": "1 "}),
        (b"a:1\nb 2\nc\n", {"a": "1", "b": "2", "c": ""}),
        (b"  a\t=\t1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        (b"# no\n! no\n\n   # no\na=1", {"a": "1"}),
        (b"a=1\\\n   2\\\n\t3\nb=4", {"a": "123", "b": "4"}),
        (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (b"a=1\\\n# kept", {"a": "1# kept"}),
        (b"a\\=b\\ c=d=e", {"a=b c": "d=e"}),
        (b"a=x\\ty\\nz\\q", {"a": "x\ty\nzq"}),
        (b"a=\\u00e9\xe9", {"a": "éé"}),
        (b"a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        (b"a=1\nb=2\na=3", {"a": "3", "b": "2"}),
        (b"a=\\", {"a": ""}),
        (b"", {}),
        (b"=1", {"": "1"}),
    ],
)
def test_properties_text_is_read_as_java_reads_it(text: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_properties_broken_unicode_escape_is_refused() -> None:
    with pytest.raises(ConfigError, match="uXXXX") as caught:
        parse_properties(b"password=sesame\\u12")
    assert "sesame" not in str(caught.value)


def test_properties_entries_name_the_line_on_which_each_begins() -> None:
    text = b"# comment\na=1\n\nb=2\\\n  3\r\nc=4\ra=5"
    assert parse_entries(text) == [("a", "1", 2), ("b", "23", 4), ("c", "4", 6), ("a", "5", 7)]
