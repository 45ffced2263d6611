"""A client library in a process of its own, controlled by lines on stdin. Run as: agent.py CLIENT.

The processes keep the libraries apart from each other and from pytest, run kafka-python 2 beside 3, and can be killed to
simulate the crash of a client. The Java agent (java/src/agent) has the same protocol. Fields are separated by tabs; bytes are
base64, `-` is null; headers are `NAME=VALUE,...`, both base64; options are `NAME=VALUE;...`.

    produce BOOTSTRAP TOPIC CODEC OPTIONS COUNT         then COUNT lines PARTITION KEY VALUE TIMESTAMP HEADERS
    read BOOTSTRAP TOPIC COUNT TIMEOUT_MS OPTIONS       all partitions from their beginnings, without a group
    find BOOTSTRAP TOPIC PARTITION TIMESTAMP TIMEOUT_MS seek by timestamp, and the first record read from there
    join BOOTSTRAP GROUP TOPIC OPTIONS                  a member of a group, until the line `leave`
    open NAME BOOTSTRAP TRANSACTIONAL_ID OPTIONS        a transactional producer, initialised, for the lines that follow
    begin NAME, flush NAME, commit NAME, abort NAME     as in every library; `close` forgets the producer
    send NAME TOPIC PARTITION VALUE                     without waiting
    offsets NAME GROUP TOPIC P:OFFSET,...               into the transaction

The agent answers with any number of lines `record PARTITION OFFSET KEY VALUE TIMESTAMP HEADERS`, `assigned P,P,...`,
`revoked P,P,...`, `uncommitted REASON`, `offset N`, and ends its answer with `ok` or `error MESSAGE`. A member prints records
before it commits them. `read` has the options `isolation` (default read_uncommitted) and `until=end`: it then reads up to the end
offsets of its start, whatever the count. `join` has the options `protocol` (default classic), `assignor`, `session` (classic
protocol only), `instance`, `limit` and `max_poll`; a topic that begins with `^` is a regular expression for the broker.
"""

from __future__ import annotations

import base64
import importlib
import select
import sys
import traceback
from typing import Any, NamedTuple


class Record(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: list[tuple[str, bytes | None]]


Options = dict[str, str]
Found = tuple[int, Record | None]
"""The offset found, -1 if no record has such a timestamp, and the first record read from this offset."""


def pack(value: bytes | None) -> str:
    return "-" if value is None else base64.b64encode(value).decode()


def unpack(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text)


def pack_headers(headers: list[tuple[str, bytes | None]]) -> str:
    # The base64 alphabet has "=" only as padding, so names are written without it.
    return ",".join(f"{pack(name.encode()).rstrip('=')}:{pack(value)}" for name, value in headers)


def unpack_headers(text: str) -> list[tuple[str, bytes | None]]:
    headers = []
    for item in filter(None, text.split(",")):
        name, _, value = item.partition(":")
        headers.append(((unpack(name + "=" * (-len(name) % 4)) or b"").decode(), unpack(value)))
    return headers


def parse_record(line: str) -> Record:
    partition, key, value, timestamp, headers = line.rstrip("\n").split("\t")
    time_ms = None if timestamp == "-" else int(timestamp)
    return Record(int(partition), -1, unpack(key), unpack(value), time_ms, unpack_headers(headers))


def answer(*fields: object) -> None:
    sys.stdout.write("\t".join(map(str, fields)) + "\n")
    sys.stdout.flush()


def answer_records(records: list[Record]) -> None:
    lines = [
        f"record\t{r.partition}\t{r.offset}\t{pack(r.key)}\t{pack(r.value)}\t{r.timestamp_ms}\t{pack_headers(r.headers)}\n"
        for r in records
    ]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()


def answer_assigned(partitions: list[int]) -> None:
    answer("assigned", ",".join(map(str, sorted(partitions))))


def answer_uncommitted(error: Exception) -> None:
    """Reports a commit that was refused after a rebalance; the new owners of the partitions read the records again."""
    answer("uncommitted", repr(error).replace("\t", " ").replace("\n", " "))


def is_told_to_leave() -> bool:
    """Returns whether stdin has a line or is closed; no other line follows `join` before `leave`."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def options_of(text: str) -> Options:
    return dict(item.split("=", 1) for item in text.split(";") if item)


def offsets_of(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in (item.split(":") for item in text.split(","))}


TRANSACTIONS: dict[str, Any] = {}
"""The open transactional producers."""


def serve_transaction(client: Any, operation: str, name: str, fields: list[str]) -> None:
    if operation == "open":
        bootstrap, transactional_id, options = fields
        TRANSACTIONS[name] = client.open_transactions(bootstrap, transactional_id, options_of(options))
    elif operation == "send":
        topic, partition, value = fields
        TRANSACTIONS[name].send(topic, int(partition), unpack(value))
    elif operation == "offsets":
        group, topic, offsets = fields
        TRANSACTIONS[name].offsets(group, topic, offsets_of(offsets))
    elif operation == "close":
        TRANSACTIONS.pop(name).close()
    else:
        getattr(TRANSACTIONS[name], operation)()


def serve(client: Any, line: str) -> None:
    operation, *fields = line.rstrip("\n").split("\t")
    if operation == "produce":
        bootstrap, topic, codec, options, count = fields
        records = [parse_record(sys.stdin.readline()) for _ in range(int(count))]
        client.produce(bootstrap, topic, codec, options_of(options), records)
    elif operation == "read":
        bootstrap, topic, count, timeout_ms, options = fields
        answer_records(client.read(bootstrap, topic, int(count), int(timeout_ms) / 1000, options_of(options)))
    elif operation == "find":
        bootstrap, topic, partition, timestamp, timeout_ms = fields
        offset, record = client.find(bootstrap, topic, int(partition), int(timestamp), int(timeout_ms) / 1000)
        answer("offset", offset)
        answer_records([record] if record is not None else [])
    elif operation == "join":
        bootstrap, group, topic, options = fields
        client.join(bootstrap, group, topic, options_of(options))
        if is_told_to_leave():
            sys.stdin.readline()
    elif operation in ("open", "begin", "flush", "commit", "abort", "send", "offsets", "close"):
        serve_transaction(client, operation, fields[0], fields[1:])
    else:
        raise ValueError(operation)


def main() -> None:
    client = importlib.import_module(sys.argv[1]).Client()
    for line in iter(sys.stdin.readline, ""):
        try:
            serve(client, line)
        except Exception as error:  # noqa: BLE001 - the test is told of it
            traceback.print_exc()
            answer("error", repr(error).replace("\t", " ").replace("\n", " "))
        else:
            answer("ok")


if __name__ == "__main__":
    sys.modules["agent"] = sys.modules["__main__"]
    main()
