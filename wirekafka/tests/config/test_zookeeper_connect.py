"""The form of `zookeeper.connect`."""

from __future__ import annotations

import pytest

from wirekafka.config import BrokerConfig
from wirekafka.config.definition import ConfigError
from wirekafka.config.zookeeper_connect import split_connect


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("localhost:2181", "localhost:2181", ""),
        ("a:1,b:2", "a:1,b:2", ""),
        ("a:1/", "a:1", ""),
        ("a:1,[::1]:2/kafka", "a:1,[::1]:2", "/kafka"),
        ("a/clusters/one", "a", "/clusters/one"),
    ],
)
def test_connect_string_is_split_into_hosts_and_chroot(connect: str, hosts: str, chroot: str) -> None:
    assert split_connect(connect) == (hosts, chroot)


@pytest.mark.parametrize(
    "connect", ["", "/kafka", "a:1,,b:2", "a:1/kafka/", "a:1//kafka", "a:1/./kafka", "a:1/..", "a:x", "a:0,b:2", "a:65536"]
)
def test_connect_string_of_another_form_is_refused(connect: str) -> None:
    with pytest.raises(ValueError, match=r"zookeeper\.connect"):
        split_connect(connect)


def test_configuration_of_a_member_with_a_slash_at_the_end_of_the_chroot_is_refused() -> None:
    with pytest.raises(ConfigError, match="no path of ZooKeeper; .* without a slash at the end"):
        BrokerConfig.load(None, {"zookeeper.connect": "zk1:2181/kafka/", "broker.id": "1"})
