"""How a sink finds its topics at the brokers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from wirekafka.pipelines.errors import PipelineError  # noqa: E402
from wirekafka.pipelines.kafka import Cluster  # noqa: E402
from wirekafka.pipelines.transactional_sink import topics  # noqa: E402
from wirekafka.pipelines.transactional_sink.options import SinkOptions  # noqa: E402


class Known:
    """What the brokers know of a topic."""

    error = None
    partitions = (0, 1, 2)


class Setting:
    value = "1000"


class SlowAdmin:
    """An admin client of a cluster whose brokers hear of a new topic after `refusals` requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.known: dict[str, Known] = {}

    def list_topics(self, timeout: float) -> Any:
        return self

    @property
    def topics(self) -> dict[str, Known]:
        return self.known

    def create_topics(self, wanted: list[Any], request_timeout: float) -> dict[str, Any]:
        self.known |= {each.topic: Known() for each in wanted}
        return {each.topic: done(None) for each in wanted}

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Any]:
        self.refusals -= 1
        if self.refusals >= 0:
            unknown = confluent_kafka.KafkaException(confluent_kafka.KafkaError(3))
            return {each: done(None, unknown) for each in resources}
        return {each: done({"max.message.bytes": Setting()}) for each in resources}


def done(result: object, error: Exception | None = None) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future


def prepare(monkeypatch: pytest.MonkeyPatch, refusals: int) -> Any:
    admin = SlowAdmin(refusals)
    monkeypatch.setattr(Cluster, "admin", lambda cluster: admin)
    return topics.prepare_topics(SinkOptions(Cluster("a:1"), "test", "name", {"new": 3}))


def test_a_new_topic_that_a_broker_does_not_know_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "METADATA_POLL_S", 0.0)
    assert prepare(monkeypatch, 2)["new"].max_message_bytes == 1000


def test_a_new_topic_that_no_broker_gets_to_know_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "REQUEST_TIMEOUT_S", 0.0)
    with pytest.raises(PipelineError, match="cannot prepare the topics"):
        prepare(monkeypatch, 1_000_000)
