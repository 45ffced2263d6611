"""Every setting of a broker, of a topic and of a group, in tables that parse, describe and document them."""

from wirekafka.config.broker import BrokerConfig, ConfigSource
from wirekafka.config.definition import ConfigError
from wirekafka.config.endpoints import Listener
from wirekafka.config.group_table import GroupConfig
from wirekafka.config.log import LogConfig

__all__ = ["BrokerConfig", "ConfigError", "ConfigSource", "GroupConfig", "Listener", "LogConfig"]
