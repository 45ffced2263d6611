from pathlib import Path

import pytest
import structlog.testing

from wirekafka.config import BrokerConfig, ConfigError, ConfigSource, Listener
from wirekafka.config.broker import Origin

SHIPPED = Path(__file__).with_name("kafka_4_3_server.properties")


def load(**settings: str) -> BrokerConfig:
    return BrokerConfig.load(None, {name.replace("_", "."): value for name, value in settings.items()})


def test_load_of_kafkas_own_server_properties_works_and_warns_once() -> None:
    with structlog.testing.capture_logs() as logs:
        config = BrokerConfig.load(SHIPPED)
    assert config.listeners == [Listener("PLAINTEXT", "", 9092)]
    assert config.advertised_listeners == {"PLAINTEXT": Listener("PLAINTEXT", "localhost", 9092)}
    assert config.log_dirs == ["/tmp/kraft-combined-logs"]
    assert config.node_id == 1
    assert len(logs) == 1
    assert logs[0]["log_level"] == "warning"
    assert "num.io.threads" in logs[0]["settings"]
    assert "num.partitions" not in logs[0]["settings"]


def test_load_without_anything_has_kafkas_defaults_and_is_silent() -> None:
    with structlog.testing.capture_logs() as logs:
        config = BrokerConfig.load()
    assert logs == []
    assert config.integer("num.partitions") == 1
    assert config.boolean("auto.create.topics.enable") is True
    assert config.text("compression.type") == "producer"
    assert config.items("log.cleanup.policy") == ["delete"]
    assert config.number("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.get("broker.rack") is None
    assert config.rack is None
    assert config.log_dirs == ["/tmp/kafka-logs"]
    assert config.overrides == {}


def test_load_overrides_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nbroker.rack=here\n")
    config = BrokerConfig.load(path, {"num.partitions": "5"})
    assert config.integer("num.partitions") == 5
    assert config.rack == "here"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.partitions", "many", "accepted: an integer, at least 1"),
        ("num.partitions", "0", "accepted: an integer, at least 1"),
        ("num.partitions", "2147483648", "accepted: an integer, at least 1"),
        ("num.partitions", "1.5", "accepted: an integer, at least 1"),
        ("auto.create.topics.enable", "yes", "accepted: true or false"),
        ("compression.type", "GZIP", "one of uncompressed, zstd"),
        ("log.cleanup.policy", "compact,keep", "of compact, delete"),
        ("log.cleaner.min.cleanable.ratio", "half", "a number, from 0 to 1"),
        ("log.retention.hours", "0", "-1 for no limit, or at least 1"),
        ("log.retention.minutes", "0", "-1 for no limit, or at least 1"),
        ("log.retention.hours", "-2147483649", "an integer"),
        ("authorizer.class.name", "org.example.Authorizer", "not supported yet"),
        ("remote.log.storage.system.enable", "true", "not supported yet"),
        ("listeners", "", "at least one item"),
        ("log.dirs", ",", "no empty item and no duplicate"),
        ("log.dirs", "a,,b", "no empty item and no duplicate"),
        ("log.dirs", "a,b,a", "no empty item and no duplicate"),
        ("listeners", "127.0.0.1:9092", "NAME://HOST:PORT"),
        ("listeners", "PLAINTEXT://:99999", "NAME://HOST:PORT"),
        ("listeners", "SSL://:9092", "SSL is not supported yet"),
        ("listeners", "LAN://:9092", "no security protocol"),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "one address for each listener name"),
        ("controller.listener.names", "PLAINTEXT", "at least one listener"),
        ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "that clients can connect to"),
        ("advertised.listeners", "PLAINTEXT://[::]:9092", "that clients can connect to"),
        ("advertised.listeners", "PLAINTEXT://:9092", "that clients can connect to"),
        ("advertised.listeners", "LAN://host:9092", "no such listener"),
        ("listener.security.protocol.map", "PLAINTEXT", "NAME:PROTOCOL"),
        ("max.connections.per.ip.overrides", "127.0.0.1", "ADDRESS:NUMBER"),
        ("max.connections.per.ip.overrides", "127.0.0.1:many", "ADDRESS:NUMBER"),
        ("max.connections.per.ip.overrides", "localhost:3", "hosts by their IP address"),
        ("max.connections.per.ip", "0", "only together"),
        ("group.min.session.timeout.ms", "99999999", "at most the value of group.max.session.timeout.ms"),
        ("log.cleaner.dedupe.buffer.size", "1", "more than 1048576"),
        ("queued.max.request.bytes", "104857599", "at least socket.request.max.bytes, 104857600, or -1"),
        ("group.share.max.share.sessions", "199", r"at least the value of group\.share\.max\.size, 200"),
        ("group.share.session.timeout.ms", "60001", r"at most the value of group\.share\.max\.session\.timeout\.ms, 60000"),
        ("log.cleaner.io.buffer.load.factor", "NaN", "a number, more than 0, at most 1"),
        ("log.cleaner.io.buffer.load.factor", "0", "a number, more than 0, at most 1"),
        ("log.cleaner.io.buffer.load.factor", "1.1", "a number, more than 0, at most 1"),
        ("log.cleaner.io.max.bytes.per.second", "1_000", "accepted: a number"),
        ("log.cleaner.io.max.bytes.per.second", "Infinity", "accepted: a number"),
        ("log.cleaner.io.max.bytes.per.second", "1e400", "accepted: a number"),
        ("group.share.assignors", "", "just simple"),
        ("group.share.assignors", "simple,simple", "just simple"),
    ],
)
def test_load_of_what_cannot_be_is_one_error_naming_key_value_and_what_is_accepted(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        BrokerConfig.load(None, {name: value})
    assert value.split(",")[-1] in str(caught.value)
    assert caught.value.accepted in str(caught.value)


def test_load_of_an_unknown_setting_names_the_nearest_one_and_not_the_value() -> None:
    with pytest.raises(ConfigError, match=r"num\.partitons: there is no such setting.*perhaps num\.partitions") as caught:
        BrokerConfig.load(None, {"num.partitons": "sesame"})
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "instead"), [("host.name", "listeners=PLAINTEXT://HOST:PORT"), ("advertised.port", "advertised")]
)
def test_load_of_a_setting_that_kafka_has_dropped_names_its_replacement(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: Apache Kafka 3 dropped this setting; accepted: {instead}"):
        BrokerConfig.load(None, {name: "9092"})


@pytest.mark.parametrize(
    "settings",
    [
        {"password.encoder.secret": "sesame", "password.encoder.iterations": "4096"},
        {"group.share.enable": "true", "group.share.max.groups": "10", "eligible.leader.replicas.enable": "false"},
    ],
)
def test_load_of_settings_of_kafka_3_takes_them_without_effect(settings: dict[str, str]) -> None:
    assert sorted(BrokerConfig.load(None, settings).without_effect) == sorted(settings)


def test_load_of_a_setting_that_may_only_be_left_out_says_so() -> None:
    with pytest.raises(ConfigError, match="accepted: only to leave the setting out"):
        BrokerConfig.load(None, {"super.users": "User:a"})


def test_problems_are_all_found_at_once() -> None:
    given = {
        "num.partitions": "0",
        "super.users": "User:a",
        "nonsense": "1",
        "log.retention.ms": "0",
        "num.io.threads": "3",
        "listeners": "SSL://:9092",
        "broker.id": "1",
        "node.id": "2",
        "broker.rack": "here",
    }
    errors, without_effect = BrokerConfig.problems(given)
    names = ["num.partitions", "super.users", "nonsense", "listeners", "log.retention.ms", "broker.id"]
    assert sorted(error.name for error in errors) == sorted(names)
    assert list(without_effect) == ["num.io.threads"]


def test_problems_of_sound_settings_are_none() -> None:
    assert BrokerConfig.problems({"num.partitions": "3"}) == ([], {})


def test_load_of_two_listeners_with_one_address_names_both() -> None:
    listeners = "A://127.0.0.1:9092,B://127.0.0.1:9092"
    with pytest.raises(ConfigError, match=r"B://127\.0\.0\.1:9092.*listener A has the same address"):
        load(listeners=listeners, listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")
    load(listeners=listeners.replace("9092", "0"), listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")


@pytest.mark.parametrize(
    "name",
    ["sasl.jaas.config", "ssl.keystore.password", "delegation.token.secret.key", "ssl.keystore.pasword", "listener.name.lan.x"],
)
def test_load_error_of_a_secret_hides_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\[hidden\]") as caught:
        BrokerConfig.load(None, {name: "open sesame"})
    assert "sesame" not in str(caught.value)


def test_node_id_is_also_called_broker_id() -> None:
    assert load(broker_id="7").node_id == 7
    assert load(node_id="7").node_id == 7
    assert load(node_id="7", broker_id="7").node_id == 7
    assert load(broker_id="-1").node_id == 1
    with pytest.raises(ConfigError, match=r"broker\.id"):
        load(node_id="7", broker_id="8")


def test_listeners_have_hosts_of_every_kind() -> None:
    config = load(
        listeners="PLAINTEXT://[::1]:0,lan://10.0.0.1:9093",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT",
        advertised_listeners="LAN://kafka-1.example:9093",
    )
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://[::1]:0", "LAN://10.0.0.1:9093"]
    assert config.advertised_listeners == {"LAN": Listener("LAN", "kafka-1.example", 9093)}


def test_origins_list_layers_from_the_one_that_holds() -> None:
    config = load(log_retention_hours="24", log_retention_ms="5000")
    config.set_dynamic({"log.retention.ms": "7000"}, {"log.retention.ms": "9000"})
    assert config.get("log.retention.ms") == 9000
    assert config.origins("log.retention.ms") == [
        Origin("log.retention.ms", 9000, ConfigSource.DYNAMIC_BROKER_CONFIG),
        Origin("log.retention.ms", 7000, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        Origin("log.retention.ms", 5000, ConfigSource.STATIC_BROKER_CONFIG),
        Origin("log.retention.hours", 24, ConfigSource.STATIC_BROKER_CONFIG),
        Origin("log.retention.hours", 168, ConfigSource.DEFAULT_CONFIG),
    ]


def test_set_dynamic_of_a_wrong_value_changes_nothing() -> None:
    config = load()
    config.set_dynamic({"log.retention.ms": "7000"}, {})
    with pytest.raises(ConfigError):
        config.set_dynamic({"log.retention.ms": "-7"}, {})
    with pytest.raises(ConfigError):
        config.check_dynamic({"log.retention.ms": "0"}, {})
    assert config.get("log.retention.ms") == 7000


def test_max_connections_overrides_are_numbers_by_address() -> None:
    config = load(max_connections_per_ip_overrides="127.0.0.1:3, ::1:4,[2001:DB8:0:0::1]:5")
    assert config.max_connections_per_ip_overrides == {"127.0.0.1": 3, "::1": 4, "2001:db8::1": 5}


@pytest.mark.parametrize("text", ["1048576", "1048576.0", "+1048576", "1.048576E6", ".1048576e7", "1048576d"])
def test_load_of_a_number_takes_what_java_writes(text: str) -> None:
    assert load(log_cleaner_io_max_bytes_per_second=text).number("log.cleaner.io.max.bytes.per.second") == 1048576


@pytest.mark.parametrize("text", ["-2147483648", "2147483647"])
def test_load_of_an_integer_takes_all_that_java_holds(text: str) -> None:
    assert load(log_retention_hours=text).integer("log.retention.hours") == int(text)


def test_load_gives_each_cleaner_thread_its_share_of_memory() -> None:
    load(log_cleaner_threads="127")
    with pytest.raises(ConfigError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        load(log_cleaner_threads="128")


def test_load_of_a_heartbeat_as_long_as_the_session_names_the_one_that_was_set() -> None:
    heartbeats = {"group_consumer_max_heartbeat_interval_ms": "45000", "group_consumer_heartbeat_interval_ms": "45000"}
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms; .* less than the value of .*session\.timeout\.ms, 45000"):
        load(**heartbeats)
    sessions = {"group_share_min_session_timeout_ms": "5000", "group_share_session_timeout_ms": "5000"}
    with pytest.raises(ConfigError, match=r"session\.timeout\.ms; .* more than the value of .*heartbeat\.interval\.ms, 5000"):
        load(**sessions)
