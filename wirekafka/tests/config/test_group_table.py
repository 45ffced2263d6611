import pytest

from wirekafka.config import BrokerConfig, ConfigError, GroupConfig
from wirekafka.config.group_table import GROUP_BOUNDS, GROUP_SETTINGS, check_group, duration_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1S", 1000),
        ("PT0S", 0),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt1m", 60_000),
        ("P2D", 172_800_000),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("PT-1S", None),
        ("-PT1S", None),
        ("1s", None),
        ("", None),
        (f"P{'9' * 30}D", None),
        pytest.param(f"P{'9' * 5000}D", None, id="more digits than Python converts"),
        pytest.param(f"PT{'9' * 400}S", None, id="more seconds than a float has"),
    ],
)
def test_duration_read_is_what_java_makes_of_it(text: str, ms: int | None) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("value", ["earliest", "latest", "by_duration:PT1H"])
def test_offset_reset_of_kafka_is_taken(value: str) -> None:
    check_group(BrokerConfig(), {"share.auto.offset.reset": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "by_duration"),
        ("share.auto.offset.reset", "by_duration:yesterday"),
        ("share.isolation.level", "serializable"),
        ("share.renew.acknowledge.enable", "maybe"),
        ("share.record.lock.duration.ms", "14999"),
        ("share.record.lock.duration.ms", "60001"),
        ("share.delivery.count.limit", "11"),
        ("share.delivery.count.limit", "1"),
        ("share.heartbeat.interval.ms", "4999"),
        ("share.assignment.interval.ms", "15001"),
        ("retention.ms", "1"),
    ],
)
def test_group_setting_that_kafka_refuses_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        check_group(BrokerConfig(), {name: value})


def test_group_without_settings_has_the_brokers() -> None:
    group = GroupConfig(BrokerConfig({"group.share.delivery.count.limit": "7"}), {})
    assert group.integer("share.delivery.count.limit") == 7
    assert group.text("share.auto.offset.reset") == "latest"
    assert group.boolean("share.renew.acknowledge.enable")


def test_group_setting_out_of_bounds_that_moved_is_the_nearest_bound() -> None:
    group = GroupConfig(BrokerConfig(), {"share.record.lock.duration.ms": "1000", "share.delivery.count.limit": "20"})
    assert group.integer("share.record.lock.duration.ms") == 15000
    assert group.integer("share.delivery.count.limit") == 10


def test_group_settings_are_those_of_kafka_that_are_honoured() -> None:
    assert {name for name in GROUP_SETTINGS if name.startswith("share.")} == {
        "share.assignment.interval.ms",
        "share.auto.offset.reset",
        "share.delivery.count.limit",
        "share.heartbeat.interval.ms",
        "share.isolation.level",
        "share.partition.max.record.locks",
        "share.record.lock.duration.ms",
        "share.renew.acknowledge.enable",
        "share.session.timeout.ms",
    }


@pytest.mark.parametrize("name", GROUP_BOUNDS)
def test_group_has_its_own_setting_or_else_the_brokers_within_bounds(name: str) -> None:
    bounds = GROUP_BOUNDS[name]
    default = BrokerConfig().integer(bounds.synonym)
    broker = BrokerConfig({bounds.synonym: str(default + 1)})
    assert GroupConfig(broker, {}).integer(name) == default + 1
    assert GroupConfig(broker, {name: str(default + 2)}).integer(name) == default + 2
    least, most = broker.integer(bounds.least), broker.integer(bounds.most)
    assert GroupConfig(broker, {name: str(most + 1)}).integer(name) == most
    assert GroupConfig(broker, {name: str(max(least - 1, 1))}).integer(name) == max(least, 1)
    with pytest.raises(ConfigError, match=f"less than or equal to {bounds.most}"):
        check_group(broker, {name: str(most + 1)})
    if least > 1:
        with pytest.raises(ConfigError, match=f"greater than or equal to {bounds.least}"):
            check_group(broker, {name: str(least - 1)})


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_group_session_must_last_longer_than_its_heartbeats_are_apart(kind: str) -> None:
    bounds = {f"group.{kind}.max.heartbeat.interval.ms": "45000"}
    names = {f"{kind}.session.timeout.ms": "45000", f"{kind}.heartbeat.interval.ms": "45000"}
    with pytest.raises(ConfigError, match="must be greater than"):
        check_group(BrokerConfig(bounds), names)
    check_group(BrokerConfig(bounds), names | {f"{kind}.heartbeat.interval.ms": "44999"})
