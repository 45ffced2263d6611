"""docs/configuration.md, written from the tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from wirekafka.config.broker_table import BROKER_SETTINGS
from wirekafka.config.definition import Setting
from wirekafka.config.group_table import GROUP_BOUNDS, GROUP_SETTINGS
from wirekafka.config.topic_table import TOPIC_SETTINGS, TOPIC_SYNONYMS
from wirekafka.config.unsupported_settings import REFUSED_UNLESS, WITHOUT_EFFECT

_INTRODUCTION = """\
# Configuration

Written by `python docs/generate.py` from the tables in `wirekafka/config/`. Names, types, defaults and bounds are those of
Apache Kafka 4.3, but for `wirekafka.*`, which Kafka does not have; a setting that is neither here nor in Kafka is an error.
`wirekafka serve FILE` reads Java's properties format, `--set KEY=VALUE` overrides it.
"""

_BROKER = """\
## Settings of the broker

Those marked *dynamic* can be changed while the broker runs (`kafka-configs --entity-type brokers --alter`).
"""

_TOPIC = """\
## Settings of a topic

Given when a topic is created, or changed later (`kafka-configs --entity-type topics --alter`). While a topic does not set one
itself, the broker's setting in the last column gives its value; where more than one is named, the first that is set.
"""

_GROUP = """\
## Settings of a group

Given to a group by its name, whether it exists or not (`kafka-configs --entity-type groups --alter`). While a group does not
set one itself, the broker's setting in the last column gives its value; those with `.min.` and `.max.` in their name bound it.
"""

_WITHOUT_EFFECT = """\
## Accepted without effect

What these govern does not exist in wirekafka. They are accepted with any value, so that a server.properties of Apache Kafka
works as it is, and named in one warning at start. `*` stands for any characters.
"""

_REFUSED = """\
## Refused

Leaving these out silently would change what is safe or what clients see, so they are an error: they are not supported yet. Only
the values given here say the same as leaving the setting out, and are accepted.
"""


def configuration_page() -> str:
    """The whole page."""
    sections = [
        _INTRODUCTION,
        _BROKER,
        _table("setting | type | default | accepted | meaning", map(_broker_row, _shown(BROKER_SETTINGS))),
        _TOPIC,
        _table("setting | type | default | accepted | meaning | broker's setting", map(_topic_row, _shown(TOPIC_SETTINGS))),
        _GROUP,
        _table("setting | type | default | accepted | meaning | broker's setting", map(_group_row, _shown(GROUP_SETTINGS))),
        _WITHOUT_EFFECT,
        _table("settings | because", _without_effect_rows()),
        _REFUSED,
        _table("setting | accepted", map(_refused_row, sorted(REFUSED_UNLESS))),
    ]
    return "\n".join(sections)


def _shown(settings: dict[str, Setting]) -> list[Setting]:
    return [setting for setting in settings.values() if not setting.is_internal]


def _table(head: str, rows: Iterable[str]) -> str:
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|---" * columns + "|", *rows]) + "\n"


def _cells(setting: Setting) -> str:
    shown = setting.show(setting.default)
    default = "" if shown is None else f"`{shown}`" if shown else "empty"
    accepted = setting.check.accepted if setting.check is not None else ""
    return f"`{setting.name}` | {setting.type.name.lower()} | {default} | {accepted} | {setting.documentation}"


def _broker_row(setting: Setting) -> str:
    return f"| {_cells(setting)}{' *dynamic*' if setting.is_dynamic else ''} |"


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
