"""Composes the controller of a broker: its settings, its connections to the brokers, and what it is told of the session.

How it works: every broker of a cluster has a `Controller`, which competes for `/controller` after each registration. The active
one connects to each broker at the address in the registration of that broker; also to its own broker, over loopback.

Nothing here is imported without `zookeeper.connect`.

Source: kafka.server.KafkaServer (startup), kafka.controller.ControllerChannelManager.addNewBroker.
"""

from __future__ import annotations

from functools import partial

from wirekafka.broker import Broker
from wirekafka.config import BrokerConfig
from wirekafka.controller.controller import Controller
from wirekafka.controller.partition_states import UNCLEAN_SETTING
from wirekafka.controller.settings import AutoRebalance, ControllerSettings
from wirekafka.membership.configs import TOPICS, ClusterConfigs
from wirekafka.membership.peers import MOST_RESPONSE_BYTES
from wirekafka.membership.registration import Registration
from wirekafka.replication.replica_fetcher import Channel
from wirekafka.server.peers import PeerConnections
from wirekafka.zookeeper.layout.membership import BrokerRegistration
from wirekafka.zookeeper.session import ZooKeeperClient


def compose_controller(
    broker: Broker,
    zookeeper: ZooKeeperClient,
    configs: ClusterConfigs,
    registration: Registration,
    connections: PeerConnections,
) -> Controller:
    """Returns the controller of this broker, which competes once the broker is registered.

    Args:
        configs: tells the changes of settings.
        connections: opens the connections to the brokers.
    """
    config, clock = broker.config, broker.clock

    def connect(broker_id: int, registered: BrokerRegistration) -> Channel:
        def address() -> tuple[str, int] | None:
            return address_of(newest_registration(controller, broker_id, registered), config.inter_broker_listener)

        # Kafka's client id for these connections is the id of the controller.
        client_id = str(broker.node_id)
        return connections.open(address, client_id, config.integer("controller.socket.timeout.ms"), MOST_RESPONSE_BYTES)

    controller = Controller(
        zookeeper,
        connect,
        clock,
        settings_of(config),
        now_ms=clock.now_ms,
        call_soon=partial(clock.call_later, 0),
        on_change=lambda: None,
    )
    zookeeper.add_state_listener(controller.note_session)
    registration.on_register.append(controller.note_registered)
    configs.on_change.append(partial(_note_settings, controller, config))
    return controller


def _note_settings(controller: Controller, config: BrokerConfig, kind: str, entity: str) -> None:
    """Tells the controller that changed settings may allow unclean elections.

    Source: kafka.server.TopicConfigHandler, kafka.server.DynamicLogConfig.
    """
    if kind == TOPICS:
        controller.note_unclean_election(entity)
    elif config.boolean(UNCLEAN_SETTING):
        controller.note_unclean_election(None)


def newest_registration(controller: Controller, broker_id: int, registered: BrokerRegistration) -> BrokerRegistration:
    """Returns what a broker has registered, whose endpoints may have changed since it was `registered`.

    A broker of Apache Kafka changes its registration when its listeners change, and keeps its broker epoch.
    """
    live = None if controller.context is None else controller.context.live.get(broker_id)
    return registered if live is None else live.registration


def address_of(registered: BrokerRegistration, listener_name: str) -> tuple[str, int] | None:
    """Returns the host and the port of a registered broker; None if the broker does not have the listener."""
    found = next((each.listener for each in registered.endpoints if each.listener.name == listener_name), None)
    return None if found is None else (found.host, found.port)


def settings_of(config: BrokerConfig) -> ControllerSettings:
    """Returns what the controller needs of the settings."""
    rebalance = AutoRebalance(
        interval_s=config.integer("leader.imbalance.check.interval.seconds"),
        imbalance_percent=config.integer("leader.imbalance.per.broker.percentage"),
    )
    return ControllerSettings(
        broker_id=config.node_id,
        listener_name=config.inter_broker_listener,
        release=config.inter_broker_release,
        unclean_leader_election=lambda: config.boolean(UNCLEAN_SETTING),
        allows_deletions=config.boolean("delete.topic.enable"),
        auto_rebalance=rebalance if config.boolean("auto.leader.rebalance.enable") else None,
    )
