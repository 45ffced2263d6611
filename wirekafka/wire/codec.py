"""Generates the functions that read and write one version of a message from the message's declaration.

How it works: for each (class, version, flexible), a plain function is generated in memory on first use, as `dataclasses`
and attrs do. Its source is in `linecache`, so tracebacks and debuggers show it. A reader is `(buf, pos, end) -> (object, pos)`. A
writer is `(add, object)`; `add` takes the next piece of the output. Neighbouring fields of fixed size become one `struct` call;
strings and array lengths are inlined. One call per field takes four times as long (2026-11, CPython 3.11: Fetch 12 of 100
partitions, 178 us against 41).

Messages with many elements are read and written in steps, by generators that are made from the same declarations (`step_reader`,
`step_writer`). The generators yield after some elements, so that the broker's loop can run other tasks. The dispatcher runs the
generators in slices after a `StepBudget` has shown that a message is large.

Rules of this file:
    Every length is checked against `end` before it is used, and the count of an array is checked against the bytes that are left,
    so memory does not grow with a length that a client announces. Bytes that break a rule raise `ProtocolError`.
    A client's message of more than `MOST_ELEMENTS` bytes is read by a `CountingReader`, which counts the elements of all arrays
    and the tagged fields before it makes objects of them. A shorter message cannot have too many elements, because each element
    takes at least one byte.

Differs from Apache Kafka:
    A request has at most 20,000 elements in all its arrays together, tagged fields included. If a request has more, the broker
    closes its connection. Apache Kafka accepts as many elements as fit into socket.request.max.bytes. In a cluster the requests
    of a controller may have 4,000,000 elements, Fetch, OffsetForLeaderEpoch, AddPartitionsToTxn, WriteTxnMarkers and
    AlterPartition 250,000, and CreateTopics, CreatePartitions and AlterPartitionReassignments 60,000. An array of numbers has at
    most 250,000 elements. Any other array has at most 200,000, and all of them together 400,000: a cluster with ZooKeeper has at
    most 200,000 partitions.
"""

from __future__ import annotations

import linecache
import struct
import typing
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, NoReturn

from wirekafka.errors import ProtocolError
from wirekafka.wire.types import Message, Nullable, Since, Tag, Until, WireType

Buffer = bytes | memoryview
Reader = Callable[[Buffer, int, int], tuple[Any, int]]
CountingReader = Callable[[Buffer, int, int, "ElementBudget"], tuple[Any, int]]
StepReader = Callable[[Buffer, int, int, "ElementBudget"], Generator[None, None, tuple[Any, int]]]
Piece = Any
"""bytes, a memoryview, or an object with a length that the connection resolves (a region of a file)."""
Writer = Callable[[Callable[[Piece], object], Any], None]
CountingWriter = Callable[[Callable[[Piece], object], Any, "ElementBudget"], None]
StepWriter = Callable[[Callable[[Piece], object], Any], Generator[None, None, None]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message in one version."""

    name: str
    default: Any
    wire: WireType | None
    element: Field | None
    struct: type[Message] | None
    can_be_null: bool
    tag: int | None


@cache
def fields_of(cls: type[Message], version: int, flexible: bool) -> list[Field]:
    """Returns the fields that `version` of the message has, in wire order; tagged fields come last."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [_field(cls, name, hints[name], version, flexible) for name in cls.field_defaults]
    present = [field for field in fields if field is not None]
    return [f for f in present if f.tag is None] + [f for f in present if f.tag is not None]


@cache
def has_records(cls: type[Message]) -> bool:
    """Returns whether the message, or a structure inside it, has a field of type records in any version."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return any(_holds_records(hints[name]) for name in cls.field_defaults)


def _holds_records(hint: Any) -> bool:
    if any(isinstance(mark, WireType) and mark.name == "records" for mark in getattr(hint, "__metadata__", ())):
        return True
    if isinstance(hint, type):
        return issubclass(hint, Message) and has_records(hint)
    return any(_holds_records(argument) for argument in typing.get_args(hint))


def _field(cls: type[Message], name: str, hint: Any, version: int, flexible: bool) -> Field | None:
    marks: list[Any] = list(getattr(hint, "__metadata__", ()))
    bare = hint.__origin__ if marks else hint
    number: int | None = None
    null_since: int | None = None
    for mark in marks:
        match mark:
            case Since(first) if version < first:
                return None
            case Until(last) if version > last:
                return None
            case Tag(tag_number, first) if version >= first:
                number = tag_number
            case Nullable(first):
                null_since = first
    if any(isinstance(mark, Tag) for mark in marks) and number is None:
        in_order = any(isinstance(mark, Since) for mark in marks)
        if not in_order:
            return None
    assert number is None or flexible, f"{cls.__name__}.{name} is tagged in a version that is not flexible"
    wire = next((mark for mark in marks if isinstance(mark, WireType)), None)
    can_be_null = null_since is not None and version >= null_since
    return _shape(name, cls.field_defaults[name], bare, wire, can_be_null, number)


def _shape(name: str, default: Any, bare: Any, wire: WireType | None, can_be_null: bool, number: int | None) -> Field:
    if wire is not None:
        return Field(name, default, wire, None, None, can_be_null, number)
    if isinstance(bare, UnionType) or typing.get_origin(bare) is typing.Union:
        bare = next(arm for arm in typing.get_args(bare) if arm is not type(None))
    if typing.get_origin(bare) is list:
        (inner,) = typing.get_args(bare)
        inner_marks = getattr(inner, "__metadata__", ())
        inner_wire = next((mark for mark in inner_marks if isinstance(mark, WireType)), None)
        element = _shape("element", None, inner, inner_wire, False, None)
        return Field(name, default, None, element, None, can_be_null, number)
    assert isinstance(bare, type) and issubclass(bare, Message), f"{name}: {bare!r} is not a wire type"
    return Field(name, default, None, None, bare, can_be_null, number)


def least_size(field: Field, version: int, flexible: bool) -> int:
    """Returns the fewest bytes that a value of the field takes on the wire; it is never zero, so it limits array counts."""
    if field.can_be_null and field.struct is not None:
        return 1
    if field.struct is not None:
        inner = fields_of(field.struct, version, flexible)
        size = sum(least_size(f, version, flexible) for f in inner if f.tag is None)
        return max(1, size + flexible)
    if field.element is not None:
        return 1 if flexible else 4
    assert field.wire is not None
    if field.wire.format is not None:
        return field.wire.size
    if flexible:
        return 1
    return 2 if field.wire.name == "string" else 4


def read_unsigned_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most five bytes; returns its value and the position after it.

    Raises:
        ProtocolError: the varint does not end within the buffer, or has more than 32 bits.
    """
    if end - pos > 1:
        # Nearly all lengths have one or two bytes; the loop takes twice as long for these.
        low, high = buf[pos], buf[pos + 1]
        if low < 0x80:
            return low, pos + 1
        if high < 0x80:
            return high << 7 | low & 0x7F, pos + 2
    value = shift = 0
    while True:
        if pos >= end or shift > 28:
            raise ProtocolError("a varint does not end")
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def unsigned_varint(value: int) -> bytes:
    """Encodes a non-negative number as an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL_VARINTS = tuple(unsigned_varint(number) for number in range(1024))
"""The unsigned varints of the most frequent lengths."""


LONGEST_STRING = 0x7FFF
"""The most bytes of a string, in any version."""


MOST_ELEMENTS = 20_000
"""The most elements that all arrays of a request may have together, tagged fields included."""

MOST_ELEMENTS_OF_A_CONTROLLER = 4_000_000
"""The limit for requests of a controller, which name all partitions of a broker, or of the cluster, with their replicas."""

MOST_OBJECTS_OF_AN_ARRAY = 200_000
"""The most elements of one array, unless they are numbers, in a message that is read in steps. A cluster with ZooKeeper has at
most 200,000 partitions. The image of the cluster replaces all partitions of one topic in one step."""

MOST_OBJECTS = 2 * MOST_OBJECTS_OF_AN_ARRAY
"""The most elements of all arrays, without numbers, in a message that is read in steps: 200,000 topics with one partition each.
Such a message is freed in one step (30 to 50 ms of CPU, 2026-11)."""

MOST_ELEMENTS_OF_A_BROKER = 250_000
"""The limit for requests of other brokers that may name all partitions of a broker, and for their responses. A follower's Fetch
has an element for each topic and each partition, and a cluster with ZooKeeper has at most 200,000 partitions."""

MOST_ELEMENTS_OF_ASSIGNMENTS = 60_000
"""The limit for requests that assign replicas: 10,000 topics, each with one partition of three replicas, have 50,000
elements. With 249,000 elements that make no sense, a turn of the controller took up to 125 ms of CPU (2026-11)."""

ELEMENTS_AT_ONCE = 2_000
"""The most elements of a message that is read or written in one step, in about 5 ms of CPU (2026-11)."""

ELEMENTS_A_YIELD = 64
"""The elements of one array that a step reader or a step writer handles between two yields."""

NUMBERS_A_YIELD = 50_000
"""A step reader yields after an element of an array if it has read more numbers since the last yield of the array."""

MOST_NUMBERS = MOST_ELEMENTS_OF_A_BROKER
"""The most numbers of one array of numbers, which is read in one step (10 ms of CPU, 2026-11)."""


class LargeMessageError(Exception):
    """The message has more elements than the broker reads or writes in one step."""


class ElementBudget:
    """The number of elements that the rest of a message may have.

    Args:
        left: the number of elements that the whole message may have.
    """

    __slots__ = ("_most", "_objects_left", "left")

    def __init__(self, left: int = MOST_ELEMENTS) -> None:
        self.left = self._most = left
        self._objects_left = MOST_OBJECTS

    def take(self, count: int) -> None:
        """Takes elements from the budget.

        Raises:
            ProtocolError: the budget has fewer elements left.
        """
        if count > self.left:
            self.refuse()
        self.left -= count

    def take_objects(self, count: int) -> None:
        """Counts the elements of an array that is not of numbers; `take` takes them from the budget too.

        Raises:
            ProtocolError: the array, or the message, has too many of them.
        """
        if count > MOST_OBJECTS_OF_AN_ARRAY:
            raise ProtocolError(f"more than {MOST_OBJECTS_OF_AN_ARRAY} elements in one array")
        if count > self._objects_left:
            raise ProtocolError(f"more than {MOST_OBJECTS} elements in its arrays that are not numbers")
        self._objects_left -= count

    def refuse(self) -> NoReturn:
        """Raises the error for a message with too many elements."""
        raise ProtocolError(f"more than {self._most} elements in its arrays")


class StepBudget(ElementBudget):
    """The number of elements that are read or written in one step; a message with more raises `LargeMessageError`."""

    __slots__ = ()

    def __init__(self, left: int = ELEMENTS_AT_ONCE) -> None:
        self.left = left

    def refuse(self) -> NoReturn:
        """Raises LargeMessageError."""
        raise LargeMessageError


def skip_tagged_fields(buf: Buffer, pos: int, end: int, budget: ElementBudget | None = None) -> int:
    """Skips a section of tagged fields; returns the position after it.

    Args:
        budget: the budget from which the fields are taken; None gives the section a budget of its own.

    Raises:
        ProtocolError: a field ends after the message, or the section has too many fields.
    """
    count, pos = read_unsigned_varint(buf, pos, end)
    (budget or ElementBudget()).take(count)
    for _ in range(count):
        number, pos = read_unsigned_varint(buf, pos, end)
        size, pos = read_unsigned_varint(buf, pos, end)
        if size > end - pos:
            raise ProtocolError(f"tagged field {number} of {size} bytes ends after the message")
        pos += size
    return pos


@cache
def reader(cls: type[Message], version: int, flexible: bool) -> Reader:
    """Returns the function that reads `version` of the message.

    The function raises ProtocolError, struct.error, IndexError or UnicodeDecodeError if the bytes are not such a message;
    `decode` turns each of these errors into ProtocolError.
    """
    return typing.cast(Reader, _ReaderSource(_Mode.PLAIN, cls, version, flexible).compile())


@cache
def counting_reader(cls: type[Message], version: int, flexible: bool) -> CountingReader:
    """Returns the function that reads `version` of the message and takes its elements from a budget."""
    return typing.cast(CountingReader, _ReaderSource(_Mode.COUNTING, cls, version, flexible).compile())


@cache
def step_reader(cls: type[Message], version: int, flexible: bool) -> StepReader:
    """Returns the generator function that reads `version` of the message, takes its elements from a budget, and yields often."""
    return typing.cast(StepReader, _ReaderSource(_Mode.STEPS, cls, version, flexible).compile())


@cache
def writer(cls: type[Message], version: int, flexible: bool) -> Writer:
    """Returns the function that writes `version` of the message; it ignores fields that the version does not have."""
    return typing.cast(Writer, _WriterSource(_Mode.PLAIN, cls, version, flexible).compile())


@cache
def counting_writer(cls: type[Message], version: int, flexible: bool) -> CountingWriter:
    """Returns the function that writes `version` of the message and takes its elements from a budget.

    The function does not count elements of tagged fields, nor the numbers in arrays of numbers.
    """
    return typing.cast(CountingWriter, _WriterSource(_Mode.COUNTING, cls, version, flexible).compile())


@cache
def step_writer(cls: type[Message], version: int, flexible: bool) -> StepWriter:
    """Returns the generator function that writes `version` of the message and yields after some elements.

    The message must not change before the generator ends.
    """
    return typing.cast(StepWriter, _WriterSource(_Mode.STEPS, cls, version, flexible).compile())


@cache
def _has_elements(cls: type[Message], version: int, flexible: bool) -> bool:
    """Returns whether the message has an array, outside tagged fields, whose elements are read and written one by one."""
    fields = [field for field in fields_of(cls, version, flexible) if field.tag is None]
    return any(
        _is_array_of_elements(field) or (field.struct is not None and _has_elements(field.struct, version, flexible))
        for field in fields
    )


def _is_array_of_elements(field: Field) -> bool:
    """Returns whether the field is an array that a single `struct` call cannot read or write."""
    return field.element is not None and not _is_number(field.element)


def _is_number(element: Field) -> bool:
    return element.wire is not None and element.wire.format is not None and element.wire.format[-1] != "s"


def decode(cls: type[Message], version: int, flexible: bool, buf: Buffer) -> Any:
    """Reads the message that fills the whole buffer.

    Raises:
        ProtocolError: the bytes are not such a message, or the buffer has more bytes after the message.
    """
    try:
        message, pos = reader(cls, version, flexible)(buf, 0, len(buf))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a {cls.__name__} of version {version}: {error}") from None
    if pos != len(buf):
        raise ProtocolError(f"{len(buf) - pos} bytes too many after a {cls.__name__} of version {version}")
    return message


def encode(message: Message, version: int, flexible: bool) -> bytes:
    """Encodes a message that holds no regions of files."""
    pieces: list[Piece] = []
    writer(type(message), version, flexible)(pieces.append, message)
    return b"".join(pieces)


class _Mode(Enum):
    """The additional work of a generated function; the value is the prefix of the function's name."""

    PLAIN = ""
    COUNTING = "count_and_"
    """The function takes the elements of arrays from a budget."""
    STEPS = "step_"
    """The function is a generator, which yields after some elements of each array."""


class _Source:
    """The lines of a function that is being generated, and the names that the lines use."""

    def __init__(self, kind: str, mode: _Mode, cls: type[Message], version: int, flexible: bool) -> None:
        self.mode = mode
        self.cls, self.version, self.flexible = cls, version, flexible
        self.function = f"{mode.value}{kind}_{cls.__name__}_v{version}"
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"ProtocolError": ProtocolError}
        self.depth = 1

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def use(self, prefix: str, value: Any) -> str:
        """Adds a value to the function's scope and returns its name."""
        name = f"{prefix}{len(self.scope)}"
        self.scope[name] = value
        return name

    def takes_steps(self, cls: type[Message]) -> bool:
        """Returns whether a generator reads or writes a struct of this class."""
        return self.mode is _Mode.STEPS and _has_elements(cls, self.version, self.flexible)

    def yield_sometimes(self) -> None:
        """In a generator, emits a yield after some elements of an array; `number` is the index of the element."""
        if self.mode is _Mode.STEPS:
            self.emit(f"if not number % {ELEMENTS_A_YIELD}:")
            self.emit("    yield")

    def finish(self, signature: str) -> Any:
        source = f"def {self.function}({signature}):\n" + "\n".join(self.lines) + "\n"
        path = f"<wirekafka codec {self.cls.__module__}.{self.function}{'' if self.flexible else ' rigid'}>"
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        exec(compile(source, path, "exec"), self.scope)
        return self.scope[self.function]


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Returns the fields in order; neighbouring fields of fixed size form one run."""
    runs: list[list[Field]] = []
    for field in fields:
        is_fixed = field.wire is not None and field.wire.format is not None
        if is_fixed and runs and runs[-1][0].wire is not None and runs[-1][0].wire.format is not None:
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def _format_of(run: list[Field]) -> str | None:
    formats = [field.wire.format for field in run if field.wire is not None and field.wire.format is not None]
    return ">" + "".join(formats) if formats else None


class _ReaderSource(_Source):
    def __init__(self, mode: _Mode, cls: type[Message], version: int, flexible: bool) -> None:
        super().__init__("read", mode, cls, version, flexible)
        self.scope |= {"cls": cls, "new": object.__new__, "uvarint": read_unsigned_varint, "skip_tags": skip_tagged_fields}
        self.is_counting = mode is not _Mode.PLAIN
        self.arguments = "buf, pos, end, budget" if self.is_counting else "buf, pos, end"

    def compile(self) -> Any:
        fields = fields_of(self.cls, self.version, self.flexible)
        if self.mode is _Mode.STEPS:
            self.emit("yield")
        present = {field.name for field in fields if field.tag is None}
        self.emit("self = new(cls)")
        for name, default in self.cls.field_defaults.items():
            if name not in present:
                value = "[]" if isinstance(default, list) else self.use("default", default)
                self.emit(f"self.{name} = {value}")
        for run in _runs([field for field in fields if field.tag is None]):
            self.read_run(run)
        if self.flexible:
            self.read_tags([field for field in fields if field.tag is not None])
        self.emit("return self, pos")
        return self.finish(self.arguments)

    def read_run(self, run: list[Field]) -> None:
        layout = _format_of(run)
        if layout is None:
            self.read_value(run[0], f"self.{run[0].name}")
            return
        packed = struct.Struct(layout)
        targets = ", ".join(f"self.{field.name}" for field in run)
        self.emit(f"{targets}, = {self.use('unpack', packed.unpack_from)}(buf, pos)")
        self.emit(f"pos += {packed.size}")

    def read_value(self, field: Field, target: str) -> None:
        if field.wire is not None and field.wire.format is not None:
            packed = struct.Struct(">" + field.wire.format)
            self.emit(f"{target}, = {self.use('unpack', packed.unpack_from)}(buf, pos)")
            self.emit(f"pos += {packed.size}")
        elif field.struct is not None:
            self.read_struct(field, target)
        elif field.element is not None:
            self.read_array(field, field.element, target)
        else:
            self.read_blob(field, target)

    def read_struct(self, field: Field, target: str) -> None:
        assert field.struct is not None
        make: Any = counting_reader if self.is_counting else reader
        steps = ""
        if self.takes_steps(field.struct):
            make, steps = step_reader, "yield from "
        read = f"{steps}{self.use('read', make(field.struct, self.version, self.flexible))}"
        if not field.can_be_null:
            self.emit(f"{target}, pos = {read}({self.arguments})")
            return
        # A null struct is the byte -1, but in a tagged field the varint 0, as Kafka's generator writes it. Otherwise a 1 comes
        # before the struct.
        self.emit("pos += 1")
        self.emit("if buf[pos - 1] > 127:" if field.tag is None else "if buf[pos - 1] == 0:")
        self.emit(f"    {target} = None")
        self.emit("else:")
        self.emit(f"    {target}, pos = {read}({self.arguments})")

    def begin_length(self, target: str, empty: str) -> None:
        """Reads an empty value of a flexible version. The lines that are emitted next, one deeper, read any other value.

        A request has many empty strings and arrays. The general way takes 0.13 us for an empty string (2026-11).
        """
        if self.flexible:
            self.emit("n = buf[pos]")
            self.emit("if n == 1:")
            self.emit("    pos += 1")
            self.emit(f"    {target} = {empty}")
            self.emit("else:")
            self.depth += 1

    def read_length(self, rigid: str, longest: int | None = None) -> None:
        """Reads the next length into `n`: the length plus 1 or 0 for null in a flexible version; otherwise -1 for null.

        Args:
            longest: the greatest length that a flexible version may have.
        """
        if self.flexible:
            self.emit("if n < 128:")
            self.emit("    pos += 1")
            self.emit("else:")
            self.emit("    n, pos = uvarint(buf, pos, end)")
            if longest is not None:
                self.emit(f"    if n > {longest + 1}:")
                self.emit(f"        raise ProtocolError('a string of {self.cls.__name__} is longer than a string can be')")
        else:
            packed = struct.Struct(">" + rigid)
            self.emit(f"n, = {self.use('unpack', packed.unpack_from)}(buf, pos)")
            self.emit(f"pos += {packed.size}")

    def begin_present(self, field: Field, target: str) -> None:
        self.emit("if not n:" if self.flexible else "if n < 0:")
        if field.can_be_null:
            self.emit(f"    {target} = None")
        else:
            self.emit(f"    raise ProtocolError('{self.cls.__name__}.{field.name} must not be null')")
        self.emit("else:")
        self.depth += 1

    def read_blob(self, field: Field, target: str) -> None:
        assert field.wire is not None
        is_string = field.wire.name == "string"
        # A longer string could be read in a flexible version, but not written in a version whose lengths have two bytes. Kafka's
        # readers refuse it too.
        self.begin_length(target, {"string": "''", "bytes": "b''", "records": "buf[pos:pos]"}[field.wire.name])
        self.read_length("h" if is_string else "i", LONGEST_STRING if is_string else None)
        self.begin_present(field, target)
        self.emit("stop = pos + n - 1" if self.flexible else "stop = pos + n")
        self.emit("if stop > end:")
        self.emit(f"    raise ProtocolError('{self.cls.__name__}.{field.name} ends after the message')")
        string = "str(buf[pos:stop], 'utf-8')"
        value = {"string": string, "bytes": "bytes(buf[pos:stop])", "records": "buf[pos:stop]"}
        self.emit(f"{target} = {value[field.wire.name]}")
        self.emit("pos = stop")
        self.depth -= 1 + self.flexible

    def read_array(self, field: Field, element: Field, target: str) -> None:
        self.begin_length(target, "[]")
        self.read_length("i")
        self.begin_present(field, target)
        if self.flexible:
            self.emit("n -= 1")
        self.emit(f"if n * {least_size(element, self.version, self.flexible)} > end - pos:")
        self.emit(f"    raise ProtocolError('{self.cls.__name__}.{field.name} has more elements than bytes are left')")
        if self.is_counting:
            self.emit("budget.take(n)")
        if _is_number(element):
            assert element.wire is not None
            if self.is_counting:
                self.emit(f"if n > {MOST_NUMBERS}:")
                self.emit(f"    raise ProtocolError('{self.cls.__name__}.{field.name} has more than {MOST_NUMBERS} numbers')")
            unpack = self.use("unpack", struct.unpack_from)
            self.emit(f"{target} = list({unpack}(f'>{{n}}{element.wire.format}', buf, pos))")
            self.emit(f"pos += n * {element.wire.size}")
        else:
            self.emit(f"{target} = items = []")
            if self.mode is _Mode.STEPS:
                self.emit("budget.take_objects(n)")
                self.emit("left = budget.left")
            self.emit("for number in range(n):")
            self.depth += 1
            self.read_value(element, "item")
            self.emit("items.append(item)")
            if self.mode is _Mode.STEPS:
                self.emit(f"if not number % {ELEMENTS_A_YIELD} or left - budget.left > {NUMBERS_A_YIELD}:")
                self.emit("    left = budget.left")
                self.emit("    yield")
            self.depth -= 1
        self.depth -= 1 + self.flexible

    def read_tags(self, tagged: list[Field]) -> None:
        if not tagged:
            self.emit("if buf[pos]:")
            self.emit(f"    pos = skip_tags({self.arguments})")
            self.emit("else:")
            self.emit("    pos += 1")
            return
        self.emit("count = buf[pos]")
        self.emit("pos += 1")
        self.emit("if count:")
        self.depth += 1
        self.emit("if count > 127:")
        self.emit("    count, pos = uvarint(buf, pos - 1, end)")
        if self.is_counting:
            self.emit("budget.take(count)")
        self.emit("for _ in range(count):")
        self.depth += 1
        self.emit("number, pos = uvarint(buf, pos, end)")
        self.emit("size, pos = uvarint(buf, pos, end)")
        self.emit("behind = pos + size")
        self.emit("if behind > end:")
        self.emit("    raise ProtocolError('a tagged field ends after the message')")
        for index, field in enumerate(tagged):
            self.emit(f"{'el' if index else ''}if number == {field.tag}:")
            self.depth += 1
            self.read_value(field, f"self.{field.name}")
            self.emit("if pos != behind:")
            self.emit(f"    raise ProtocolError('tagged field {self.cls.__name__}.{field.name} has another size')")
            self.depth -= 1
        self.emit("pos = behind")
        self.depth -= 2


class _WriterSource(_Source):
    """A writer, which joins neighbouring pieces of the output: each piece costs its later readers 0.1 us (2026-11)."""

    def __init__(self, mode: _Mode, cls: type[Message], version: int, flexible: bool) -> None:
        super().__init__("write", mode, cls, version, flexible)
        self.scope |= {"uvarint": unsigned_varint, "small": SMALL_VARINTS}
        self.is_counting = mode is _Mode.COUNTING
        self.is_in_tags = False
        self.next_piece: list[str] = []
        """Expressions for bytes that belong to the next piece; their variables must not change before `add_piece`."""

    def compile(self) -> Any:
        if self.mode is _Mode.STEPS:
            self.emit("yield")
        fields = fields_of(self.cls, self.version, self.flexible)
        for run in _runs([field for field in fields if field.tag is None]):
            self.write_run(run)
        if self.flexible:
            self.write_tags([field for field in fields if field.tag is not None])
        self.add_piece()
        if not self.lines:
            self.emit("pass")
        return self.finish("add, self, budget" if self.is_counting else "add, self")

    def add_piece(self, *more: str) -> None:
        """Adds a piece of the expressions that are in `next_piece` and of these, if there are any."""
        expressions = [*self.take_piece(), *more]
        if expressions:
            self.emit(f"add({' + '.join(expressions)})")

    def take_piece(self) -> list[str]:
        """Empties `next_piece` and returns what was in it."""
        taken, self.next_piece = self.next_piece, []
        return taken

    def write_run(self, run: list[Field]) -> None:
        layout = _format_of(run)
        if layout is None:
            self.write_value(run[0], f"self.{run[0].name}")
            return
        pack = self.use("pack", struct.Struct(layout).pack)
        self.next_piece.append(f"{pack}({', '.join(f'self.{field.name}' for field in run)})")

    def write_value(self, field: Field, source: str) -> None:
        if field.wire is not None and field.wire.format is not None:
            self.next_piece.append(f"{self.use('pack', struct.Struct('>' + field.wire.format).pack)}({source})")
        elif field.struct is not None:
            self.write_struct(field, source)
        elif field.element is not None:
            self.write_array(field, field.element, source)
        else:
            self.write_blob(field, source)

    def write_struct(self, field: Field, source: str) -> None:
        assert field.struct is not None
        make: Any = writer
        steps, budget = "", ""
        if not self.is_in_tags and self.is_counting:
            make, budget = counting_writer, ", budget"
        elif not self.is_in_tags and self.takes_steps(field.struct):
            make, steps = step_writer, "yield from "
        write = f"{steps}{self.use('write', make(field.struct, self.version, self.flexible))}"
        call = f"{write}(add, {source}{budget})"
        if not field.can_be_null:
            self.add_piece()
            self.emit(call)
            return
        self.begin_present(source, b"\xff" if field.tag is None else b"\0")
        self.add_piece(repr(b"\1"))
        self.emit(call)
        self.depth -= 1

    def begin_present(self, source: str, null: bytes) -> None:
        """Writes null if the value is None; the lines that are emitted next, one deeper, write a value that is not None."""
        before = self.take_piece()
        self.emit(f"if {source} is None:")
        self.depth += 1
        self.next_piece = [*before, repr(null)]
        self.add_piece()
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        self.next_piece = before

    def write_length(self, rigid: str) -> None:
        if self.flexible:
            self.emit("n += 1")
            self.next_piece.append("(small[n] if n < 1024 else uvarint(n))")
        else:
            self.next_piece.append(f"{self.use('pack', struct.Struct('>' + rigid).pack)}(n)")

    def begin_present_blob_or_array(self, field: Field, source: str, rigid: str) -> None:
        if field.can_be_null:
            self.begin_present(source, b"\0" if self.flexible else struct.pack(">" + rigid, -1))

    def write_blob(self, field: Field, source: str) -> None:
        assert field.wire is not None
        is_string = field.wire.name == "string"
        rigid = "h" if is_string else "i"
        self.begin_present_blob_or_array(field, source, rigid)
        self.emit(f"value = {source}.encode()" if is_string else f"value = {source}")
        self.emit("n = len(value)")
        self.write_length(rigid)
        if is_string:
            self.add_piece("value")
        else:
            # Bytes may be large, and records a region of a file.
            self.add_piece()
            self.emit("add(value)")
        self.depth -= field.can_be_null

    def write_array(self, field: Field, element: Field, source: str) -> None:
        self.begin_present_blob_or_array(field, source, "i")
        self.emit(f"n = len({source})")
        if self.is_counting and not (self.is_in_tags or _is_number(element)):
            self.emit("budget.left -= n")
            self.emit("if budget.left < 0:")
            self.emit("    budget.refuse()")
        self.write_length("i")
        if _is_number(element):
            assert element.wire is not None
            self.add_piece(f"{self.use('pack', struct.pack)}(f'>{{len({source})}}{element.wire.format}', *{source})")
            self.depth -= field.can_be_null
            return
        self.add_piece()
        takes_steps = self.mode is _Mode.STEPS and not self.is_in_tags
        self.emit(f"for number, item in enumerate({source}):" if takes_steps else f"for item in {source}:")
        self.depth += 1
        self.write_value(element, "item")
        self.add_piece()
        if takes_steps:
            self.yield_sometimes()
        self.depth -= 1 + field.can_be_null

    def write_tags(self, tagged: list[Field]) -> None:
        """Writes the section of tagged fields. As in Kafka, a tagged field that holds its default is left out."""
        if not tagged:
            self.next_piece.append(repr(b"\0"))
            return
        tests = {field.name: self.differs(field) for field in sorted(tagged, key=lambda field: field.tag or 0)}
        before = self.take_piece()
        self.emit(f"if {' or '.join(tests.values())}:")
        self.depth += 1
        self.next_piece = before
        self.add_piece()
        self.write_set_tags(tagged, tests)
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        self.next_piece = [*before, repr(b"\0")]
        self.add_piece()
        self.depth -= 1

    def differs(self, field: Field) -> str:
        """Returns the expression that is true if the field does not hold its default."""
        if field.default is None:
            return f"self.{field.name} is not None"
        if field.default == [] and not field.can_be_null:
            return f"self.{field.name}"
        return f"self.{field.name} != {self.use('default', field.default)}"

    def write_set_tags(self, tagged: list[Field], tests: dict[str, str]) -> None:
        """Writes a section of tagged fields, of which at least one does not hold its default."""
        self.is_in_tags = True
        self.emit("tags = []")
        self.emit("outer = add")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            self.emit(f"if {tests[field.name]}:")
            self.depth += 1
            self.emit("pieces = []")
            self.emit("add = pieces.append")
            self.write_value(field, f"self.{field.name}")
            self.add_piece()
            self.emit("value = b''.join(pieces)")
            self.emit(f"tags.append({unsigned_varint(field.tag or 0)!r} + uvarint(len(value)) + value)")
            self.depth -= 1
        self.emit("outer(uvarint(len(tags)))")
        self.emit("for value in tags:")
        self.emit("    outer(value)")
