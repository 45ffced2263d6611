"""The tables of settings, compared with those of Apache Kafka 4.3.1 (`ConfigDef.configKeys`, dumped once)."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from wirekafka.config import ConfigError, LogConfig
from wirekafka.config.broker import check_other
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.cluster_table import CLUSTER_SETTINGS
from wirekafka.config.definition import Setting, Type
from wirekafka.config.documentation import configuration_page
from wirekafka.config.group_table import GROUP_BOUNDS
from wirekafka.config.topic_table import TOPIC_SETTINGS, TOPIC_SYNONYMS
from wirekafka.config.unsupported_settings import WITHOUT_EFFECT, accepted_of_refused, reason_without_effect

ROOT = Path(__file__).parents[3]
OUR_DEFAULTS = {"node.id", "controller.listener.names", "socket.receive.buffer.bytes", "socket.send.buffer.bytes"}


@dataclass
class KafkaSetting:
    scope: str
    name: str
    type: str
    default: str
    validator: str
    dynamic: str
    internal: str


def kafka_settings(scope: str) -> list[KafkaSetting]:
    path = Path(__file__).with_name("kafka_4_3_settings.tsv")
    with path.open(newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [setting for row in rows if (setting := KafkaSetting(**row)).scope == scope]


KAFKA_BROKER = kafka_settings("broker")
KAFKA_TOPIC = kafka_settings("topic")
PAIRS = [
    pytest.param(ours[kafka.name], kafka, id=f"{kafka.scope}-{kafka.name}")
    for ours, theirs in ((BROKER_SETTINGS, KAFKA_BROKER), (TOPIC_SETTINGS, KAFKA_TOPIC))
    for kafka in theirs
    if kafka.name in ours
]


@pytest.mark.parametrize(("setting", "kafka"), PAIRS)
def test_setting_has_type_default_and_bounds_of_kafka(setting: Setting, kafka: KafkaSetting) -> None:
    assert setting.type is Type[kafka.type]
    assert setting.is_internal == (kafka.internal == "yes")
    if setting.name not in OUR_DEFAULTS:
        assert setting.show(setting.default) == (None if kafka.default == "<null>" else kafka.default)
    if setting.is_dynamic:
        assert kafka.dynamic == "yes"


@pytest.mark.parametrize(
    ("setting", "kafka"), [pair for pair in PAIRS if re.match(r"\[-?\d", cast(KafkaSetting, pair.values[1]).validator)]
)
def test_setting_refuses_what_lies_outside_kafkas_bounds(setting: Setting, kafka: KafkaSetting) -> None:
    bounds = re.match(r"\[(-?\d+),\.\.\.(?:,(\d+))?\]", kafka.validator)
    assert bounds is not None
    is_fixed = setting.check is not None and setting.check.accepted.startswith("only")
    if is_fixed:
        return
    least, most = int(bounds[1]), None if bounds[2] is None else int(bounds[2])
    setting.parse(str(least))
    with pytest.raises(ConfigError):
        setting.parse(str(least - 1))
    if most is not None:
        setting.parse(str(most))
        with pytest.raises(ConfigError):
            setting.parse(str(most + 1))


@pytest.mark.parametrize("kafka", KAFKA_BROKER, ids=lambda kafka: kafka.name)
def test_broker_setting_of_kafka_is_honoured_without_effect_or_refused(kafka: KafkaSetting) -> None:
    if kafka.name in BROKER_SETTINGS:
        assert accepted_of_refused(kafka.name) is None
        assert reason_without_effect(kafka.name) is None
    elif kafka.default not in ("<null>", "<none>"):
        check_other(kafka.name, kafka.default)
    elif reason_without_effect(kafka.name) is None:
        with pytest.raises(ConfigError, match="not supported yet"):
            check_other(kafka.name, "anything")


def test_topic_settings_are_those_of_kafka() -> None:
    assert set(TOPIC_SETTINGS) == {kafka.name for kafka in KAFKA_TOPIC}


@pytest.mark.parametrize("setting", [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()], ids=lambda setting: setting.name)
def test_setting_accepts_its_own_default_as_it_is_shown(setting: Setting) -> None:
    shown = setting.show(setting.default)
    if shown is not None:
        assert setting.parse(shown) == setting.default
    assert setting.documentation.endswith(".")


def test_setting_without_effect_has_no_row_in_the_tables_of_brokers() -> None:
    """A reader of docs/configuration.md finds each setting of a broker once."""
    assert not WITHOUT_EFFECT.keys() & (BROKER_SETTINGS.keys() | CLUSTER_SETTINGS.keys())


@pytest.mark.parametrize("name", CLUSTER_SETTINGS)
def test_setting_of_a_member_has_no_effect_without_zookeeper(name: str) -> None:
    assert reason_without_effect(name) == "it is a setting of a member of a cluster, and zookeeper.connect is not set"


def test_configuration_page_is_what_the_tables_say() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration_page(), "run python docs/generate.py"


def code_outside_config() -> str:
    sources = [path for path in (ROOT / "wirekafka").rglob("*.py") if not {"tests", "config"} & set(path.parts)]
    return "\n".join(path.read_text() for path in sources)


READ_THROUGH = {
    "advertised.listeners": ".advertised_listeners",
    "broker.id": ".node_id",
    "broker.rack": "config.rack",
    "controller.listener.names": "config.listeners",
    "listener.security.protocol.map": "config.listeners",
    "listeners": "config.listeners",
    "log.dir": ".log_dirs",
    "log.dirs": ".log_dirs",
    "max.connections.per.ip.overrides": ".max_connections_per_ip_overrides",
    "node.id": ".node_id",
}


def test_broker_settings_are_each_read_by_some_code() -> None:
    code = code_outside_config()
    defaults = {synonym.name for synonyms in TOPIC_SYNONYMS.values() for synonym in synonyms}
    groups = {broker: f'"{group}"' for group, bounds in GROUP_BOUNDS.items() for broker in bounds}
    through = groups | READ_THROUGH
    asked = set(BROKER_SETTINGS) - defaults
    assert [name for name in asked if through.get(name, f'"{name}"') not in code] == []


def test_topic_settings_are_each_read_by_some_code() -> None:
    code = code_outside_config()
    through = {"cleanup_policy": "cleanup_policy|is_compacted|is_deleted", "message_timestamp_type": "has_append_time"}
    fields = LogConfig.__dataclass_fields__
    assert [name for name in fields if not re.search(rf"\.({through.get(name, name)})\b", code)] == []
