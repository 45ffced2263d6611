from __future__ import annotations

from typing import Annotated

from wirekafka.names import ZERO_TOPIC_ID
from wirekafka.wire.types import Message, Int16, Int32, NullableString, String, Uuid, nullable, since, until

# DeleteTopics: key 20, versions 0-6, flexible since 4


class DeleteTopicState(Message):
    name: Annotated[NullableString, nullable(6)] = None
    topic_id: Uuid = ZERO_TOPIC_ID


class DeleteTopicsRequest(Message):
    topics: Annotated[list[DeleteTopicState], since(6)] = []
    topic_names: Annotated[list[String], until(5)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[NullableString, nullable(6)] = ""
    topic_id: Annotated[Uuid, since(6)] = ZERO_TOPIC_ID
    error_code: Int16 = 0
    error_message: Annotated[NullableString, since(5), nullable(5)] = None


class DeleteTopicsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    responses: list[DeletableTopicResult] = []
