"""`wirekafka version`: the versions of wirekafka and of what it runs on."""

from __future__ import annotations

import json

import click

from wirekafka import __version__


@click.command()
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def version(is_json: bool) -> None:
    """Shows the versions of wirekafka, of Python, and of the client library that `wirekafka topic` and others use."""
    import platform

    versions = {"wirekafka": __version__, "python": platform.python_version(), **_library()}
    if is_json:
        click.echo(json.dumps(versions, indent=2))
        return
    for name, found in versions.items():
        click.echo(f"{name:<16} {found or 'not installed: pip install ' + repr('wirekafka[cli]')}")


def _library() -> dict[str, str | None]:
    try:
        import confluent_kafka
    except ImportError:
        return {"confluent-kafka": None}
    return {"confluent-kafka": confluent_kafka.__version__, "librdkafka": confluent_kafka.libversion()[0]}
