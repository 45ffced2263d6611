"""The requests of the control port, and who may send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, fields, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from wirekafka.api.produce.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from wirekafka.config import BrokerConfig
from wirekafka.server.http.messages import Request
from wirekafka.server.running import open_broker
from wirekafka.testing import AdvancingClock, AsyncEmbeddedBroker, FaultSpec, open_cluster, open_embedded
from wirekafka.testing.control.answers import answer
from wirekafka.testing.control.forms import LISTED_HITS, MOST_RECORD_BYTES, RecordsForm
from wirekafka.testing.control.port import LIMITS
from wirekafka.testing.control.routes import MOST_WAITS, ROUTES, Control
from wirekafka.testing.faults import Hit
from wirekafka.testing.local_client import LocalClient
from wirekafka.testing.stored_records import StoredRecord
from wirekafka.tests.log.logs import batch
from wirekafka.tests.server.frames import request

HEADERS = {"host": "127.0.0.1:4711", "content-type": "application/json"}


class Stage:
    """A broker and its control port without a socket."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.broker = control.broker

    async def ask(self, method: str, target: str, body: object = None, **more: Any) -> tuple[int, Any]:
        """Returns the status and the JSON of the response."""
        sent = b"" if body is None else json.dumps(body).encode()
        given = {"headers": HEADERS, "body": sent} | more
        response = await answer(self.control, ROUTES, Request(method, target, **given))
        return response.status, json.loads(response.body)

    async def get(self, target: str) -> Any:
        """Returns the JSON of a request that succeeds."""
        status, found = await self.ask("GET", target)
        assert status == 200, found
        return found

    async def produce(self, topic: str, *records: bytes) -> None:
        """Appends a batch with one record for each value."""
        data = PartitionProduceData(index=0, records=batch(*records))
        asked = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[data])])
        response = await LocalClient(self.broker.broker).ask(asked, 7)
        assert response.responses[0].partition_responses[0].error_code == 0


@asynccontextmanager
async def no_port(broker: AsyncEmbeddedBroker) -> AsyncIterator[str]:
    yield "http://nowhere"


def run(act: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_embedded() as broker, trio.open_nursery() as nursery:
            await act(Stage(Control(broker, nursery, no_port)))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=AdvancingClock())


def test_broker_version_and_health_are_shown() -> None:
    async def act(stage: Stage) -> None:
        shown = await stage.get("/broker")
        assert (shown["bootstrap"], shown["keeps_data"], shown["can_advance"]) == (stage.broker.bootstrap, False, True)
        assert (await stage.get("/version"))["name"] == "wirekafka"
        assert await stage.get("/health") == {"live": True, "ready": True, "reason": None}
        stage.broker.running.health.reason = "the broker stops"
        assert await stage.ask("GET", "/health") == (503, {"live": True, "ready": False, "reason": "the broker stops"})
        assert await stage.get("/health/live") == {"live": True}

    run(act)


def test_fault_tells_its_hits_until_it_is_ended() -> None:
    async def act(stage: Stage) -> None:
        status, fault = await stage.ask("POST", "/faults", {"api": "ApiVersions", "disconnect": "request", "times": 1})
        assert (status, fault["is_over"], fault["hits"]) == (201, False, [])
        host, _, port = stage.broker.bootstrap.partition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(request(18, 0, 77))
            assert await stream.receive_some(100) == b""
        found = await stage.get(f"/faults/{fault['id']}")
        assert (found["is_over"], found["hit_count"], [each["correlation_id"] for each in found["hits"]]) == (True, 1, [77])
        assert await stage.get("/faults") == [found]
        assert await stage.ask("DELETE", f"/faults/{fault['id']}") == (200, found)
        assert await stage.get("/faults") == []
        assert (await stage.ask("GET", f"/faults/{fault['id']}"))[0] == 404

    run(act)


def test_list_of_faults_has_few_of_their_hits() -> None:
    async def act(stage: Stage) -> None:
        _, ordered = await stage.ask("POST", "/faults", {"delay_s": 1})
        [fault] = stage.control.faults.values()
        for number in range(LISTED_HITS + 1):
            assert fault.takes(Hit(0, "Produce", 9, number, "me"))
        found = await stage.get(f"/faults/{ordered['id']}")
        assert len(found["hits"]) == found["hit_count"] == LISTED_HITS + 1
        listed = found | {"hits": found["hits"][:LISTED_HITS]}
        assert await stage.get("/faults") == [listed]
        assert await stage.ask("DELETE", "/faults") == (200, [listed])

    run(act)


def test_all_faults_are_ended_at_once() -> None:
    async def act(stage: Stage) -> None:
        for _ in range(2):
            await stage.ask("POST", "/faults", {"delay_s": 1})
        status, ended = await stage.ask("DELETE", "/faults")
        assert (status, len(ended), await stage.get("/faults")) == (200, 2, [])

    run(act)


def test_reset_in_python_ends_the_faults_of_other_languages() -> None:
    async def act(stage: Stage) -> None:
        _, fault = await stage.ask("POST", "/faults", {"delay_s": 1})
        await stage.broker.reset()
        assert await stage.get("/faults") == []
        assert (await stage.ask("DELETE", f"/faults/{fault['id']}"))[0] == 404

    run(act)


EXAMPLES: dict[str, Any] = {
    "api": "Fetch", "topic": "orders", "partition": 2, "client_id": "me", "group": "readers", "skip": 1, "times": 2,
    "probability": 0.5, "seed": 7,
}  # fmt: skip


def test_fault_takes_every_field_that_python_takes() -> None:
    async def act(stage: Stage) -> None:
        for field in fields(FaultSpec):
            effect: dict[str, Any] = {} if field.name == "delay_s" else {"delay_s": 1.5}
            api = {"api": "Metadata"} if field.name == "stale_metadata" else {}
            given: dict[str, Any] = EXAMPLES | effect | {field.name: EXAMPLES.get(field.name, _example(field.name))} | api
            status, made = await stage.ask("POST", "/faults", given)
            assert (status, made["fault"]) == (201, asdict(FaultSpec(**given))), made

    run(act)


def _example(name: str) -> object:
    """Returns a value of an effect."""
    values: dict[str, object] = {"error": "NOT_ENOUGH_REPLICAS", "lose": "reply", "disconnect": "mid_reply"}
    values |= {"coordinator": "moving", "stale_metadata": True, "full_disk": True}
    return values.get(name, 5)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"api": "Produce", "effect": 1}, "there is no 'effect' here; there are api, topic"),
        ({"api": 3, "lose": "reply"}, "api is string or null"),
        ({"times": True, "lose": "reply"}, "times is integer or null"),
        ({"times": "3", "lose": "reply"}, "times is integer or null"),
        ({"delay_s": "soon"}, "delay_s is number or null"),
        ({"delay_s": -1}, "delay_s=-1.0 is not between 0 and"),
        ({"lose": "everything"}, "lose='everything' is none of request, reply"),
        ({"api": "Produce"}, "a fault has one of error"),
        ([], "the body is a JSON object with these fields: api"),
    ],
)
def test_fault_that_cannot_be_ordered_is_refused_with_its_field(fault: object, problem: str) -> None:
    async def act(stage: Stage) -> None:
        status, found = await stage.ask("POST", "/faults", fault)
        assert status == 400
        assert problem in found["error"]
        assert await stage.get("/faults") == []

    run(act)


@pytest.mark.parametrize("body", [b"{", b'{"delay_s": NaN}', b"\xff", b"[" * 100_000, b'{"delay_s": 1%b}' % (b"0" * 400)])
def test_body_that_is_no_json_is_refused(body: bytes) -> None:
    async def act(stage: Stage) -> None:
        assert (await stage.ask("POST", "/faults", body=None, headers=HEADERS))[0] == 400
        response = await answer(stage.control, ROUTES, Request("POST", "/faults", HEADERS, body))
        assert response.status == 400

    run(act)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost"}, 200),
        ({"host": "LOCALHOST:80"}, 200),
        ({"host": "[::1]:4711"}, 200),
        ({"host": "127.0.0.1:4711", "origin": "http://127.0.0.1:4711", "sec-fetch-site": "same-origin"}, 200),
        ({}, 403),
        ({"host": "evil.example:4711"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": "127.0.0.1:4711", "origin": "http://evil.example"}, 403),
        ({"host": "127.0.0.1:4711", "origin": "http://127.0.0.1:9999"}, 403),
        ({"host": "127.0.0.1:4711", "origin": "null"}, 403),
        ({"host": "127.0.0.1:4711", "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], status: int) -> None:
    async def act(stage: Stage) -> None:
        for path in ("/version", "/openapi.json"):
            assert (await stage.ask("GET", path, headers=headers))[0] == status

    run(act)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_body_that_a_form_of_a_page_could_send_is_refused(kind: str) -> None:
    async def act(stage: Stage) -> None:
        status, _ = await stage.ask("POST", "/faults", {"delay_s": 1}, headers=HEADERS | {"content-type": kind})
        assert (status, await stage.get("/faults")) == (415, [])

    run(act)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/topics/a/b/c", 404),
        ("PUT", "/faults", 405),
        ("OPTIONS", "/faults", 405),
        ("GET", "/reset", 405),
        ("GET", "/faults/one", 404),
        ("GET", "/faults/" + "9" * 5000, 404),
        ("POST", "/snapshots/1/restore", 404),
        ("DELETE", "/forks/1", 404),
        ("GET", "/topics/orders/records", 404),
        ("GET", "/topics/orders/records?partition=x", 400),
        ("GET", "/topics/orders/records?limits=1", 400),
        ("GET", "/topics/orders/records?limit=10001", 400),
        ("GET", "/topics/orders/records/wait", 400),
        ("GET", "/topics/orders/records/wait?count=1&timeout_s=nan", 400),
        ("GET", "/topics/orders/records/wait?count=1&timeout_s=601", 400),
        ("GET", "/groups/readers/stable/wait?timeout_s=0.01", 504),
    ],
)
def test_request_that_cannot_be_served_gets_its_status(method: str, target: str, status: int) -> None:
    async def act(stage: Stage) -> None:
        found, problem = await stage.ask(method, target)
        assert found == status
        assert problem["error"]

    run(act)


def test_time_is_advanced() -> None:
    async def act(stage: Stage) -> None:
        before = (await stage.get("/clock"))["now_ms"]
        status, after = await stage.ask("POST", "/clock/advance", {"seconds": 3600})
        assert status == 200
        assert after["now_ms"] - before >= 3_600_000
        assert (await stage.ask("POST", "/clock/advance", {"seconds": -1}))[0] == 400

    run(act)


def test_records_have_text_and_bytes() -> None:
    async def act(stage: Stage) -> None:
        status, topic = await stage.ask("POST", "/topics", {"name": "orders", "settings": {"retention.ms": "-1"}})
        assert (status, topic["name"]) == (201, "orders")
        await stage.produce("orders", b"one", b"\xff")
        found = await stage.get("/topics/orders/records/wait?count=2")
        assert [(each["value"], each["value_base64"], each["offset"]) for each in found["records"]] == [
            ("one", "b25l", 0),
            (None, "/w==", 1),
        ]
        assert found["records"][0]["is_committed"] is True
        first = await stage.get("/topics/orders/records?limit=1")
        assert (len(first["records"]), first["is_complete"]) == (1, False)
        assert (await stage.get("/topics/orders/records?limit=2"))["is_complete"] is True
        assert [each["partitions"][0]["log_end_offset"] for each in await stage.get("/topics")] == [2]

    run(act)


def test_records_that_are_too_large_together_are_not_shown() -> None:
    async def act(stage: Stage) -> None:
        await stage.ask("POST", "/topics", {"name": "orders", "settings": {"max.message.bytes": "99999999"}})
        await stage.produce("orders", b"x" * (MOST_RECORD_BYTES - 1), b"xx")
        found = await stage.get("/topics/orders/records")
        assert (len(found["records"]), found["is_complete"]) == (1, False)

    run(act)


def test_records_are_read_no_further_than_they_are_shown() -> None:
    record = StoredRecord(0, 0, 0, None, b"", (("h", b"x" * MOST_RECORD_BYTES),), -1, -1, -1, 0, False, True, None)
    endless = repeat(record)
    assert RecordsForm.of(endless, 10) == RecordsForm([], is_complete=False)
    small = replace(record, headers=())
    assert len(RecordsForm.of(repeat(small), 10).records) == 10


def test_topic_that_is_refused_names_the_error_of_kafka() -> None:
    async def act(stage: Stage) -> None:
        await stage.ask("POST", "/topics", {"name": "orders"})
        status, problem = await stage.ask("POST", "/topics", {"name": "orders"})
        assert (status, problem["kafka_error"]) == (409, "TOPIC_ALREADY_EXISTS")
        assert (await stage.ask("POST", "/topics", {"name": "x", "settings": {"name": "y"}}))[0] == 400

    run(act)


def test_wait_that_times_out_says_what_was_there() -> None:
    async def act(stage: Stage) -> None:
        status, problem = await stage.ask("GET", "/topics/orders/records/wait?count=1&timeout_s=0.01")
        assert (status, problem["error"]) == (
            504,
            "waited 0.01 s for 1 records in orders, but there is no topic orders; there are none",
        )
        status, problem = await stage.ask("GET", "/groups/readers/committed/wait?topic=orders&offset=3&timeout_s=0.01")
        assert (status, "there is no group readers" in problem["error"]) == (504, True)

    run(act)


def test_wait_ends_when_its_client_has_gone() -> None:
    async def act(stage: Stage) -> None:
        async def gone() -> None:
            return

        with trio.fail_after(60):
            status, _ = await stage.ask("GET", "/topics/orders/records/wait?count=1&timeout_s=600", until_gone=gone)
        assert status == 409

    run(act)


def test_waits_leave_connections_for_other_requests() -> None:
    async def act(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(MOST_WAITS):
                nursery.start_soon(stage.ask, "GET", "/topics/orders/records/wait?count=1&timeout_s=600")
            await trio.testing.wait_all_tasks_blocked()
            status, problem = await stage.ask("GET", "/groups/readers/stable/wait")
            assert (status, "there are 48 waits already" in problem["error"]) == (429, True)
            assert (await stage.get("/health"))["ready"] is True
            nursery.cancel_scope.cancel()
        assert (await stage.ask("GET", "/topics/orders/records/wait?count=1&timeout_s=0.01"))[0] == 504
        assert LIMITS.connections > MOST_WAITS

    run(act)


def test_group_that_is_not_there_is_dead() -> None:
    async def act(stage: Stage) -> None:
        found = await stage.get("/groups/a%2Fb")
        assert (found["group_id"], found["state"], found["members"]) == ("a/b", "Dead", [])
        assert await stage.get("/groups") == []

    run(act)


def test_broker_is_emptied_copied_and_restored() -> None:
    async def act(stage: Stage) -> None:
        await stage.ask("POST", "/topics", {"name": "orders"})
        await stage.ask("POST", "/faults", {"api": "Produce", "lose": "reply"})
        status, snapshot = await stage.ask("POST", "/snapshots")
        assert (status, await stage.get("/snapshots")) == (201, [snapshot])
        assert (await stage.ask("POST", "/reset"))[0] == 200
        assert (await stage.get("/topics"), await stage.get("/faults")) == ([], [])
        assert (await stage.ask("POST", f"/snapshots/{snapshot['id']}/restore"))[0] == 200
        assert [each["name"] for each in await stage.get("/topics")] == ["orders"]
        assert (await stage.ask("DELETE", f"/snapshots/{snapshot['id']}"))[0] == 200
        assert await stage.get("/snapshots") == []

    run(act)


def test_forks_have_the_data_of_now_or_of_a_snapshot_until_they_are_stopped() -> None:
    async def act(stage: Stage) -> None:
        _, snapshot = await stage.ask("POST", "/snapshots")
        await stage.ask("POST", "/topics", {"name": "orders"})
        status, of_now = await stage.ask("POST", "/forks")
        assert status == 201
        status, of_then = await stage.ask("POST", "/forks", {"snapshot": snapshot["id"]})
        assert status == 201
        assert len({of_now["bootstrap"], of_then["bootstrap"], stage.broker.bootstrap}) == 3
        assert await stage.get("/forks") == [of_now, of_then]
        for fork in (of_now, of_then):
            assert await stage.ask("DELETE", f"/forks/{fork['id']}") == (200, fork)
        assert (await stage.get("/forks"), (await stage.ask("POST", "/forks", {"snapshot": 99}))[0]) == ([], 404)

    run(act)


def test_broker_that_keeps_its_data_is_neither_emptied_nor_copied(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        async with open_broker(BrokerConfig.load(None, settings)) as running, trio.open_nursery() as nursery:
            stage = Stage(Control(AsyncEmbeddedBroker.around(running, None), nursery, no_port))
            await stage.ask("POST", "/topics", {"name": "orders"})
            for target in ("/reset", "/snapshots", "/forks"):
                status, problem = await stage.ask("POST", target)
                assert (status, "keeps its data" in problem["error"]) == (409, True)
            assert (await stage.ask("POST", "/clock/advance", {"seconds": 1}))[0] == 409
            assert (await stage.get("/broker"))["keeps_data"] is True
            assert [each["name"] for each in await stage.get("/topics")] == ["orders"]
            assert (await stage.ask("POST", "/faults", {"delay_s": 0}))[0] == 201

    trio.run(main)


def test_member_of_a_cluster_takes_faults_and_follows_the_time_of_the_machine(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_cluster(1, tmp_path) as cluster, trio.open_nursery() as nursery:
            stage = Stage(Control(AsyncEmbeddedBroker.around(cluster.brokers[1], None), nursery, no_port))
            assert await stage.get("/health") == {"live": True, "ready": True, "reason": None}
            assert (await stage.ask("POST", "/topics", {"name": "orders", "partitions": 2}))[0] == 201
            assert (await stage.ask("POST", "/faults", {"delay_s": 0}))[0] == 201
            assert (await stage.ask("POST", "/clock/advance", {"seconds": 1}))[0] == 409

    trio.run(main)
