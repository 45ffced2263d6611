"""Writes the pages that are generated from code: `python docs/generate.py`.

The pages are the table in README.md, between its two markers; docs/differences.md, with the section "Differs from Apache Kafka"
of each API's docstring and of other modules that have one; docs/configuration.md, with every setting; and wirekafka/api/index.py,
from which ApiVersions answers before the APIs' modules are imported.
With `--check` nothing is written; the exit code is 1 if a page is out of date.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import click

from wirekafka import clock
from wirekafka.api.registry import all_apis
from wirekafka.config.documentation import configuration_page
from wirekafka.coordinator import patterns
from wirekafka.coordinator.share_delivery import share_partition
from wirekafka.log import validation
from wirekafka.log.compaction import passes
from wirekafka.wire import codec

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- apis: written by docs/generate.py -->", "<!-- end of apis -->"
INDEX_HEAD = '''"""Where each API is, and its versions: written by `python docs/generate.py` from what the modules say.

So that a broker starts without importing all of them: each is imported when a client first asks for its API.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One API: Kafka's name for it, its module in this package, and the versions served, from the first to the last."""

    name: str
    module: str
    first: int
    last: int

'''
HEADING = "Differs from Apache Kafka"
MODULES = {
    "Records": validation,
    "Share partitions": share_partition,
    "Compaction": passes,
    "Regular expressions": patterns,
    "Timeouts": clock,
    "Sizes of requests and responses": codec,
}
"""The modules with differences that are not APIs, by the heading of their section."""


def api_table() -> str:
    """Returns the README's table with a row for each API: key, API, served versions."""
    rows = [f"| {api.key} | {api.name} | {api.versions[0]}-{api.versions[-1]} |" for api in all_apis()]
    return "\n".join(["| key | API | versions |", "|---|---|---|", *rows])


def differences_of(name: str, doc: str) -> str | None:
    """Returns the text under "Differs from Apache Kafka" in a docstring; None if the section says that nothing differs."""
    found = re.search(rf"^{HEADING}:?[ \t]*\n?(.*?)(?=^[A-Z][\w ()]*:|\Z)", doc, re.DOTALL | re.MULTILINE)
    if found is None:
        raise click.ClickException(f"the docstring of {name} has no section {HEADING!r}")
    text = textwrap.dedent(found.group(1)).strip()
    return None if text.rstrip(".").lower() in {"", "nothing", "no difference", "none"} else text[0].upper() + text[1:]


def differences_page() -> str:
    """Returns the text of docs/differences.md."""
    introduction = (
        "# Where wirekafka differs from Apache Kafka\n\n"
        "This page is written by `python docs/generate.py` from the docstrings of `wirekafka/api/` and of a few other modules.\n"
        "What is not listed here is meant to behave as in Apache Kafka 4.3. What is missing altogether is listed in\n"
        "[architecture.md](architecture.md).\n"
    )
    docs = {api.name: api.doc for api in all_apis()} | {name: module.__doc__ or "" for name, module in MODULES.items()}
    sections = [f"## {name}\n\n{text}\n" for name, doc in docs.items() if (text := differences_of(name, doc)) is not None]
    return "\n".join([introduction, *sections])


def readme_page() -> str:
    """Returns README.md with the table of the present registry."""
    text = (ROOT / "README.md").read_text()
    return re.sub(rf"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{api_table()}\n{END}", text, flags=re.DOTALL)


def index_page() -> str:
    """Returns the text of wirekafka/api/index.py."""
    rows = []
    for api in all_apis():
        module = api.handler.__module__.removeprefix("wirekafka.api.")
        rows.append(f'    {api.key}: Entry("{api.name}", "{module}", {api.versions[0]}, {api.versions[-1]}),')
    return f'''{INDEX_HEAD}
INDEX = {{
{chr(10).join(rows)}
}}
"""By key."""
'''


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a page is out of date.")
def main(check: bool) -> None:
    """Writes or checks the pages."""
    pages = {
        ROOT / "README.md": readme_page(),
        ROOT / "docs" / "differences.md": differences_page(),
        ROOT / "docs" / "configuration.md": configuration_page(),
        ROOT / "wirekafka" / "api" / "index.py": index_page(),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if check and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        raise click.ClickException(f"out of date: {names}; run python docs/generate.py")
    for path in stale:
        path.write_text(pages[path])


if __name__ == "__main__":
    main()
