"""Features: kafka-features.sh and the admin clients describe and change them, and the changes take effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import InvalidUpdateVersionError

from compat_tests.harness import broker as brokers
from compat_tests.harness import jars, tools
from compat_tests.harness.broker import CLASSES, Broker
from compat_tests.harness.clients import CONFLUENT, JAVA, Agent, Client
from compat_tests.harness.raw import RawConnection
from compat_tests.harness.tools import Outcome, Tools
from compat_tests.harness.topics import create_topic
from compat_tests.harness.transactions import OLD, RawProducer, ask, name_of
from compat_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

LEVELS = {"group.version": "1", "metadata.version": "4.3-IV0", "share.version": "1", "transaction.version": "2"}
"""The features that both brokers have at first; Apache Kafka has more."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class Described(NamedTuple):
    """A line of `kafka-features.sh describe`."""

    least: str
    most: str
    level: str
    epoch: int


@pytest.fixture(scope="module")
def featured_broker(broker_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Starts a broker whose features only these tests change."""
    with brokers.running(CLASSES[broker_kind](tmp_path_factory.mktemp("featured-broker"))) as running:
        yield running


class Features:
    """The features of a broker by the command line tool."""

    def __init__(self, jvm: Tools, broker: Broker) -> None:
        self._jvm = jvm
        self._broker = broker

    def run(self, *arguments: str) -> Outcome:
        return self._jvm.run(tools.FEATURES, "--bootstrap-server", self._broker.bootstrap, *arguments)

    def describe(self) -> dict[str, Described]:
        found = {}
        for line in self.run("describe").lines():
            name, least, most, level, epoch = re.findall(r"\w+: (\S+)", line)
            found[name] = Described(least, most, level, int(epoch))
        return found

    def set(self, name: str, level: int) -> None:
        """Sets the level of a feature, and waits until the broker has it; Kafka's broker gets it from its controller."""
        current = int(self.describe()[name].level)
        if level == current:
            return
        command = "upgrade" if level > current else "downgrade"
        outcome = self.run(command, "--feature", f"{name}={level}")
        assert (outcome.code, outcome.lines()) == (0, [f"{name} was {command}d to {level}."])
        self.wait_for(name, level)

    def wait_for(self, name: str, level: int) -> None:
        wait_until(lambda: self.describe()[name].level == str(level), timeout_s=60, what=f"{name} is {level}")


@pytest.fixture
def features(featured_broker: Broker, tools_jvm: Tools) -> Iterator[Features]:
    """Returns the features, and restores them afterwards."""
    features = Features(tools_jvm, featured_broker)
    yield features
    for name in ("group.version", "share.version", "transaction.version"):
        features.set(name, int(LEVELS[name]))


@pytest.fixture
def connection(featured_broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(featured_broker.address) as connection:
        yield connection


def update(connection: RawConnection, version: int, *updates: tuple[str, int, int], **settings: object) -> Any:
    asked = [
        {"feature": name, "max_version_level": level, "upgrade_type": type_, "allow_downgrade": type_ != UPGRADE}
        for name, level, type_ in updates
    ]
    return ask(connection, "update_features", version, feature_updates=asked, timeout=10_000, **settings)


def test_tool_describes_the_features(features: Features, broker_kind: str) -> None:
    found = features.describe()
    assert {name: found[name].level for name in LEVELS} == LEVELS
    assert {name: found[name].most for name in LEVELS} == LEVELS
    assert {name: found[name].least for name in LEVELS if name != "metadata.version"} == dict.fromkeys(
        ("group.version", "share.version", "transaction.version"), "0"
    )
    if broker_kind != jars.KAFKA:
        assert set(found) == set(LEVELS)


def test_tool_changes_levels_and_the_epoch_grows(features: Features) -> None:
    before = features.describe()["transaction.version"].epoch
    checked = features.run("downgrade", "--feature", "transaction.version=0", "--dry-run")
    assert (checked.code, checked.lines()) == (0, ["transaction.version can be downgraded to 0."])
    assert features.describe()["transaction.version"].level == "2"
    features.set("transaction.version", 1)
    between = features.describe()["transaction.version"].epoch
    assert between > before
    disabled = features.run("disable", "--feature", "share.version", "--feature", "group.version")
    assert (disabled.code, disabled.lines()) == (0, ["group.version was disabled.", "share.version was disabled."])
    features.wait_for("share.version", 0)
    assert {name: each.level for name, each in features.describe().items() if name in LEVELS} == {
        "group.version": "0",
        "metadata.version": "4.3-IV0",
        "share.version": "0",
        "transaction.version": "1",
    }
    assert features.describe()["share.version"].epoch > between


def test_levels_outlive_the_broker(features: Features, featured_broker: Broker) -> None:
    features.set("transaction.version", 1)
    before = features.describe()["transaction.version"]
    featured_broker.terminate()
    featured_broker.start()
    again = features.describe()["transaction.version"]
    assert again.level == "1"
    assert again.epoch >= before.epoch


WHY = "The update failed for all features since the following feature had an error: "
REFUSED = [
    (
        ("upgrade", "--feature", "transaction.version=7"),
        "Could not upgrade transaction.version to 7. "
        f"{WHY}Invalid update version 7 for feature transaction.version. Local controller 1 only supports versions 0-2",
    ),
    (
        ("upgrade", "--feature", "transaction.version=1"),
        f"Could not upgrade transaction.version to 1. {WHY}Invalid update version 1 for feature transaction.version. Can't "
        "downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
    ),
    (
        ("upgrade", "--feature", "no.version=1"),
        "Could not upgrade no.version to 1. "
        f"{WHY}Invalid update version 1 for feature no.version. Local controller 1 does not support this feature.",
    ),
    (
        ("disable", "--feature", "no.version"),
        f"Could not disable no.version. {WHY}Invalid update version 0 for feature no.version. Feature no.version not found.",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_tool_is_told_why_a_level_cannot_be(features: Features, arguments: tuple[str, ...], message: str) -> None:
    outcome = features.run(*arguments)
    assert outcome.code == 1
    assert outcome.lines() == [message]
    assert outcome.err.strip() == "1 out of 1 operation(s) failed."


@pytest.mark.parametrize("unsafe", [(), ("--unsafe",)])
def test_metadata_version_does_not_go_back(features: Features, unsafe: tuple[str, ...]) -> None:
    outcome = features.run("downgrade", "--feature", "metadata.version=29", *unsafe)
    assert outcome.code == 1
    assert outcome.lines()[0].startswith(f"Could not downgrade metadata.version to 29. {WHY}")
    assert features.describe()["metadata.version"].level == "4.3-IV0"


def test_answers_of_each_version(features: Features, connection: RawConnection) -> None:
    """In version 0 a downgrade is not allowed even where the request allows it."""
    refused = update(connection, 0, ("transaction.version", 1, SAFE_DOWNGRADE))
    assert name_of(refused.error_code) == "INVALID_UPDATE_VERSION"
    assert list(refused.results) == []
    done = update(connection, 0, ("transaction.version", 2, UPGRADE))
    assert (name_of(done.error_code), done.error_message) == ("NONE", None)
    assert [(each.feature, name_of(each.error_code), each.error_message) for each in done.results] == [
        ("transaction.version", "NONE", "NONE")
    ]
    done = update(connection, 1, ("transaction.version", 1, SAFE_DOWNGRADE), ("group.version", 1, UPGRADE), validate_only=True)
    assert [(each.feature, name_of(each.error_code), each.error_message) for each in done.results] == [
        ("transaction.version", "NONE", "NONE"),
        ("group.version", "NONE", "NONE"),
    ]
    done = update(connection, 2, ("transaction.version", 1, UNSAFE_DOWNGRADE), validate_only=True)
    assert (name_of(done.error_code), done.error_message) == ("NONE", None)
    assert features.describe()["transaction.version"].level == "2"


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        ([("transaction.version", 1, 0)], "1 for feature transaction.version. The controller does not support the given"),
        ([("transaction.version", 1, 9)], "1 for feature transaction.version. The controller does not support the given"),
        ([("transaction.version", -1, SAFE_DOWNGRADE)], "-1 for feature transaction.version. A feature version cannot be less"),
        ([("transaction.version", 2, SAFE_DOWNGRADE)], None),
        ([("transaction.version", 9, UPGRADE), ("transaction.version", 2, UPGRADE)], None),
        ([("group.version", 0, SAFE_DOWNGRADE), ("transaction.version", 9, UPGRADE)], "9 for feature transaction.version."),
        ([("", 1, UPGRADE)], "1 for feature . Local controller 1 does not support this feature."),
        ([], None),
    ],
)
def test_odd_updates_are_answered_as_kafka_does(
    features: Features, connection: RawConnection, updates: list[tuple[str, int, int]], reason: str | None
) -> None:
    answer = update(connection, 2, *updates)
    if reason is None:
        assert (name_of(answer.error_code), answer.error_message) == ("NONE", None)
    else:
        assert name_of(answer.error_code) == "INVALID_UPDATE_VERSION"
        assert answer.error_message.startswith(f"{WHY}Invalid update version {reason}")
    assert {name: each.level for name, each in features.describe().items() if name in LEVELS} == LEVELS


def test_way_up_is_no_downgrade(features: Features, connection: RawConnection) -> None:
    features.set("transaction.version", 0)
    answer = update(connection, 2, ("transaction.version", 1, SAFE_DOWNGRADE))
    assert (
        answer.error_message
        == f"{WHY}Invalid update version 1 for feature transaction.version. Can't downgrade to a newer version."
    )


def test_kafka_python_changes_features(features: Features, featured_broker: Broker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=featured_broker.bootstrap)
    try:
        assert admin.describe_features()["transaction.version"]["finalized"] == (2, 2)
        assert admin.update_features({"transaction.version": ("SAFE_DOWNGRADE", 1)}) == {"transaction.version": "OK"}
        features.wait_for("transaction.version", 1)
        assert admin.update_features({"transaction.version": 2}, validate_only=True) == {"transaction.version": "OK"}
        with pytest.raises(InvalidUpdateVersionError):
            admin.update_features({"transaction.version": 3})
        assert admin.update_features({"transaction.version": 2}) == {"transaction.version": "OK"}
        features.wait_for("transaction.version", 2)
    finally:
        admin.close()


def epoch_of(connection: RawConnection, topic: str) -> int:
    """Returns the epoch of the only producer that has written to partition 0."""
    (described,) = ask(connection, "describe_producers", 0, topics=[{"name": topic, "partition_indexes": [0]}]).topics
    (producer,) = described.partitions[0].active_producers
    return int(producer.producer_epoch)


def state_versions(agent: Agent, bootstrap: str, transactional_id: str) -> set[int]:
    """Returns the versions of the records of a transactional id in __transaction_state."""
    key = b"\0\0" + len(transactional_id).to_bytes(2, "big") + transactional_id.encode()
    records = agent.read(bootstrap, "__transaction_state", 0, until="end")
    return {record.value[1] for record in records if record.key == key and record.value}


def transact(agent: Agent, bootstrap: str, topic: str) -> None:
    """Makes three transactions of one record each; the second is aborted."""
    producer = agent.open_transactions(bootstrap, topic)
    for ending in (producer.commit, producer.abort, producer.commit):
        producer.begin()
        producer.send(topic, ending.__name__, partition=0)
        producer.flush()
        ending()
    producer.close()


@pytest.mark.parametrize(("level", "epochs", "record_version"), [(2, 3, 1), (1, 0, 1), (0, 0, 0)])
def test_java_producer_speaks_the_transactions_of_the_level(
    features: Features,
    featured_broker: Broker,
    connection: RawConnection,
    agent: Callable[[Client], Agent],
    topic: str,
    level: int,
    epochs: int,
    record_version: int,
) -> None:
    """In transactions v2 each end raises the producer's epoch; in the older protocol none does."""
    features.set("transaction.version", level)
    create_topic(featured_broker.bootstrap, topic)
    transact(agent(JAVA), featured_broker.bootstrap, topic)
    records = agent(CONFLUENT).read(featured_broker.bootstrap, topic, 0, isolation="read_committed", until="end")
    assert [record.value for record in records] == [b"commit", b"commit"]
    wait_until(lambda: epoch_of(connection, topic) == epochs, timeout_s=60, what=f"the producer's epoch is {epochs}")
    assert state_versions(agent(CONFLUENT), featured_broker.bootstrap, topic) == {record_version}


@pytest.mark.wirekafka_only("hides the newer versions of its APIs")
def test_java_producer_speaks_older_transactions_where_what_v2_needs_is_hidden(
    make_broker: Callable[..., Broker], agent: Callable[[Client], Agent], topic: str
) -> None:
    broker = make_broker({"wirekafka.api.versions.max": "EndTxn:4"})
    create_topic(broker.bootstrap, topic)
    transact(agent(JAVA), broker.bootstrap, topic)
    with RawConnection(broker.address) as connection:
        assert epoch_of(connection, topic) == 0


@pytest.mark.parametrize("level", [0, 1])
def test_a_producer_is_fenced_as_before_transactions_v2(
    features: Features, featured_broker: Broker, connection: RawConnection, topic: str, level: int
) -> None:
    features.set("transaction.version", level)
    create_topic(featured_broker.bootstrap, topic)
    first, second = RawProducer(connection, topic, OLD), RawProducer(connection, topic, OLD)
    assert first.init() == "NONE"
    assert first.add(topic) == "NONE"
    assert wait_until(lambda: first.produce(topic), timeout_s=60, what="a record is taken") == "NONE"
    assert second.init() == "NONE"
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 2)
    assert first.commit() == "PRODUCER_FENCED"
    assert epoch_of(connection, topic) == first.epoch + 1


def test_without_group_version_there_are_no_consumer_groups(
    features: Features, connection: RawConnection, featured_broker: Broker, topic: str
) -> None:
    create_topic(featured_broker.bootstrap, topic)

    def beat() -> str:
        beginning = {"member_epoch": 0, "rebalance_timeout": 30_000, "topic_partitions": []}
        names = {"group_id": topic, "member_id": "m", "subscribed_topic_names": [topic], "subscribed_topic_regex": None}
        answer = ask(connection, "consumer_group_heartbeat", 1, **beginning, **names, instance_id=None, rack_id=None)
        return name_of(answer.error_code)

    def describe() -> str:
        asked = {"group_ids": [topic], "include_authorized_operations": False}
        return name_of(ask(connection, "consumer_group_describe", 1, **asked).groups[0].error_code)

    transient = {"COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"}
    wait_until(lambda: ask(connection, "find_coordinator", 3, key_type=0, key=topic).error_code == 0, timeout_s=60, what="groups")
    wait_until(lambda: beat() not in transient, timeout_s=60, what="the group's coordinator is there")
    assert (beat(), describe()) == ("NONE", "NONE")
    features.set("group.version", 0)
    assert (beat(), describe()) == ("UNSUPPORTED_VERSION", "UNSUPPORTED_VERSION")
    features.set("group.version", 1)
    assert describe() == "NONE"


def test_without_share_version_there_are_no_share_groups(features: Features, connection: RawConnection, topic: str) -> None:
    member = {"group_id": topic, "member_id": "m"}
    session = {
        **member,
        "share_session_epoch": 0,
        "topics": [],
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1,
        "batch_size": 1,
    }

    def answers() -> dict[str, str]:
        beginning = {"member_epoch": 0, "rack_id": None, "subscribed_topic_names": [topic]}
        whole = {
            "share_group_heartbeat": ask(connection, "share_group_heartbeat", 1, **member, **beginning),
            "share_fetch": ask(connection, "share_fetch", 1, **session, max_records=1, forgotten_topics_data=[]),
            "share_acknowledge": ask(connection, "share_acknowledge", 1, **member, share_session_epoch=1, topics=[]),
            "alter_share_group_offsets": ask(connection, "alter_share_group_offsets", 0, group_id=topic, topics=[]),
            "delete_share_group_offsets": ask(connection, "delete_share_group_offsets", 0, group_id=topic, topics=[]),
        }
        named = [{"group_id": topic, "topics": None}]
        described = ask(connection, "share_group_describe", 1, group_ids=[topic], include_authorized_operations=False)
        offsets = ask(connection, "describe_share_group_offsets", 0, groups=named)
        of_groups = {"share_group_describe": described, "describe_share_group_offsets": offsets}
        return {api: name_of(answer.error_code) for api, answer in whole.items()} | {
            api: name_of(answer.groups[0].error_code) for api, answer in of_groups.items()
        }

    features.set("share.version", 0)
    assert set(answers().values()) == {"UNSUPPORTED_VERSION"}
    features.set("share.version", 1)
    assert "UNSUPPORTED_VERSION" not in answers().values()
