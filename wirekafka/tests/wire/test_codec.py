import linecache
import struct
import traceback
from typing import Annotated, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirekafka.errors import ProtocolError
from wirekafka.wire.codec import (
    ELEMENTS_A_YIELD,
    MOST_ELEMENTS,
    MOST_ELEMENTS_OF_A_CONTROLLER,
    MOST_NUMBERS,
    NUMBERS_A_YIELD,
    SMALL_VARINTS,
    ElementBudget,
    LargeMessageError,
    StepBudget,
    counting_reader,
    counting_writer,
    decode,
    encode,
    fields_of,
    least_size,
    read_unsigned_varint,
    reader,
    skip_tagged_fields,
    step_reader,
    step_writer,
    unsigned_varint,
    writer,
)
from wirekafka.wire.types import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableBytes,
    NullableString,
    Records,
    String,
    Uint16,
    Uint32,
    Uuid,
    nullable,
    since,
    tag,
    until,
)


class Inner(Message):
    number: Int32 = 7


class Everything(Message):
    flag: Bool = False
    tiny: Int8 = 0
    small: Int16 = 0
    port: Uint16 = 0
    normal: Int32 = 0
    crc: Uint32 = 0
    large: Int64 = 0
    rate: Float64 = 0.0
    topic_id: Uuid = bytes(16)
    name: String = ""
    note: Annotated[NullableString, nullable(0)] = None
    data: Bytes = b""
    more: Annotated[NullableBytes, nullable(0)] = None
    records: Annotated[Records, nullable(0)] = None
    inner: Inner = Inner()
    maybe: Annotated[Inner | None, nullable(0)] = None
    numbers: list[Int32] = []
    names: list[String] = []
    ids: list[Uuid] = []
    inners: Annotated[list[Inner] | None, nullable(0)] = []


class Evolving(Message):
    always: Int8 = 1
    old: Annotated[Int8, until(1)] = 2
    new: Annotated[Int8, since(2)] = 3
    later_null: Annotated[NullableString, nullable(2)] = ""
    tagged: Annotated[Int32, tag(5, since=2)] = 4
    in_order_before: Annotated[Int32, since(1), tag(0, since=3)] = 9


class Tagged(Message):
    first: Annotated[Int32, tag(0, since=0)] = -1
    second: Annotated[String, tag(1, since=0)] = ""
    third: Annotated[Inner | None, tag(200, since=0)] = None


def everything(**fields: Any) -> Everything:
    return Everything(**{"inner": Inner(), **fields})


bytes_or_null = st.none() | st.binary(max_size=200)
messages = st.builds(
    everything,
    flag=st.booleans(),
    tiny=st.integers(-128, 127),
    small=st.integers(-(1 << 15), (1 << 15) - 1),
    port=st.integers(0, (1 << 16) - 1),
    normal=st.integers(-(1 << 31), (1 << 31) - 1),
    crc=st.integers(0, (1 << 32) - 1),
    large=st.integers(-(1 << 63), (1 << 63) - 1),
    rate=st.floats(allow_nan=False),
    topic_id=st.binary(min_size=16, max_size=16),
    name=st.text(max_size=200),
    note=st.none() | st.text(max_size=200),
    data=st.binary(max_size=200),
    more=bytes_or_null,
    records=bytes_or_null,
    maybe=st.none() | st.builds(Inner, number=st.integers(0, 99)),
    numbers=st.lists(st.integers(-5, 5)),
    names=st.lists(st.text(max_size=5)),
    ids=st.lists(st.binary(min_size=16, max_size=16), max_size=3),
    inners=st.none() | st.lists(st.builds(Inner, number=st.integers(0, 99)), max_size=3),
)


@given(message=messages, flexible=st.booleans())
def test_message_of_every_type_survives(message: Everything, flexible: bool) -> None:
    assert decode(Everything, 0, flexible, memoryview(encode(message, 0, flexible))) == message


@given(st.binary(max_size=300), st.booleans())
def test_garbage_is_a_protocol_error_or_a_message(garbage: bytes, flexible: bool) -> None:
    try:
        message = decode(Everything, 0, flexible, memoryview(garbage))
    except ProtocolError:
        return
    again = encode(message, 0, flexible)
    assert encode(decode(Everything, 0, flexible, again), 0, flexible) == again


def test_rigid_strings_and_arrays_have_wide_lengths() -> None:
    class Rigid(Message):
        name: String = ""
        data: Bytes = b""
        numbers: list[Int16] = []

    message = Rigid(name="ab", data=b"c", numbers=[1, 2])
    assert encode(message, 0, False).hex(" ") == "00 02 61 62 00 00 00 01 63 00 00 00 02 00 01 00 02"
    assert encode(message, 0, True).hex(" ") == "03 61 62 02 63 03 00 01 00 02 00"


def test_field_that_a_version_lacks_keeps_its_default() -> None:
    message = Evolving(always=10, old=20, new=30, later_null="x")
    assert decode(Evolving, 0, False, encode(message, 0, False)) == Evolving(always=10, old=20, new=3, later_null="x")
    assert decode(Evolving, 2, True, encode(message, 2, True)) == Evolving(always=10, old=2, new=30, later_null="x")


def test_field_may_move_into_the_tags() -> None:
    message = Evolving(in_order_before=77)
    names = {version: [field.name for field in fields_of(Evolving, version, version >= 2)] for version in range(4)}
    assert names[0] == ["always", "old", "later_null"]
    assert names[1] == ["always", "old", "later_null", "in_order_before"]
    assert names[2] == ["always", "new", "later_null", "in_order_before", "tagged"]
    assert names[3] == ["always", "new", "later_null", "tagged", "in_order_before"]
    for version in (1, 2, 3):
        assert decode(Evolving, version, version >= 2, encode(message, version, version >= 2)) == message


def test_null_is_refused_where_the_version_has_none() -> None:
    null = encode(Evolving(later_null=None), 2, True)
    assert decode(Evolving, 2, True, null).later_null is None
    with pytest.raises(ProtocolError, match=r"Evolving\.later_null must not be null"):
        decode(Evolving, 1, False, b"\1\2\xff\xff\0\0\0\0")


def test_default_lists_are_not_shared() -> None:
    first, second = Everything(), decode(Tagged, 0, True, b"\0")
    first.numbers.append(1)
    assert Everything().numbers == []
    assert second == Tagged()


def test_tagged_field_with_its_default_is_left_out() -> None:
    assert encode(Tagged(), 0, True) == b"\0"
    assert encode(Tagged(first=5), 0, True).hex(" ") == "01 00 04 00 00 00 05"
    message = Tagged(first=1, second="x" * 200, third=Inner(number=3))
    assert decode(Tagged, 0, True, encode(message, 0, True)) == message


def test_tagged_field_of_another_size_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"Tagged\.first has another size"):
        decode(Tagged, 0, True, b"\x01\x00\x05" + bytes(5))
    with pytest.raises(ProtocolError, match="ends after the message"):
        decode(Tagged, 0, True, b"\x01\x00\x05" + bytes(4))


def test_unknown_tagged_fields_are_stepped_over() -> None:
    section = b"\x02\x09\x03abc\xc9\x01\x00"
    assert skip_tagged_fields(section + b"rest", 0, len(section)) == len(section)
    assert decode(Tagged, 0, True, section) == Tagged()


@pytest.mark.parametrize("section", [b"", b"\x01", b"\x01\x00", b"\x01\x00\x02a", b"\xff\xff\xff\xff\xff"])
def test_torn_tagged_fields_are_refused(section: bytes) -> None:
    with pytest.raises(ProtocolError):
        skip_tagged_fields(section, 0, len(section))


@given(st.integers(0, (1 << 32) - 1))
def test_unsigned_varint_survives(value: int) -> None:
    coded = unsigned_varint(value)
    assert read_unsigned_varint(coded + b"\xff", 0, len(coded)) == (value, len(coded))


def test_unsigned_varint_is_protobufs() -> None:
    assert unsigned_varint(300) == b"\xac\x02" == SMALL_VARINTS[300]


@pytest.mark.parametrize("coded", [b"", b"\x80", b"\xff\xff\xff\xff\xff\x01"])
def test_unsigned_varint_without_an_end_is_refused(coded: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_unsigned_varint(coded, 0, len(coded))


@pytest.mark.parametrize("flexible", [False, True])
def test_count_above_the_bytes_that_are_left_is_refused_before_anything_is_made(flexible: bool) -> None:
    class Many(Message):
        inners: list[Inner] = []

    least = 5 if flexible else 4
    body = bytes(10 * least)
    count = unsigned_varint(12) if flexible else struct.pack(">i", 11)
    with pytest.raises(ProtocolError, match="more elements than bytes are left"):
        decode(Many, 0, flexible, count + body)


def test_least_size_is_never_zero() -> None:
    class Empty(Message):
        pass

    class Holder(Message):
        empties: list[Empty] = []

    (field,) = fields_of(Holder, 0, False)
    assert field.element is not None
    assert least_size(field.element, 0, False) == 1


def test_string_that_is_not_utf_8_is_refused() -> None:
    class Named(Message):
        name: String = ""

    with pytest.raises(ProtocolError, match="not a Named of version 0"):
        decode(Named, 0, False, b"\x00\x01\xff")


def test_records_are_a_view_of_the_frame_and_bytes_a_copy() -> None:
    class Both(Message):
        records: Annotated[Records, nullable(0)] = None
        data: Bytes = b""

    frame = memoryview(bytearray(encode(Both(records=b"abc", data=b"def"), 0, True)))
    message = decode(Both, 0, True, frame)
    assert isinstance(message.data, bytes)
    assert message.records.obj is frame.obj
    message.records[0] = ord("x")
    assert decode(Both, 0, True, frame).records == b"xbc"


def test_writer_asks_a_region_of_a_file_for_its_length_only() -> None:
    class Region:
        def __len__(self) -> int:
            return 300

    class Holder(Message):
        records: Annotated[Records, nullable(0)] = None
        behind: Int8 = 1

    region = Region()
    pieces: list[Any] = []
    writer(Holder, 0, False)(pieces.append, Holder(records=region))
    assert pieces == [struct.pack(">i", 300), region, b"\x01"]


def test_functions_are_made_once_and_show_their_source() -> None:
    read = reader(Everything, 0, False)
    assert read is reader(Everything, 0, False)
    try:
        read(b"", 0, 0)
    except struct.error as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert "unpack" in linecache.getline(frame.filename, frame.lineno or 0)
    else:
        pytest.fail("nothing was read from nothing")


class Name(Message):
    name: String = ""


def test_string_longer_than_kafkas_strings_is_refused() -> None:
    longest = Name(name="x" * 0x7FFF)
    assert decode(Name, 0, True, encode(longest, 0, True)) == longest
    with pytest.raises(ProtocolError, match="longer than a string"):
        decode(Name, 0, True, encode(Name(name="x" * 0x8000), 0, True))


class Leaf(Message):
    numbers: list[Int32] = []


class Branch(Message):
    name: String = ""
    leaves: list[Leaf] = []
    tagged: Annotated[list[Leaf], tag(0, since=0)] = []


class Tree(Message):
    branches: list[Branch] = []
    names: list[String] = []


def count(message: Message, flexible: bool, budget: ElementBudget) -> Message:
    """Decodes the message with the counting reader."""
    data = encode(message, 0, flexible)
    found, pos = counting_reader(type(message), 0, flexible)(memoryview(data), 0, len(data), budget)
    assert pos == len(data)
    return cast(Message, found)


def test_counting_reader_takes_the_elements_of_all_arrays_from_the_budget() -> None:
    leaf = Leaf(numbers=[1, 2, 3])
    tree = Tree(branches=[Branch(name="a", leaves=[leaf, leaf]), Branch(name="b")], names=["x", "y", "z"])
    for budget in (ElementBudget(13), ElementBudget(14)):
        assert count(tree, True, budget) == tree
    assert budget.left == 1
    with pytest.raises(ProtocolError, match="more than 12 elements"):
        count(tree, True, ElementBudget(12))


def test_counting_reader_counts_tagged_fields_and_their_elements() -> None:
    tree = Tree(branches=[Branch(name="a", tagged=[Leaf(numbers=[1, 2])])])
    assert count(tree, True, ElementBudget(1 + 1 + 1 + 2)) == tree
    with pytest.raises(ProtocolError, match="more than 4 elements"):
        count(tree, True, ElementBudget(1 + 1 + 1 + 1))


@given(message=messages, flexible=st.booleans())
def test_counting_reader_reads_what_the_plain_one_reads(message: Everything, flexible: bool) -> None:
    assert count(message, flexible, ElementBudget()) == message


def read_in_steps(message: Message, flexible: bool, budget: ElementBudget) -> tuple[Message, int]:
    """Decodes the message with the step reader; returns it and the number of yields."""
    data = encode(message, 0, flexible)
    steps = step_reader(type(message), 0, flexible)(memoryview(data), 0, len(data), budget)
    for number in range(1 << 20):
        try:
            next(steps)
        except StopIteration as ended:
            found, pos = ended.value
            assert pos == len(data)
            return cast(Message, found), number
    raise AssertionError("the step reader does not end")


def written(message: Message, flexible: bool, budget: ElementBudget) -> bytes:
    """Encodes the message with the counting writer."""
    pieces: list[bytes] = []
    counting_writer(type(message), 0, flexible)(pieces.append, message, budget)
    return b"".join(pieces)


def written_in_steps(message: Message, flexible: bool) -> tuple[bytes, int]:
    """Encodes the message with the step writer; returns it and the number of yields."""
    pieces: list[bytes] = []
    yields = sum(1 for _ in step_writer(type(message), 0, flexible)(pieces.append, message))
    return b"".join(pieces), yields


@given(message=messages, flexible=st.booleans())
def test_step_reader_and_other_writers_do_what_the_plain_ones_do(message: Everything, flexible: bool) -> None:
    data = encode(message, 0, flexible)
    assert read_in_steps(message, flexible, ElementBudget())[0] == message
    assert written(message, flexible, StepBudget()) == data
    assert written_in_steps(message, flexible)[0] == data


def large_tree(size: int) -> Tree:
    """Makes a tree with this many branches, leaves in one of them, and tagged leaves."""
    branches = [Branch(name="a", leaves=[Leaf() for _ in range(size)], tagged=[Leaf() for _ in range(size)])]
    return Tree(branches=branches + [Branch(name="b")] * (size - 1), names=["x"])


def test_step_reader_yields_within_arrays_of_arrays() -> None:
    size = 10 * ELEMENTS_A_YIELD
    tree = large_tree(size)
    found, yields = read_in_steps(tree, True, ElementBudget())
    assert found == tree
    assert yields > 3 * size / ELEMENTS_A_YIELD
    with pytest.raises(ProtocolError, match=f"more than {3 * size} elements"):
        read_in_steps(tree, True, ElementBudget(3 * size))


def test_step_reader_yields_after_elements_with_many_numbers() -> None:
    few, many = [Tree(branches=[Branch(leaves=[Leaf(numbers=[0] * count)] * 6)]) for count in (1, NUMBERS_A_YIELD // 2 + 1)]
    budget = ElementBudget(MOST_ELEMENTS_OF_A_CONTROLLER)
    assert read_in_steps(many, True, budget)[1] == read_in_steps(few, True, budget)[1] + 2


def test_step_reader_reads_no_more_elements_that_are_not_numbers_than_are_freed_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wirekafka.wire.codec.MOST_OBJECTS", 6)
    most, more = [
        Tree(branches=[Branch(name="a", leaves=[Leaf(numbers=[0] * 9)] * count)] * 2, names=["x"] * 2) for count in (1, 2)
    ]
    assert read_in_steps(most, True, ElementBudget())[0] == most
    with pytest.raises(ProtocolError, match="more than 6 elements in its arrays that are not numbers"):
        read_in_steps(more, True, ElementBudget())


def test_step_reader_reads_no_array_of_more_elements_than_a_cluster_has_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wirekafka.wire.codec.MOST_OBJECTS_OF_AN_ARRAY", 2)
    most, more = (Tree(names=["x"] * count) for count in (2, 3))
    assert read_in_steps(most, True, ElementBudget())[0] == most
    with pytest.raises(ProtocolError, match="more than 2 elements in one array"):
        read_in_steps(more, True, ElementBudget())


@pytest.mark.parametrize("flexible", [False, True])
def test_counting_reader_reads_no_array_of_more_numbers_than_one_step_may_have(flexible: bool) -> None:
    most, more = (Leaf(numbers=[0] * count) for count in (MOST_NUMBERS, MOST_NUMBERS + 1))
    assert count(most, flexible, ElementBudget(MOST_ELEMENTS_OF_A_CONTROLLER)) == most
    with pytest.raises(ProtocolError, match="more than 250000 numbers"):
        count(more, flexible, ElementBudget(MOST_ELEMENTS_OF_A_CONTROLLER))


def test_step_writer_yields_within_arrays_of_arrays() -> None:
    size = 10 * ELEMENTS_A_YIELD
    tree = large_tree(size)
    data, yields = written_in_steps(tree, True)
    assert data == encode(tree, 0, True)
    assert yields > 2 * size / ELEMENTS_A_YIELD


def test_counting_writer_takes_the_elements_of_all_arrays_from_the_budget() -> None:
    leaf = Leaf(numbers=[1, 2, 3])
    tree = Tree(branches=[Branch(name="a", leaves=[leaf, leaf]), Branch(name="b")], names=["x", "y", "z"])
    assert written(tree, True, StepBudget(7)) == encode(tree, 0, True)
    with pytest.raises(LargeMessageError):
        written(tree, True, StepBudget(6))


def test_elements_are_counted_before_objects_are_made_of_them() -> None:
    class Watched(Message):
        names: list[String] = []

    data = encode(Watched(names=[""] * 20), 0, False)
    budget = ElementBudget(19)
    with pytest.raises(ProtocolError, match="more than"):
        counting_reader(Watched, 0, False)(data, 0, len(data), budget)
    assert budget.left == 19


def test_unknown_tagged_fields_are_counted() -> None:
    class Empty(Message):
        pass

    section = unsigned_varint(3) + b"\x63\x00" * 3
    assert counting_reader(Empty, 0, True)(section, 0, len(section), ElementBudget(3))[1] == len(section)
    with pytest.raises(ProtocolError, match="more than"):
        counting_reader(Empty, 0, True)(section, 0, len(section), ElementBudget(2))


def test_header_has_as_many_tagged_fields_as_a_request_may_have_elements() -> None:
    for number in (MOST_ELEMENTS, MOST_ELEMENTS + 1):
        section = unsigned_varint(number) + b"\x63\x00" * number
        if number == MOST_ELEMENTS:
            assert skip_tagged_fields(section, 0, len(section)) == len(section)
        else:
            with pytest.raises(ProtocolError, match="more than"):
                skip_tagged_fields(section, 0, len(section))
