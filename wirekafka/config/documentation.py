"""docs/configuration.md, written from the tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.cluster_table import CLUSTER_SETTINGS
from wirekafka.config.definition import Setting
from wirekafka.config.group_table import GROUP_BOUNDS, GROUP_SETTINGS
from wirekafka.config.topic_table import TOPIC_SETTINGS, TOPIC_SYNONYMS
from wirekafka.config.unsupported_settings import REFUSED_UNLESS, REPLACED, WITHOUT_EFFECT

_INTRODUCTION = """\
# Configuration

This page is written by `python docs/generate.py` from the tables in `wirekafka/config/`. `wirekafka config list` prints the
same settings. Names, types, defaults and bounds are those of Apache Kafka 4.3. Settings that begin with `wirekafka.` do not
exist in Apache Kafka. A setting that is neither on this page nor in Apache Kafka is an error.

`wirekafka serve FILE` reads Java's properties format. `--set KEY=VALUE` overrides the file. `wirekafka config check FILE` names
every error of a file at once. Settings marked *internal* are for tests; Apache Kafka does not document them.
"""

_BROKER = """\
## Settings of the broker

Settings marked *dynamic* can be changed while the broker runs (`kafka-configs --entity-type brokers --alter`).
"""

_MEMBER = """\
## Settings of a member of a cluster

With `zookeeper.connect` a broker is a member of a cluster, of wirekafka alone or beside
[brokers of Apache Kafka 2.8 to 3.9](mixed-clusters.md), and has these settings too. A broker without `zookeeper.connect` accepts
them without effect. Names, types, defaults and bounds are those of Apache Kafka 3.9. A member must set `broker.id` or `node.id`.
A member has the default of `log.message.timestamp.after.max.ms` of Apache Kafka 3.9, no limit. It refuses `true` for
`zookeeper.set.acl`, `zookeeper.ssl.client.enable` and `zookeeper.metadata.migration.enable`, and any value of
`process.roles`, `controller.quorum.voters` and `controller.quorum.bootstrap.servers`.
"""

_TOPIC = """\
## Settings of a topic

A topic gets these when it is created, or later (`kafka-configs --entity-type topics --alter`). A topic that does not set a
setting has the value of the broker's setting in the last column. If that column names several settings, the first one that is
set counts.
"""

_GROUP = """\
## Settings of a group

These settings belong to the group's name; the group need not exist (`kafka-configs --entity-type groups --alter`). A group that
does not set a setting has the value of the broker's setting in the last column. Settings of the broker with `.min.` and `.max.`
in their names bound the value.
"""

_WITHOUT_EFFECT = """\
## Accepted without effect

wirekafka lacks the features that these settings control. They are accepted with any value, so that a server.properties of Apache
Kafka works, and are named in one warning at start. `*` stands for any characters, but not for the settings in the tables above.
"""

_REPLACED = """\
## Replaced

Apache Kafka 3.0 dropped these settings (KAFKA-12945). They are refused with the setting to use instead.
"""

_REFUSED = """\
## Refused

Ignoring these settings would change what is safe or what clients see. They are errors, because wirekafka does not support
them yet. Only the values in the second column are accepted; each means the same as leaving the setting out.
"""


def configuration_page() -> str:
    """Returns the whole page."""
    sections = [
        _INTRODUCTION,
        _BROKER,
        _table("setting | type | default | accepted | meaning", map(_broker_row, BROKER_SETTINGS.values())),
        _MEMBER,
        _table("setting | type | default | accepted | meaning", map(_broker_row, CLUSTER_SETTINGS.values())),
        _TOPIC,
        _table("setting | type | default | accepted | meaning | broker's setting", map(_topic_row, TOPIC_SETTINGS.values())),
        _GROUP,
        _table("setting | type | default | accepted | meaning | broker's setting", map(_group_row, GROUP_SETTINGS.values())),
        _WITHOUT_EFFECT,
        _table("settings | because", _without_effect_rows()),
        _REPLACED,
        _table("setting | instead", (f"| `{name}` | `{instead}` |" for name, instead in REPLACED.items())),
        _REFUSED,
        _table("setting | accepted", map(_refused_row, sorted(REFUSED_UNLESS))),
    ]
    return "\n".join(sections)


def _table(head: str, rows: Iterable[str]) -> str:
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|---" * columns + "|", *rows]) + "\n"


def _cells(setting: Setting) -> str:
    shown = setting.show(setting.default)
    default = "" if shown is None else f"`{shown}`" if shown else "empty"
    accepted = setting.check.accepted if setting.check is not None else ""
    marks = "".join(
        f" *{mark}*" for mark, is_set in (("dynamic", setting.is_dynamic), ("internal", setting.is_internal)) if is_set
    )
    return f"`{setting.name}` | {setting.type.name.lower()} | {default} | {accepted} | {setting.documentation}{marks}"


def _broker_row(setting: Setting) -> str:
    return f"| {_cells(setting)} |"


def _topic_row(setting: Setting) -> str:
    synonyms = ", ".join(f"`{synonym.name}`" for synonym in TOPIC_SYNONYMS.get(setting.name, ()))
    return f"| {_cells(setting)} | {synonyms} |"


def _group_row(setting: Setting) -> str:
    bounds = GROUP_BOUNDS.get(setting.name)
    return f"| {_cells(setting)} | {f'`{bounds.synonym}`' if bounds is not None else ''} |"


def _without_effect_rows() -> list[str]:
    by_reason = sorted(WITHOUT_EFFECT.items(), key=lambda item: (item[1], item[0]))
    return [
        f"| {', '.join(f'`{name}`' for name, _ in group)} | {reason} |"
        for reason, group in groupby(by_reason, key=lambda item: item[1])
    ]


def _refused_row(name: str) -> str:
    return f"| `{name}` | {' or '.join(f'`{value}`' if value else 'empty' for value in REFUSED_UNLESS[name])} |"
