"""Kafka's settings as environment variables, by the rules of Apache Kafka's image.

Rules of the names: `KAFKA_` and the name of the setting in capitals, with `_` for each dot, `__` for each `_` and `___` for each
`-`. `KAFKA_LOG_RETENTION_HOURS` is log.retention.hours.

Source: kafka.docker.KafkaDockerWrapper.getServerConfigsFromEnv; docker/resources/common-scripts/configure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "KAFKA_"

OF_THE_JVM = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    }
)
"""Variables for Apache Kafka's scripts, which are no settings. Source: KafkaDockerWrapper.Constants.ExcludeServerPropsEnv."""

_OF_A_SERVICE = re.compile(r"KAFKA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_PORT_OF_A_SERVICE = re.compile(r"KAFKA_(\w+_)?PORT")
_URL = re.compile(r"(tcp|udp|sctp)://.*")
"""Kubernetes gives a pod such variables for each service; a service is often called kafka. Source: kubernetes.io, "Service", on
environment variables."""

_MARKS = {"_": ".", "__": "_", "___": "-"}


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """The settings of an environment.

    Attributes:
        values: the settings by name, as text.
        variables: for each setting the variable that sets it.
        ignored: the variables that begin like those of settings, and are none.
    """

    values: dict[str, str]
    variables: dict[str, str]
    ignored: list[str]


def read_environment(environment: Mapping[str, str]) -> EnvironmentSettings:
    """Returns the settings of an environment; they are not checked."""
    found = EnvironmentSettings({}, {}, [])
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        if _is_no_setting(variable, text):
            found.ignored.append(variable)
            continue
        name = setting_of(variable)
        found.values[name] = text
        found.variables[name] = variable
    return found


def _is_no_setting(variable: str, text: str) -> bool:
    if variable in OF_THE_JVM or _OF_A_SERVICE.fullmatch(variable):
        return True
    return _PORT_OF_A_SERVICE.fullmatch(variable) is not None and _URL.fullmatch(text) is not None


def setting_of(variable: str) -> str:
    """Returns the name of the setting that a variable stands for."""
    return re.sub("_{1,3}", lambda marks: _MARKS[marks[0]], variable.removeprefix(PREFIX).lower())


def listeners_for(advertised: str) -> str:
    """Returns the listeners for advertised ones: the same names and ports, on every IPv4 interface.

    Source: docker/resources/common-scripts/configure.
    """
    return ",".join(re.sub(r"://(\[[^]]*\]|[^:]*):", "://0.0.0.0:", each) for each in advertised.split(","))
