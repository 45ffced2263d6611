"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from pathlib import Path
from typing import Any

import pytest

from wirekafka.api import alter_configs, incremental_alter_configs
from wirekafka.api.alter_configs import AlterConfigsRequest
from wirekafka.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wirekafka.api.incremental_alter_configs import IncrementalAlterConfigsRequest
from wirekafka.config import ConfigSource
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.definition import Type
from wirekafka.config.topic_table import TOPIC_SETTINGS
from wirekafka.errors import ErrorCode
from wirekafka.metadata import config_resources
from wirekafka.metadata.config_resources import AlterConfigOp
from wirekafka.tests.api.data_plane import Caller, run

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = AlterConfigOp


def describe(caller: Caller, type_: int, name: str, *keys: str, version: int = 4) -> Any:
    resource = DescribeConfigsResource(resource_type=type_, resource_name=name, configuration_keys=list(keys) or None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=version >= 1, include_documentation=version >= 3)
    (result,) = caller.ask(request, version).results
    return result


def change(caller: Caller, type_: int, name: str, *changes: tuple[str, int, str | None], **settings: Any) -> Any:
    module = incremental_alter_configs
    configs = [module.AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = module.AlterConfigsResource(resource_type=type_, resource_name=name, configs=configs)
    (response,) = caller.ask(IncrementalAlterConfigsRequest(resources=[resource], **settings), 1).responses
    assert (response.resource_type, response.resource_name) == (type_, name)
    return response


def replace(caller: Caller, type_: int, name: str, version: int = 2, validate_only: bool = False, **configs: str | None) -> Any:
    entries = [alter_configs.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=type_, resource_name=name, configs=entries)
    (response,) = caller.ask(AlterConfigsRequest(resources=[resource], validate_only=validate_only), version).responses
    return response


def overrides(caller: Caller, name: str) -> dict[str, str]:
    topic = caller.broker.topics.find(name)
    assert topic is not None
    return topic.overrides


@pytest.mark.parametrize("version", range(5))
def test_describe_configs_of_a_topic_tells_every_setting_and_its_origin(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1, {"retention.ms": "5"})
        result = describe(caller, TOPIC, "a", version=version)
        assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "a")
        assert [config.name for config in result.configs] == sorted(set(TOPIC_SETTINGS) - {"internal.segment.bytes"})
        found = {config.name: config for config in result.configs}
        retention = found["retention.ms"]
        assert (retention.value, retention.read_only, retention.is_sensitive) == ("5", False, False)
        assert found["segment.ms"].value == str(3 * 3600 * 1000)
        if version == 0:
            assert not retention.is_default
            assert found["flush.ms"].is_default
        else:
            assert retention.config_source == ConfigSource.TOPIC_CONFIG
            assert found["segment.ms"].config_source == ConfigSource.DEFAULT_CONFIG
            assert found["flush.ms"].config_source == ConfigSource.DEFAULT_CONFIG
            assert [(synonym.name, synonym.value, synonym.source) for synonym in retention.synonyms] == [
                ("retention.ms", "5", ConfigSource.TOPIC_CONFIG),
            ]
            assert found["segment.ms"].synonyms == [], "a stand-in under another name is not told"
        if version >= 3:
            assert retention.config_type == Type.LONG
            assert retention.documentation

    run(body, tmp_path, log_roll_hours="3")


def test_describe_configs_without_synonyms_and_documentation_leaves_them_out(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=["num.partitions"])
        (result,) = caller.ask(DescribeConfigsRequest(resources=[resource]), 4).results
        (config,) = result.configs
        assert config.synonyms == []
        assert config.documentation is None

    run(body, tmp_path)


def test_describe_configs_of_the_broker_tells_what_is_honoured(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        result = describe(caller, BROKER, "1")
        honoured = {name for name, setting in BROKER_SETTINGS.items() if not setting.is_internal}
        assert {config.name for config in result.configs} == honoured | {"default.replication.factor"}
        found = {config.name: config for config in result.configs}
        assert (found["num.partitions"].value, found["num.partitions"].read_only) == ("3", True)
        assert found["num.partitions"].config_source == ConfigSource.STATIC_BROKER_CONFIG
        assert not found["log.retention.ms"].read_only
        assert found["log.retention.ms"].value is None
        assert found["log.cleanup.policy"].value == "delete"

    run(body, tmp_path, num_partitions="3")


def test_describe_configs_of_the_broker_tells_the_replication_factor_that_holds(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        (config,) = describe(caller, BROKER, "1", "default.replication.factor").configs
        assert (config.value, config.read_only, config.config_source) == ("1", True, ConfigSource.DEFAULT_CONFIG)
        assert [(each.name, each.value) for each in config.synonyms] == [("default.replication.factor", "1")]

    run(body, tmp_path)


def test_describe_configs_with_keys_tells_those_only(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        result = describe(caller, TOPIC, "a", "retention.ms", "no.such")
        assert [config.name for config in result.configs] == ["retention.ms"]

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("type_", "name", "code"),
    [
        (TOPIC, "a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (0, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_config_apis_of_a_resource_that_is_not_there_are_refused(tmp_path: Path, type_: int, name: str, code: ErrorCode) -> None:
    async def body(caller: Caller) -> None:
        assert describe(caller, type_, name).error_code == code
        assert change(caller, type_, name, ("retention.ms", SET, "5")).error_code == code
        assert replace(caller, type_, name, retention_ms="5").error_code == code

    run(body, tmp_path)


def test_settings_of_another_broker_cannot_be_changed(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        assert change(caller, BROKER, "2", ("log.retention.ms", SET, "5")).error_code == ErrorCode.INVALID_REQUEST
        assert change(caller, BROKER, "1", ("log.retention.ms", SET, "5")).error_code == 0

    run(body, tmp_path)


def test_group_settings_are_set_described_and_taken_back(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        name = "share.record.lock.duration.ms"
        assert change(caller, GROUP, "g", (name, SET, "20000")).error_code == 0
        assert change(caller, GROUP, "g", (name, SET, "1")).error_code == ErrorCode.INVALID_CONFIG
        assert change(caller, GROUP, "g", ("retention.ms", SET, "1")).error_code == ErrorCode.INVALID_CONFIG
        (config,) = describe(caller, GROUP, "g", name).configs
        assert (config.value, config.config_source) == ("20000", ConfigSource.GROUP_CONFIG)
        assert [(each.name, each.value) for each in config.synonyms] == [(name, "20000"), (f"group.{name}", "30000")]
        assert caller.broker.topics.group_configs.resolve("g").integer(name) == 20_000
        assert change(caller, GROUP, "g", (name, DELETE, None)).error_code == 0
        (config,) = describe(caller, GROUP, "g", name).configs
        assert (config.value, config.config_source) == ("30000", ConfigSource.DEFAULT_CONFIG)
        assert caller.broker.topics.group_configs.resolve("g").integer(name) == 30_000

    run(body, tmp_path)


def test_group_settings_outlive_the_broker(tmp_path: Path) -> None:
    async def first(caller: Caller) -> None:
        assert replace(caller, GROUP, "g", share_auto_offset_reset="earliest").error_code == 0

    async def second(caller: Caller) -> None:
        assert caller.broker.topics.group_configs.resolve("g").text("share.auto.offset.reset") == "earliest"

    run(first, tmp_path)
    run(second, tmp_path)


def test_incremental_alter_configs_sets_deletes_appends_and_subtracts(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1, {"retention.ms": "5", "flush.ms": "7"})
        response = change(
            caller,
            TOPIC,
            "a",
            ("retention.ms", SET, "6"),
            ("flush.ms", DELETE, None),
            ("cleanup.policy", APPEND, "compact"),
        )
        assert (response.error_code, response.error_message) == (0, None)
        assert overrides(caller, "a") == {"retention.ms": "6", "cleanup.policy": "delete,compact"}
        assert change(caller, TOPIC, "a", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
        assert change(caller, TOPIC, "a", ("cleanup.policy", APPEND, "compact")).error_code == 0
        assert overrides(caller, "a") == {"retention.ms": "6", "cleanup.policy": "compact"}

    run(body, tmp_path)


def test_incremental_alter_configs_of_a_long_list_takes_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Items(list[str]):
        def __contains__(self, item: object) -> bool:
            raise AssertionError("a list of items was searched for each of them")

    monkeypatch.setattr(config_resources, "parse_text", lambda type_, text: Items(filter(None, text.split(","))))

    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        assert change(caller, TOPIC, "a", ("cleanup.policy", APPEND, "compact,delete")).error_code == 0
        assert overrides(caller, "a") == {"cleanup.policy": "delete,compact"}
        assert change(caller, TOPIC, "a", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
        assert overrides(caller, "a") == {"cleanup.policy": "compact"}

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("remote.storage.enable", SET, "true")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("flush.ms", SET, "1"), ("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
    ],
)
def test_incremental_alter_configs_of_what_cannot_be_changes_nothing(
    tmp_path: Path, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        response = change(caller, TOPIC, "a", *changes)
        assert response.error_code == code
        assert response.error_message
        assert overrides(caller, "a") == {}

    run(body, tmp_path)


@pytest.mark.parametrize("version", [0, 1])
def test_refusal_of_the_longest_value_can_be_sent(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        module = incremental_alter_configs
        config = module.AlterableConfig(name="retention.ms", config_operation=SET, value="x" * 32_766)
        resource = module.AlterConfigsResource(resource_type=TOPIC, resource_name="a", configs=[config])
        (response,) = caller.ask(IncrementalAlterConfigsRequest(resources=[resource]), version).responses
        assert response.error_code == ErrorCode.INVALID_CONFIG
        assert response.error_message.startswith("Invalid value xxx")

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(5))
def test_list_never_becomes_longer_than_can_be_described(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        name = "leader.replication.throttled.replicas"
        first, second = (",".join(f"{partition}:{broker}" for partition in range(3_600)) for broker in range(2))
        assert change(caller, TOPIC, "a", (name, APPEND, first)).error_code == 0
        refused = change(caller, TOPIC, "a", (name, APPEND, second))
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "longer than 32767 bytes" in refused.error_message
        (described,) = describe(caller, TOPIC, "a", name, version=version).configs
        assert described.value == first

    run(body, tmp_path)


def test_value_that_is_too_long_to_be_described_costs_only_its_resource(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        name = "leader.replication.throttled.replicas"
        caller.broker.topics.create("a", 1, {name: ",".join(f"{partition}:1" for partition in range(8_000))})
        assert describe(caller, TOPIC, "a").error_code == ErrorCode.INVALID_CONFIG
        assert describe(caller, TOPIC, "a", "retention.ms").error_code == 0

    run(body, tmp_path)


def test_alter_apis_validate_only_change_nothing(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        assert change(caller, TOPIC, "a", ("retention.ms", SET, "5"), validate_only=True).error_code == 0
        assert replace(caller, TOPIC, "a", validate_only=True, retention_ms="5").error_code == 0
        response = change(caller, TOPIC, "a", ("retention.ms", SET, "-5"), validate_only=True)
        assert response.error_code == ErrorCode.INVALID_CONFIG
        assert overrides(caller, "a") == {}

    run(body, tmp_path)


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_everything(tmp_path: Path, version: int) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1, {"retention.ms": "5", "flush.ms": "7"})
        assert replace(caller, TOPIC, "a", version, retention_ms="6").error_code == 0
        assert overrides(caller, "a") == {"retention.ms": "6"}
        assert replace(caller, TOPIC, "a", version, retention_ms=None).error_code == ErrorCode.INVALID_REQUEST
        assert replace(caller, TOPIC, "a", version, retention_ms="x").error_code == ErrorCode.INVALID_CONFIG
        assert overrides(caller, "a") == {"retention.ms": "6"}

    run(body, tmp_path)


def test_alter_configs_resource_given_twice_is_refused(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        caller.broker.topics.create("a", 1)
        for module, request in (
            (alter_configs, AlterConfigsRequest),
            (incremental_alter_configs, IncrementalAlterConfigsRequest),
        ):
            resource = module.AlterConfigsResource(resource_type=TOPIC, resource_name="a")
            response = caller.ask(request(resources=[resource, resource]), 1)
            assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_REQUEST] * 2

    run(body, tmp_path)


def test_dynamic_settings_of_the_broker_hold_for_topics_and_are_described(tmp_path: Path) -> None:
    async def body(caller: Caller) -> None:
        topic = caller.broker.topics.create("a", 1)
        assert change(caller, BROKER, "", ("log.retention.ms", SET, "7")).error_code == 0
        assert topic.partitions[0].log.config.retention_ms == 7
        (config,) = describe(caller, BROKER, "").configs
        assert (config.name, config.value, config.config_source) == (
            "log.retention.ms",
            "7",
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        )
        assert change(caller, BROKER, "1", ("log.retention.ms", SET, "9")).error_code == 0
        (config,) = describe(caller, BROKER, "1", "log.retention.ms").configs
        assert (config.value, config.config_source) == ("9", ConfigSource.DYNAMIC_BROKER_CONFIG)
        (config,) = describe(caller, TOPIC, "a", "retention.ms").configs
        assert (config.value, config.config_source) == ("9", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert change(caller, BROKER, "1", ("log.retention.ms", DELETE, None)).error_code == 0
        assert replace(caller, BROKER, "").error_code == 0
        assert describe(caller, BROKER, "").configs == []
        assert topic.log_config.retention_ms == 7 * 24 * 3600 * 1000

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.cleaner.backoff.ms", "16000"),
        ("log.cleaner.dedupe.buffer.size", "2097152"),
        ("log.cleaner.io.buffer.load.factor", "0.5"),
        ("log.cleaner.io.max.bytes.per.second", "1000.0"),
        ("producer.id.expiration.ms", "60000"),
    ],
)
def test_dynamic_settings_of_the_brokers_upkeep_are_taken(tmp_path: Path, key: str, value: str) -> None:
    async def body(caller: Caller) -> None:
        assert change(caller, BROKER, "1", (key, SET, value)).error_code == 0
        (config,) = describe(caller, BROKER, "1", key).configs
        assert (config.value, config.read_only, config.config_source) == (value, False, ConfigSource.DYNAMIC_BROKER_CONFIG)

    run(body, tmp_path)


@pytest.mark.parametrize("name", ["1", ""])
@pytest.mark.parametrize(("key", "value"), [("num.partitions", "3"), ("no.such", "3"), ("log.retention.ms", "-9")])
def test_dynamic_settings_that_cannot_be_are_refused(tmp_path: Path, name: str, key: str, value: str) -> None:
    async def body(caller: Caller) -> None:
        assert change(caller, BROKER, name, (key, SET, value)).error_code == ErrorCode.INVALID_REQUEST
        assert caller.broker.config.get("log.retention.ms") is None

    run(body, tmp_path)
