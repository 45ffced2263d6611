import pytest

from wirekafka.wire.types import Int32, Message, String, constructor


class Point(Message):
    x: Int32 = 1
    labels: list[String] = []


class Other(Message):
    x: Int32 = 1
    labels: list[String] = []


def test_message_starts_with_its_defaults() -> None:
    point = Point()
    assert (point.x, point.labels) == (1, [])


def test_message_takes_fields_by_name() -> None:
    assert Point(x=5, labels=["a"]).labels == ["a"]
    with pytest.raises(TypeError):
        Point(y=5)  # type: ignore[call-arg]


def test_message_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Point().y = 5  # type: ignore[attr-defined]


def test_messages_are_equal_by_type_and_fields() -> None:
    assert Point(x=2) == Point(x=2)
    assert Point(x=2) != Point(x=3)
    assert Point() != Other()
    with pytest.raises(TypeError):
        hash(Point())


def test_message_shows_its_fields() -> None:
    assert repr(Point(labels=["a"])) == "Point(x=1, labels=['a'])"


def test_field_without_a_default_is_refused_at_declaration() -> None:
    with pytest.raises(AssertionError, match="every field has a default"):

        class Broken(Message):
            x: Int32


def test_constructor_makes_a_message_as_a_call_of_the_class_does() -> None:
    assert constructor(Point, "labels", "x")(["a"], 5) == Point(x=5, labels=["a"])


def test_constructor_gives_each_message_its_own_list() -> None:
    make = constructor(Point, "x")
    make(5).labels.append("a")
    assert make(6).labels == []
