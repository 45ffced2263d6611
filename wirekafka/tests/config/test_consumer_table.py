import pytest

from wirekafka.config import BrokerConfig, ConfigError
from wirekafka.config.consumer_table import ASSIGNOR_CLASSES
from wirekafka.coordinator.groups.consumer.settings import ConsumerSettings


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"group.consumer.session.timeout.ms": "44999"}, "group.consumer.session.timeout.ms"),
        ({"group.consumer.session.timeout.ms": "60001"}, "group.consumer.session.timeout.ms"),
        ({"group.consumer.heartbeat.interval.ms": "4999"}, "group.consumer.heartbeat.interval.ms"),
        (
            {"group.consumer.heartbeat.interval.ms": "45000", "group.consumer.max.heartbeat.interval.ms": "45000"},
            "group.consumer.heartbeat.interval.ms",
        ),
        ({"group.consumer.assignment.interval.ms": "15001"}, "group.consumer.assignment.interval.ms"),
        ({"group.consumer.assignors": ""}, "group.consumer.assignors"),
        ({"group.consumer.assignors": "uniform,uniform"}, "group.consumer.assignors"),
        ({"group.consumer.assignors": "org.example.Mine"}, "group.consumer.assignors"),
        ({"group.consumer.migration.policy": "sideways"}, "group.consumer.migration.policy"),
        ({"group.consumer.regex.refresh.interval.ms": "9999"}, "group.consumer.regex.refresh.interval.ms"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "group.coordinator.rebalance.protocols"),
        ({"group.coordinator.rebalance.protocols": "classic,mine"}, "group.coordinator.rebalance.protocols"),
    ],
)
def test_consumer_setting_out_of_bounds_is_refused(settings: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(None, settings)
    assert raised.value.name == name


def test_consumer_settings_within_bounds_are_taken() -> None:
    config = BrokerConfig.load(
        None,
        {
            "group.consumer.assignors": "range",
            "group.consumer.migration.policy": "Upgrade",
            "group.coordinator.rebalance.protocols": "classic,consumer,share",
        },
    )
    assert config.items("group.consumer.assignors") == ["range"]
    assert config.text("group.consumer.migration.policy") == "Upgrade"


def test_assignors_named_by_kafkas_classes_are_those_of_the_same_names() -> None:
    config = BrokerConfig.load(None, {"group.consumer.assignors": ",".join(ASSIGNOR_CLASSES)})
    assert ConsumerSettings.of(config).assignors == ("uniform", "range")
    with pytest.raises(ConfigError):
        BrokerConfig.load(None, {"group.consumer.assignors": f"range,{list(ASSIGNOR_CLASSES)[1]}"})
