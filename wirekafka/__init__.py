"""A Kafka broker in Python: `open_broker` runs one inside a trio program, the `wirekafka` command in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wirekafka.config import BrokerConfig, ConfigError
    from wirekafka.server.running import RunningBroker, open_broker

__version__ = "0.1.0"

__all__ = ["BrokerConfig", "ConfigError", "RunningBroker", "__version__", "open_broker"]


def __getattr__(name: str) -> Any:
    """Imports a name when it is first asked for, so that a part can be used without loading the whole broker."""
    if name in ("BrokerConfig", "ConfigError"):
        from wirekafka import config as module
    elif name in ("RunningBroker", "open_broker"):
        from wirekafka.server import running as module
    else:
        raise AttributeError(f"module 'wirekafka' has no attribute {name!r}")
    return getattr(module, name)
