from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Int16, Int32, Int8, NullableString, String, nullable, since, until

# FindCoordinator: key 10, versions 0-6, flexible since 3


class FindCoordinatorRequest(Message):
    key: Annotated[String, until(3)] = ""
    key_type: Annotated[Int8, since(1)] = 0
    coordinator_keys: Annotated[list[String], since(4)] = []


class Coordinator(Message):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(4)] = ""


class FindCoordinatorResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Annotated[Int16, until(3)] = 0
    error_message: Annotated[NullableString, since(1), until(3), nullable(1)] = ""
    node_id: Annotated[Int32, until(3)] = 0
    host: Annotated[String, until(3)] = ""
    port: Annotated[Int32, until(3)] = 0
    coordinators: Annotated[list[Coordinator], since(4)] = []
