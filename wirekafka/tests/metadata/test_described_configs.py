"""Settings as DescribeConfigs shows them."""

from __future__ import annotations

from wirekafka.config import BrokerConfig
from wirekafka.metadata.described_configs import describe_broker_settings, describe_default_settings

MEMBER = {"zookeeper.connect": "zk:2181", "broker.id": "3", "default.replication.factor": "3"}


def test_default_settings_of_a_member_include_those_that_only_a_member_has() -> None:
    config = BrokerConfig.load(None, MEMBER)
    config.set_dynamic({"leader.replication.throttled.rate": "1000"}, {})
    assert [(each.setting.name, each.value) for each in describe_default_settings(config)] == [
        ("leader.replication.throttled.rate", "1000")
    ]


def test_member_describes_its_own_default_replication_factor() -> None:
    described = {each.setting.name: each.value for each in describe_broker_settings(BrokerConfig.load(None, MEMBER))}
    assert described["default.replication.factor"] == "3"
