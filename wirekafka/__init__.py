"""A Kafka broker in Python: `open_broker` runs one inside a trio program, `wirekafka serve` in its own process."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig, ConfigError
    from wirekafka.server.running import RunningBroker, open_broker

__version__ = "0.1.0"

__all__ = ["BrokerConfig", "ConfigError", "RunningBroker", "__version__", "open_broker"]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used, so that parts of the package can be used without the whole broker."""
    if name in ("BrokerConfig", "ConfigError"):
        home = "wirekafka.config"
    elif name in ("RunningBroker", "open_broker"):
        home = "wirekafka.server.running"
    else:
        raise AttributeError(f"module 'wirekafka' has no attribute {name!r}")
    return getattr(import_module(home), name)
