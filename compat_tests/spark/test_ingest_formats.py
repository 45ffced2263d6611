"""`wirekafka pipeline ingest`: each sink with each format, changes of the schema, dead letters, and batches that are repeated."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.harness.broker import Broker
from compat_tests.harness.topics import create_topic
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.ingest.dead_letters import (
    OFFSET_HEADER,
    PARTITION_HEADER,
    QUERY_HEADER,
    REASON_HEADER,
    TOPIC_HEADER,
    origins,
)
from wirekafka.pipelines.ingest.options import IngestOptions
from wirekafka.pipelines.ingest.query import describe, start_ingest
from wirekafka.pipelines.kafka import Cluster, TopicSelection
from wirekafka.pipelines.lake.lake import Lake, open_lake
from wirekafka.pipelines.lake.layout import HEADERS_TYPE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark-ingest")]

START_MS = 1_700_000_000_000
QUERY_TIMEOUT_S = 240
SINKS = pytest.mark.parametrize("sink", ["parquet", "delta"])


def produce(broker: Broker, topic: str, values: Sequence[object], **settings: object) -> None:
    """Produces values in this order to partition 0: bytes and None as they are, others as JSON. The keys are numbers."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number, value in enumerate(values):
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, key=b"k%d" % number, partition=0, timestamp=START_MS + number, **settings)
    assert producer.flush(30) == 0


class Ingest:
    """Ingests what a topic has, as often as it is told to, into one lake."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path, topic: str, **options: Any) -> None:
        self.spark, self.directory = spark, directory
        selection = options.pop("topics", TopicSelection((topic,)))
        self.topic = topic
        self.base: dict[str, Any] = {
            "cluster": Cluster(broker.bootstrap),
            "lake": str(directory / f"lake-of-{topic}"),
            "topics": selection,
            "once": True,
            **options,
        }

    def options(self, **changes: Any) -> IngestOptions:
        return IngestOptions(**{**self.base, **changes})

    def run(self, **changes: Any) -> Lake:
        """Runs the query until it has ingested all; returns the lake."""
        options = self.options(**changes)
        query = start_ingest(self.spark, options)
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), "the ingest did not end"
        finally:
            query.stop()
        return open_lake(self.spark, options.lake)

    def rows(self, topic: str | None = None) -> list[Any]:
        """Returns the rows of a topic's table in the order of their offsets."""
        lake = open_lake(self.spark, self.base["lake"])
        return lake.read(topic or self.topic).orderBy("partition", "offset").collect()

    def values(self) -> dict[int, Any]:
        """Returns the decoded values by offset, as dictionaries."""
        return {row.offset: row.value and row.value.asDict(recursive=True) for row in self.rows()}

    def dead_letters(self) -> list[Any]:
        """Returns the committed records of the dead-letter topic."""
        topic = self.options().dead_letter_topic
        assert topic is not None
        return committed(self.base["cluster"].bootstrap, topic)

    def reasons(self) -> dict[int, str]:
        """Returns the reason of each dead letter by the offset that the record had."""
        headers = [dict(message.headers()) for message in self.dead_letters()]
        reasons = {int(each[OFFSET_HEADER]): each[REASON_HEADER].decode() for each in headers}
        assert len(reasons) == len(headers), "a dead letter is there twice"
        return reasons


def type_of_values(lake: Lake, topic: str) -> str:
    """Returns the type of the column `value`."""
    return str(lake.read(topic).schema["value"].dataType.simpleString())


def committed(bootstrap: str, topic: str) -> list[Any]:
    """Returns the committed records of partition 0 of a topic; none if it does not exist."""
    config = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**config, "enable.partition.eof": True})
    try:
        if topic not in consumer.list_topics(timeout=60).topics:
            return []
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        while True:
            message = consumer.poll(30)
            assert message is not None, "the dead-letter topic has no end"
            if message.error() is not None:
                return found
            found.append(message)
    finally:
        consumer.close()


MakeIngest = Callable[..., Ingest]


@pytest.fixture
def make_ingest(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> MakeIngest:
    """Makes ingests from the topic of the test, which exists with one partition."""
    create_topic(broker.bootstrap, topic)
    return lambda **options: Ingest(spark, broker, tmp_path, topic, **options)


@SINKS
def test_raw_ingest_keeps_every_part_of_the_records_and_reads_nothing_twice(
    make_ingest: MakeIngest, broker: Broker, topic: str, sink: str
) -> None:
    ingest = make_ingest(sink=sink, compact_every=2)
    produce(broker, topic, [b"\x00\xff", None, b""], headers=[("n", b"1"), ("n", None), ("", b"\xff"), ("n", b"")])
    produce(broker, topic, [b"without headers"])
    for _ in range(2):
        ingest.run()
        rows = ingest.rows()
        assert [row.value and bytes(row.value) for row in rows] == [b"\x00\xff", None, b"", b"without headers"]
        assert [(row.topic, row.partition, row.offset) for row in rows] == [(topic, 0, offset) for offset in range(4)]
    assert [bytes(row.key) for row in rows] == [b"k0", b"k1", b"k2", b"k0"]
    headers = [(header.key, header.value and bytes(header.value)) for header in rows[0].headers]
    assert headers == [("n", b"1"), ("n", None), ("", b"\xff"), ("n", b"")]
    assert rows[3].headers is None
    assert [row.timestamp_type for row in rows] == ["CreateTime"] * 4
    assert rows[1].timestamp.timestamp() * 1000 == pytest.approx(START_MS + 1)
    assert {str(row.date) for row in rows} == {"2023-11-14"}
    produce(broker, topic, [b"later"])
    lake = ingest.run()
    assert [row.value and bytes(row.value) for row in ingest.rows()] == [b"\x00\xff", None, b"", b"without headers", b"later"]
    files = {name for row in lake.read(topic).selectExpr("input_file_name() AS name").collect() for name in row}
    assert len(files) == 1, "the second batch merged its file with that of the first"


@SINKS
def test_json_by_a_schema_file_reads_its_types_and_adds_what_it_lacks(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path, sink: str
) -> None:
    schema = tmp_path / "orders.ddl"
    schema.write_text("id INT, day DATE, price DECIMAL(10,2), tags ARRAY<STRING>, more MAP<STRING, BIGINT>")
    ingest = make_ingest(sink=sink, record_format="json", schema_files={"": schema}, keep_value_bytes=True)
    good = {"id": 1, "day": "2024-02-29", "price": 1.5, "tags": ["a"], "more": {"x": 1}, "new": {"deep": [{"a": True}]}}
    produce(broker, topic, [good, None, {"id": "1"}, {"more": {"x": "y"}}, {"day": "29.2.2024"}])
    lake = ingest.run()
    assert type_of_values(lake, topic) == (
        "struct<id:int,day:date,price:decimal(10,2),tags:array<string>,more:map<string,bigint>,"
        "new:struct<deep:array<struct<a:boolean>>>>"
    )
    values = ingest.values()
    assert set(values) == {0, 1}
    assert values[1] is None
    assert (values[0]["id"], str(values[0]["day"]), str(values[0]["price"])) == (1, "2024-02-29", "1.50")
    assert values[0]["new"] == {"deep": [{"a": True}]}
    assert bytes(ingest.rows()[0].value_bytes) == json.dumps(good).encode()
    assert set(ingest.reasons()) == {2, 3, 4}
    produce(broker, topic, [{"id": 2**31, "price": 10**12}, {"day": "2024-02-29T10:00:00"}, {"price": 0.125}, {"id": 2**70}])
    lake = ingest.run()
    assert type_of_values(lake, topic).startswith("struct<id:decimal(22,0),day:timestamp_ntz,price:decimal(23,3),tags:")
    values = ingest.values()
    assert [int(values[offset]["id"]) for offset in (0, 5, 8)] == [1, 2**31, 2**70]
    assert [str(values[offset]["day"]) for offset in (0, 6)] == ["2024-02-29 00:00:00", "2024-02-29 10:00:00"]
    assert [float(values[offset]["price"]) for offset in (0, 5, 7)] == [1.5, 1e12, 0.125]
    assert set(ingest.reasons()) == {2, 3, 4}


@SINKS
def test_json_without_a_schema_file_infers_it_and_later_records_extend_it(
    make_ingest: MakeIngest, broker: Broker, topic: str, sink: str
) -> None:
    ingest = make_ingest(sink=sink, record_format="json")
    produce(broker, topic, [{"a": 1, "b": None}, {"a": 2, "c": {"d": [1]}}, {"e": 0.5}, {"f": 1}, {"f": "mixed"}])
    lake = ingest.run()
    assert type_of_values(lake, topic) == "struct<a:bigint,c:struct<d:array<bigint>>,e:double,f:string>"
    produce(broker, topic, [{"a": 2**63, "b": "x"}, {"c": {"d": [2**64], "D": 1}}, {"c": {"new": [{"g": 1}]}}, {"a": 1.25}])
    produce(broker, topic, [{"e": "no"}])
    lake = ingest.run()
    assert type_of_values(lake, topic) == (
        "struct<a:decimal(22,2),c:struct<d:array<decimal(20,0)>,new:array<struct<g:bigint>>>,e:double,f:string,b:string>"
    )
    values = ingest.values()
    assert set(values) == {0, 1, 2, 3, 4, 5, 7, 8}
    assert [int(values[offset]["a"]) for offset in (0, 1, 5)] == [1, 2, 2**63]
    assert float(values[8]["a"]) == 1.25
    assert (values[3]["f"], values[4]["f"], values[5]["b"], values[0]["b"]) == ("1", "mixed", "x", None)
    assert values[7]["c"] == {"d": None, "new": [{"g": 1}]}
    assert ingest.reasons() == {
        6: "c.D: the field d has the same name but for case",
        9: "e: string does not fit double",
    }


def test_json_that_does_not_parse_goes_to_the_dead_letters_unchanged(make_ingest: MakeIngest, broker: Broker, topic: str) -> None:
    ingest = make_ingest(record_format="json")
    bad = {
        b"": "not a JSON object",
        b"null": "not a JSON object",
        b"[1]": "not a JSON object",
        b'"text"': "not a JSON object",
        b'{"a":1': "not valid JSON, or an object has a key twice",
        b"{'a':1}": "not valid JSON, or an object has a key twice",
        b'{"a":NaN}': "not valid JSON, or an object has a key twice",
        b'{"a":1,"a":2}': "not valid JSON, or an object has a key twice",
        b'{"a":1} {"b":2}': "not valid JSON, or an object has a key twice",
        b'{"a":1}}': "not valid JSON, or an object has a key twice",
        b'{"a":1}] [': "text after the value, or a value out of the range of its type in: struct<a:bigint>",
        b'{"a":1},{"a":2}': "text after the value, or a value out of the range of its type in: struct<a:bigint>",
        b'{"a":"\xff"}': "not UTF-8",
        b'{"":1}': ": a column needs a name",
        b'{"t":"\\ud800"}': "a lone surrogate, which is half of a character",
        b'{"t":"\\\\\\udc00"}': "a lone surrogate, which is half of a character",
        b'{"t":"\\\\ud800\\udc00"}': "a lone surrogate, which is half of a character",
        b'{"\\udc00":1}': "a lone surrogate, which is half of a character",
    }
    produce(broker, topic, [{"a": 0}, b' \n{"a":1} ', *bad], headers=[("h", b"1"), ("h", None), ("", b"")])
    query_id = ingest.run().description.query_id
    assert query_id is not None
    assert ingest.values() == {0: {"a": 0}, 1: {"a": 1}}
    assert ingest.reasons() == dict(enumerate(bad.values(), 2))
    letters = ingest.dead_letters()
    assert [(each.key(), each.value(), each.timestamp()[1]) for each in letters] == [
        (b"k%d" % number, value, START_MS + number) for number, value in enumerate(bad, 2)
    ]
    assert letters[0].headers() == [
        ("h", b"1"),
        ("h", None),
        ("", b""),
        ("__wirekafka.errors.topic", topic.encode()),
        ("__wirekafka.errors.partition", b"0"),
        ("__wirekafka.errors.offset", b"2"),
        ("__wirekafka.errors.timestamp", b"%d" % (START_MS + 2)),
        ("__wirekafka.errors.exception.message", b"not a JSON object"),
        ("__wirekafka.errors.query", query_id.encode()),
    ]
    ingest.run()
    assert len(ingest.dead_letters()) == len(bad)


@SINKS
def test_json_with_deep_values_and_names_that_spark_confuses_goes_to_the_dead_letters(
    make_ingest: MakeIngest, broker: Broker, topic: str, sink: str
) -> None:
    ingest = make_ingest(record_format="json", sink=sink)
    deep = [b'{"a":' * levels + b"1" + b"}" * levels for levels in (51, 300, 990, 2000)]
    deep += [b'{"a":' + b"[" * levels + b"]" * levels + b"}" for levels in (50, 300, 990, 100_000)]
    produce(broker, topic, [{"s": "\U0001f600"}, b'{"s":"\\ud83d\\ude00\\\\ud800"}', *deep, {"\u017f": 1}])
    ingest.run()
    assert ingest.values() == {0: {"s": "\U0001f600"}, 1: {"s": "\U0001f600\\ud800"}}
    reasons = ingest.reasons()
    assert reasons.pop(len(deep) + 2) == "\u017f: the field s has the same name but for case"
    assert reasons == dict.fromkeys(range(2, len(deep) + 2), "objects and arrays in more than 50 levels")


@SINKS
def test_json_with_numbers_that_no_column_holds_goes_to_the_dead_letters(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path, sink: str
) -> None:
    schema = tmp_path / "numbers.ddl"
    schema.write_text("d DOUBLE, f FLOAT, s STRING, l ARRAY<FLOAT>, p DECIMAL(10,2), i BIGINT")
    ingest = make_ingest(record_format="json", sink=sink, schema_files={"": schema})
    good = [
        b'{"d":1e308,"f":3e38,"s":"Infinity 1e400","l":[-0.0,null],"p":-0,"i":-0}',
        b'{"i":12345678901234567890,"p":12345678901234567890.25,"d":0.%s1e400}' % (b"0" * 300),
        b'{"s":{"Infinity":"1e400"},"new":1e-400}',
    ]
    out_of_range = "a number out of the range of double"
    bad = {
        b'{"d":1e400}': out_of_range,
        b'{"d":-%s}' % (b"1" * 400): out_of_range,
        b'{"s":[1e400]}': out_of_range,
        b'{"other":1e999999999999}': out_of_range,
        b'{"f":-3.5e38}': "text after the value, or a value out of the range of its type in: ",
        b'{"l":[1,1e39]}': "text after the value, or a value out of the range of its type in: ",
        b'{"p":1e400}': out_of_range,
        b'{"d":NaN}': "not valid JSON, or an object has a key twice",
        b'{"d":-Infinity}': "not valid JSON, or an object has a key twice",
        b'{"d":%s}' % (b"1" * 1500): "not valid JSON, or too large: Spark reads at most 1000 digits",
        b'\xef\xbb\xbf{"d":1}': "not a JSON object",
    }
    produce(broker, topic, [*good, *bad])
    lake = ingest.run()
    assert type_of_values(lake, topic).endswith("p:decimal(22,2),i:decimal(20,0),new:double>")
    values = ingest.values()
    assert [(values[0][name], values[0]["l"]) for name in ("d", "s")] == [(1e308, [0.0, None]), ("Infinity 1e400", [0.0, None])]
    assert (int(values[1]["i"]), str(values[1]["p"]), values[1]["d"]) == (12345678901234567890, "12345678901234567890.25", 1e99)
    assert (values[2]["s"], values[2]["new"]) == ('{"Infinity":"1e400"}', 0.0)
    reasons = ingest.reasons()
    assert sorted(reasons) == list(range(3, 3 + len(bad)))
    for offset, expected in enumerate(bad.values(), 3):
        assert reasons[offset].startswith(expected)


def test_json_of_a_topic_without_a_field_yet_has_the_reason_of_its_text(
    make_ingest: MakeIngest, broker: Broker, topic: str
) -> None:
    ingest = make_ingest(record_format="json")
    produce(broker, topic, [b"{}", b"{'a':1}", b'{"a":1e400}', None])
    ingest.run()
    assert ingest.reasons() == {
        0: "no record of the topic has had a field yet",
        1: "not valid JSON, or an object has a key twice",
        2: "a number out of the range of double",
    }


def avro_schema(**fields: object) -> dict[str, object]:
    """Returns an Avro schema of a record."""
    return {"type": "record", "name": "Reading", "fields": [{"name": name, "type": each} for name, each in fields.items()]}


def long(number: int) -> bytes:
    """Returns an Avro int or long: zigzag, 7 bits a byte."""
    rest, out = number * 2 if number >= 0 else -number * 2 - 1, b""
    while rest > 127:
        out += bytes([rest & 127 | 128])
        rest >>= 7
    return out + bytes([rest])


def text(characters: str) -> bytes:
    """Returns an Avro string."""
    return long(len(characters.encode())) + characters.encode()


def framed(schema_id: int, data: bytes) -> bytes:
    """Returns a record in Confluent's framing."""
    return b"\0" + schema_id.to_bytes(4, "big") + data


@SINKS
def test_avro_without_framing_is_read_by_its_schema_file(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path, sink: str
) -> None:
    schema = tmp_path / "reading.avsc"
    schema.write_text(json.dumps(avro_schema(place="string", degrees=["null", "double"], tags={"type": "array", "items": "int"})))
    ingest = make_ingest(sink=sink, record_format="avro", schema_files={topic: schema})
    good = text("Kyiv") + long(1) + struct.pack("<d", -2.5) + long(2) + long(7) + long(8) + long(0)
    nothing = text("") + long(0) + long(0)
    produce(broker, topic, [good, None, nothing, b"\x7f", b"", good[:-5], good + b"\0"])
    lake = ingest.run()
    assert type_of_values(lake, topic) == "struct<place:string,degrees:double,tags:array<int>>"
    assert ingest.values() == {
        0: {"place": "Kyiv", "degrees": -2.5, "tags": [7, 8]},
        1: None,
        2: {"place": "", "degrees": None, "tags": []},
    }
    assert ingest.reasons() == dict.fromkeys((3, 4, 5, 6), "not Avro of the schema")
    schema.write_text(json.dumps(avro_schema(place="string")))
    produce(broker, topic, [text("Lviv")])
    with pytest.raises(Exception, match="the Avro schema of the topic .* has changed"):
        ingest.run()


def test_avro_that_is_damaged_or_hostile_goes_to_the_dead_letters(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path
) -> None:
    wide = avro_schema(n=["null", "long"], b="bytes", s="string", a={"type": "array", "items": "long"})
    tail = {"name": "m", "type": {"type": "map", "values": "null"}}, {"name": "z", "type": {"type": "array", "items": "null"}}
    wide["fields"] = [*wide["fields"], *tail]
    deep: object = "int"
    for level in range(60):
        deep = {"type": "record", "name": f"Level{level}", "fields": [{"name": "f", "type": deep}]}
    itself = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    for number, schema in enumerate((wide, deep, itself, "int")):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    (tmp_path / "4.avsc").write_text('{"type":"array","items":' * 5000)
    head, nothing = [long(1), long(5)], long(0)
    good = b"".join([*head, text("b"), text("s"), long(1), long(9), *[nothing] * 3])
    sized = b"".join([*head, text("b"), text("s"), long(-1), long(1), long(9), *[nothing] * 3])
    huge, claims = long(2**31 - 20), [long(2**62), long(-1), long(-(2**63)), long(2**40), b"\xff" * 10]
    bad = [good[:-1], good + b"\0", good + good, long(2) + good[1:], long(-1) + good[1:], b""]
    for size in (huge, *claims):
        bad += [b"".join([*head, size]), b"".join([*head, text("b"), size]), b"".join([*head, text("b"), text("s"), size])]
    bad += [b"".join([*head, text("b"), text("s"), nothing, size, text("k")]) for size in (huge, *claims)]
    bad += [b"".join([*head, text("b"), text("s"), nothing, nothing, size]) for size in (huge, *claims)]
    refused = [framed(number, b"\2" * 100_000) for number in (1, 2, 3, 4)]
    produce(broker, topic, [framed(0, each) for each in (good, sized)] + [framed(0, each) for each in bad] + refused)
    ingest = make_ingest(record_format="avro-confluent", schema_registry=str(tmp_path))
    ingest.run()
    value = {"n": 5, "b": bytearray(b"b"), "s": "s", "a": [9]}
    assert ingest.values() == {0: value, 1: value}
    reasons = ingest.reasons()
    assert [reasons.pop(offset) for offset in range(2, 2 + len(bad))] == ["not Avro of schema 0"] * len(bad)
    too_deep, recursive, no_record, broken = reasons.values()
    assert too_deep == "schema 1: it has more than 50 levels"
    assert "recursive" in recursive
    assert no_record == "schema 3: it is of type int"
    assert broken.startswith("schema 4: ")


class Registry:
    """A schema registry that answers `GET /schemas/ids/ID` for one user."""

    def __init__(self) -> None:
        self.answers: dict[int, dict[str, object]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802
                wanted = re.fullmatch(r"/schemas/ids/(\d+)", self.path)
                answer = registry.answers.get(int(wanted[1])) if wanted else None
                allowed = self.headers["Authorization"] == "Basic dTpwQHNz"  # u:p@ss
                self.send_response(401 if not allowed else 404 if answer is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(answer or {"error_code": 40403}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://u:p%40ss@{self.address}"

    def add(self, schema_id: int, **fields: object) -> None:
        """Registers a schema."""
        self.answers[schema_id] = {"schema": json.dumps(avro_schema(**fields))}


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Runs a registry."""
    running = Registry()
    thread = Thread(target=running.server.serve_forever)
    thread.start()
    yield running
    running.server.shutdown()
    thread.join()
    running.server.server_close()


@SINKS
def test_framed_avro_of_several_schemas_widens_the_table(
    make_ingest: MakeIngest, broker: Broker, topic: str, registry: Registry, sink: str
) -> None:
    ingest = make_ingest(sink=sink, record_format="avro-confluent", schema_registry=registry.url)
    registry.add(1, n="int", x="float", inner=avro_schema(a="int") | {"name": "Inner"})
    registry.add(70_000, n="long", name="string", x="double")
    registry.add(3, n="string")
    registry.answers[4] = {"schema": "message M {}", "schemaType": "PROTOBUF"}
    first = framed(1, long(7) + struct.pack("<f", 0.5) + long(9))
    produce(broker, topic, [first])
    lake = ingest.run()
    assert type_of_values(lake, topic) == "struct<n:int,x:float,inner:struct<a:int>>"
    second = framed(70_000, long(2**40) + text("new") + struct.pack("<d", 0.1))
    bad = [framed(3, text("no")), framed(4, b""), framed(5, b""), b"{}", b"\0\0\0\0", framed(1, b"\xff")]
    produce(broker, topic, [second, first, None, *bad])
    lake = ingest.run()
    assert type_of_values(lake, topic) == "struct<n:bigint,x:double,inner:struct<a:int>,name:string>"
    old = {"n": 7, "x": 0.5, "inner": {"a": 9}, "name": None}
    assert ingest.values() == {0: old, 1: {"n": 2**40, "x": 0.1, "inner": None, "name": "new"}, 2: old, 3: None}
    no_framing = "no framing of a schema registry: a byte 0 and the schema's id in 4 bytes"
    assert ingest.reasons() == {
        4: "schema 3: n: string does not fit int",
        5: "schema 4: the schema with id 4 is of type PROTOBUF, not AVRO",
        6: "schema 5: the schema registry has no schema with id 5",
        7: no_framing,
        8: no_framing,
        9: "not Avro of schema 1",
    }


def test_framed_avro_is_read_with_schemas_of_a_directory(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "12.avsc").write_text(json.dumps(avro_schema(n="int")))
    ingest = make_ingest(record_format="avro-confluent", schema_registry=str(tmp_path))
    produce(broker, topic, [framed(12, long(1)), framed(13, long(1))])
    ingest.run()
    assert ingest.values() == {0: {"n": 1}}
    assert ingest.reasons() == {1: f"schema 13: the directory {tmp_path} has no 13.avsc"}


def test_values_with_too_many_schema_ids_stop_the_ingest_before_the_registry_is_asked(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path
) -> None:
    ingest = make_ingest(record_format="avro-confluent", schema_registry=str(tmp_path))
    produce(broker, topic, [framed(number, b"") for number in range(1001)])
    with pytest.raises(Exception, match=f"the values of the topic {topic} begin with over 1000 schema ids"):
        ingest.run()


def test_a_registry_that_does_not_answer_stops_the_ingest_with_its_address(
    make_ingest: MakeIngest, broker: Broker, topic: str, registry: Registry
) -> None:
    ingest = make_ingest(record_format="avro-confluent", schema_registry=f"http://{registry.address}")
    produce(broker, topic, [framed(1, b"")])
    with pytest.raises(Exception, match=f"the schema registry http://{registry.address} does not answer: 401"):
        ingest.run()
    assert ingest.rows() == []


def forget_end_of_last_batch(lake: Path) -> None:
    """Makes Spark repeat the last batch, as after a kill before it noted the end of the batch."""
    commits = lake / "_wirekafka" / "checkpoint" / "commits"
    newest = max((each for each in commits.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)


@SINKS
def test_a_repeated_batch_gives_the_same_rows_and_dead_letters_although_the_schema_file_has_changed(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path, sink: str
) -> None:
    schema = tmp_path / "schema.ddl"
    schema.write_text("a TINYINT")
    ingest = make_ingest(sink=sink, record_format="json", schema_files={"": schema})
    produce(broker, topic, [{"a": 1}, {"a": "no"}, {"a": 2, "b": 1}])
    ingest.run()
    before = ingest.values(), ingest.reasons()
    assert set(before[1]) == {1}
    schema.write_text("a TINYINT, c STRING")
    forget_end_of_last_batch(Path(ingest.base["lake"]))
    ingest.run()
    assert (ingest.values(), ingest.reasons()) == before
    produce(broker, topic, [{"a": 3}])
    assert type_of_values(ingest.run(), topic) == "struct<a:tinyint,b:bigint,c:string>"


def test_a_pattern_reads_topics_that_come_later_and_never_the_dead_letters(
    make_ingest: MakeIngest, broker: Broker, topic: str
) -> None:
    dead_letters, later = f"{topic}.dead", f"{topic}.later"
    topics = TopicSelection(pattern=f"{re.escape(topic)}.*")
    ingest = make_ingest(topics=topics, record_format="json", dead_letters=dead_letters)
    produce(broker, topic, [None, {"a": 1}, b"no"])
    ingest.run()
    create_topic(broker.bootstrap, later)
    produce(broker, later, [None, b"no", None])
    lake = ingest.run()
    assert lake.topics() == [topic, later]
    produce(broker, later, [{"a": "x"}])
    ingest.run()
    assert ingest.values() == {0: None, 1: {"a": 1}}
    assert [row.value and row.value.a for row in ingest.rows(later)] == [None, None, "x"]
    found = [(dict(each.headers())["__wirekafka.errors.topic"], each.value()) for each in ingest.dead_letters()]
    assert found == [(topic.encode(), b"no"), (later.encode(), b"no")]


def set_max_message_bytes(bootstrap: str, topic: str, size: int) -> None:
    """Changes the size of the largest batch that a topic takes."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_a_large_dead_letter_is_written_as_soon_as_its_topic_takes_it(
    make_ingest: MakeIngest, broker: Broker, topic: str
) -> None:
    size = 3_000_000
    set_max_message_bytes(broker.bootstrap, topic, 2 * size)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 2 * size})
    for value in (b'{"a":1}', b"x" * size, b"small"):
        producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0
    ingest, values = make_ingest(record_format="json"), [b"x" * size, b"small"]
    ingest.run()
    assert [each.value() for each in ingest.dead_letters()] == values
    other = {"dead_letters": f"{topic}.small", "lake": f"{ingest.base['lake']}-2"}
    create_topic(broker.bootstrap, f"{topic}.small", 1, {"max.message.bytes": "20000"})
    advice = f"topic {topic} partition 0 offset 1 has 3000.* bytes, and the topic {topic}.small takes 20000.*raise .* max.message"
    with pytest.raises(Exception, match=advice):
        ingest.run(**other)
    set_max_message_bytes(broker.bootstrap, f"{topic}.small", 2 * size)
    lake = ingest.run(**other)
    assert [each.value() for each in committed(broker.bootstrap, f"{topic}.small")] == values
    assert [row.offset for row in lake.read(topic).collect()] == [0]


def test_a_checkpoint_that_is_not_that_of_the_records_is_refused(
    make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path
) -> None:
    ingest = make_ingest()
    checkpoint, backup = Path(ingest.base["lake"]) / "_wirekafka/checkpoint", tmp_path / "backup"
    for batch in range(3):
        produce(broker, topic, [b"1"])
        ingest.run()
        if batch == 0:
            shutil.copytree(checkpoint, backup)
    newest = checkpoint.rename(tmp_path / "newest")
    with pytest.raises(PipelineError, match="the checkpoint .* is missing, and the lake has records: restore"):
        ingest.run()
    assert not checkpoint.exists()
    shutil.copytree(backup, checkpoint)
    with pytest.raises(
        Exception, match="the checkpoint is older .* Spark's next batch is 1, and the lake has the batches up to 2"
    ):
        ingest.run()
    shutil.rmtree(checkpoint)
    newest.rename(checkpoint)
    produce(broker, topic, [b"1"])
    ingest.run()
    assert [row.offset for row in ingest.rows()] == [0, 1, 2, 3]


def test_aborted_records_are_in_neither_the_lake_nor_the_dead_letters(
    make_ingest: MakeIngest, broker: Broker, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b'{"a":1}', producer.commit_transaction), (b'{"b":1}', producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)  # an abort would discard a record that is not sent yet
        end(30)
    ingest = make_ingest(record_format="json")
    assert type_of_values(ingest.run(), topic) == "struct<a:bigint>"
    assert ingest.values() == {0: {"a": 1}}
    assert ingest.dead_letters() == []


@SINKS
def test_a_batch_of_aborted_records_alone_does_not_end_the_ingest(
    make_ingest: MakeIngest, broker: Broker, topic: str, sink: str
) -> None:
    produce(broker, topic, [{"a": 1}])
    ingest = make_ingest(sink=sink, record_format="json")
    ingest.run()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"a":2}')
    producer.flush(30)
    producer.abort_transaction(30)
    ingest.run()
    produce(broker, topic, [{"a": 3}])
    ingest.run()
    assert list(ingest.values().values()) == [{"a": 1}, {"a": 3}]


def test_records_of_others_in_the_dead_letter_topic_are_no_dead_letters(spark: SparkSession) -> None:
    no_number = [(QUERY_HEADER, b"q"), (TOPIC_HEADER, b"t"), (PARTITION_HEADER, b"?"), (OFFSET_HEADER, b"1")]
    rows = [(headers, datetime(2026, 1, 1, tzinfo=UTC)) for headers in ([("x", b"1")], [], None, no_number)]
    letters = spark.createDataFrame(rows, f"headers {HEADERS_TYPE}, timestamp timestamp")
    assert [(row.topic, row.partition, row.offset) for row in origins(letters, "q").collect()] == [("t", None, 1)]


def test_wrong_options_say_what_to_do(make_ingest: MakeIngest, broker: Broker, topic: str, tmp_path: Path) -> None:
    produce(broker, topic, [b"1"])
    ingest = make_ingest()
    ingest.run()
    wrong_file = tmp_path / "wrong"
    wrong_file.write_text("a STRNG")
    cases: Mapping[str, dict[str, Any]] = {
        "the format of the records of the lake .* cannot change from raw to json": {"record_format": "json"},
        "the sink of the lake .* cannot change": {"sink": "delta"},
        "the topics of the lake .* cannot change": {"topics": TopicSelection(("other",))},
        f"the schema file {wrong_file} is no schema of Spark": {
            "record_format": "json",
            "schema_files": {"": wrong_file},
            "lake": str(tmp_path / "lake2"),
        },
        f"the schema file {wrong_file} is no Avro schema of a record": {
            "record_format": "avro",
            "schema_files": {"": wrong_file},
            "lake": str(tmp_path / "lake3"),
        },
        "cannot read the schema file .*: No such file": {
            "record_format": "json",
            "schema_files": {"": tmp_path / "absent"},
            "lake": str(tmp_path / "lake4"),
        },
        "is no URL .* and no directory": {
            "record_format": "avro-confluent",
            "schema_registry": "nowhere",
            "lake": str(tmp_path / "lake5"),
        },
        "unknown topic nothing": {"topics": TopicSelection(("nothing",))},
        "no topic .* matches": {"topics": TopicSelection(pattern="nothing.*")},
    }
    create_topic(broker.bootstrap, "other")
    for words, changes in cases.items():
        with pytest.raises(PipelineError, match=words):
            ingest.run(**changes)


def test_describe_lists_the_topics_and_the_places(make_ingest: MakeIngest, topic: str) -> None:
    options = make_ingest(record_format="json").options()
    plan = describe(options)
    assert plan["reads"] == [f"{topic} (1 partition)"]
    assert plan["writes"] == f"{options.lake} (parquet)"
    assert plan["dead letters"] == f"lake-of-{topic}.dead-letters"
