from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Bool, Int16, Int32, Int8, NullableString, String, nullable

# IncrementalAlterConfigs: key 44, versions 0-1, flexible since 1


class AlterableConfig(Message):
    name: String = ""
    config_operation: Int8 = 0
    value: Annotated[NullableString, nullable(0)] = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[AlterableConfig] = []


class IncrementalAlterConfigsRequest(Message):
    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
