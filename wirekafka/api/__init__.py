"""One module for each Kafka API: its messages, its handler, and what differs from Apache Kafka.

Importing this package imports every module in it, and each enters its handler into `registry.APIS`: there is no other list.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
