from __future__ import annotations

from typing import Annotated

from wirekafka.wire.types import Message, Bool, Int16, Int32, Int8, NullableString, String, nullable, since, until

# DescribeConfigs: key 32, versions 0-4, flexible since 4


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: Annotated[list[String] | None, nullable(0)] = []


class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource] = []
    include_synonyms: Annotated[Bool, since(1)] = False
    include_documentation: Annotated[Bool, since(3)] = False


class DescribeConfigsSynonym(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: String = ""
    value: Annotated[NullableString, nullable(0)] = ""
    read_only: Bool = False
    is_default: Annotated[Bool, until(0)] = False
    config_source: Annotated[Int8, since(1)] = -1
    is_sensitive: Bool = False
    synonyms: Annotated[list[DescribeConfigsSynonym], since(1)] = []
    config_type: Annotated[Int8, since(3)] = 0
    documentation: Annotated[NullableString, since(3), nullable(0)] = ""


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: Annotated[NullableString, nullable(0)] = ""
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: list[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []
