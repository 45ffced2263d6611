"""All types of requests that brokers send to each other."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from wirekafka.wire import messages
from wirekafka.wire.requests import RequestType


def all_request_types() -> list[RequestType[Any, Any]]:
    """Returns the types that the modules of `wire.messages` declare, by key."""
    modules = [import_module(f"{messages.__name__}.{module.name}") for module in iter_modules(messages.__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, RequestType)]
    return sorted(found, key=lambda request_type: request_type.key)
