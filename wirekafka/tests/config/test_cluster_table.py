"""The settings of a member of a cluster with ZooKeeper."""

import pytest
import structlog.testing

from wirekafka.config import BrokerConfig, ConfigError, ConfigSource
from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.cluster_table import CLUSTER_SETTINGS, RACK_AWARE_SELECTOR
from wirekafka.config.definition import Setting

MEMBER = {"zookeeper.connect": "127.0.0.1:2181/kafka", "broker.id": "3"}


def load(**settings: str) -> BrokerConfig:
    return BrokerConfig.load(None, MEMBER | {name.replace("_", "."): value for name, value in settings.items()})


def test_member_has_the_settings_of_a_cluster() -> None:
    with structlog.testing.capture_logs() as logs:
        config = load(
            num_replica_fetchers="2",
            replica_selector_class=RACK_AWARE_SELECTOR,
            inter_broker_protocol_version="3.3-IV3",
            zookeeper_set_acl="false",
        )
    assert config.is_member
    assert config.node_id == 3
    assert config.integer("num.replica.fetchers") == 2
    assert config.inter_broker_release == "3.3"
    assert config.inter_broker_listener == "PLAINTEXT"
    assert config.text("replica.selector.class") == RACK_AWARE_SELECTOR
    assert config.origins("num.replica.fetchers")[0].source is ConfigSource.STATIC_BROKER_CONFIG
    assert [line["settings"] for line in logs] == [["zookeeper.set.acl"]]


def test_broker_without_zookeeper_has_none_of_them() -> None:
    config = BrokerConfig.load(None, {"num.replica.fetchers": "2", "zookeeper.connect": ""})
    assert not config.is_member
    assert config.integer("num.replica.fetchers") == 1
    assert sorted(config.without_effect) == ["num.replica.fetchers", "zookeeper.connect"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inter.broker.protocol.version": "2.7"}, "a release from 2.8 to 3.9"),
        ({"inter.broker.protocol.version": "4.0"}, "a release from 2.8 to 3.9"),
        ({"inter.broker.listener.name": "LAN"}, r"one of listeners \(PLAINTEXT\)"),
        ({"replica.selector.class": "com.example.Selector"}, "one of org.apache.kafka"),
        ({"broker.id": "-1"}, "ids are not generated"),
        ({"zookeeper.set.acl": "true"}, "not supported yet"),
        ({"zookeeper.ssl.client.enable": "true"}, "not supported yet"),
        ({"zookeeper.metadata.migration.enable": "true"}, "not supported yet"),
        ({"process.roles": "broker,controller"}, "process.roles: zookeeper.connect is set"),
        ({"controller.quorum.voters": "1@127.0.0.1:9093"}, "for clusters of KRaft"),
        ({"controller.quorum.bootstrap.servers": "127.0.0.1:9093"}, "leave zookeeper.connect out"),
    ],
)
def test_member_with_wrong_settings_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.load(None, MEMBER | settings)
    assert [str(error) for error in BrokerConfig.problems(MEMBER | settings)[0]] != []


@pytest.mark.parametrize("setting", CLUSTER_SETTINGS.values(), ids=lambda setting: setting.name)
def test_setting_of_a_member_accepts_its_own_default(setting: Setting) -> None:
    shown = setting.show(setting.default)
    if shown is not None:
        assert setting.parse(shown) == setting.default
    assert setting.documentation.endswith(".")
    assert setting.name not in BROKER_SETTINGS


def test_member_accepts_timestamps_as_the_other_brokers_of_its_cluster() -> None:
    name = "log.message.timestamp.after.max.ms"
    assert BrokerConfig.load(None, MEMBER).integer(name) == 2**63 - 1
    assert [origin.value for origin in BrokerConfig.load(None, MEMBER).origins(name)] == [2**63 - 1]
    assert BrokerConfig.load(None, MEMBER | {name: "5"}).integer(name) == 5
    assert BrokerConfig.load(None, {}).integer(name) == 3_600_000
