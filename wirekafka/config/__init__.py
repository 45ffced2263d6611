"""Every setting of a broker and of a topic, in tables that parse, describe and document them."""

from wirekafka.config.broker import BrokerConfig, ConfigSource
from wirekafka.config.definition import ConfigError
from wirekafka.config.endpoints import Listener
from wirekafka.config.log import LogConfig

__all__ = ["BrokerConfig", "ConfigError", "ConfigSource", "Listener", "LogConfig"]
