from __future__ import annotations

import pytest

from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.kafka import Cluster
from wirekafka.pipelines.transactional_sink.options import SinkOptions


def sink(kind: str, name: str) -> SinkOptions:
    return SinkOptions(Cluster("localhost:9092"), kind, name, {})


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ü", "a/b"])
def test_a_name_that_kafka_or_the_identity_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match="letters, digits"):
        sink("mirror", name)


def test_a_name_that_makes_a_topic_too_long_is_refused() -> None:
    sink("mirror", "n" * 200)
    with pytest.raises(PipelineError, match="too long"):
        sink("mirror", "n" * 240)


def test_identities_of_topics_that_look_alike_differ() -> None:
    places = [("a", 1), ("a", 11), ("a.1", 1), ("b.a", 1)]
    found = {sink(kind, name).identity(*place) for kind in ("x", "y") for name in ("m", "b") for place in places}
    assert len(found) == 2 * 2 * len(places)
