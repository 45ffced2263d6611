"""`wirekafka pipeline ingest`: fills a lake from topics, each record once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wirekafka.cli.pipeline.shared import (
    allow_data_loss_option,
    batch_limit_option,
    cluster_options,
    dry_run_option,
    isolation_option,
    once_option,
    open_spark,
    pattern_option,
    print_plan,
    run_stream,
    selected_topics,
    session_options,
)

if TYPE_CHECKING:
    from wirekafka.pipelines.kafka import Cluster
    from wirekafka.pipelines.session import SessionOptions

EXAMPLE = """\b
Example:
  wirekafka pipeline ingest ./lake --bootstrap localhost:9092 --topic orders \\
      --topic payments --format json --once
"""


def _schema_files(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Returns the schema file of each topic; that of all other topics is at ""."""
    files = {}
    for text in values:
        topic, equals, path = text.rpartition("=")
        if equals and not topic:
            raise click.BadParameter(f"{text!r} is not TOPIC=FILE or FILE.", context, parameter)
        if not Path(path).is_file():
            raise click.BadParameter(f"File {path!r} does not exist.", context, parameter)
        files[topic] = Path(path)
    return files


@click.command(epilog=EXAMPLE)
@click.argument("lake", metavar="LAKE")
@cluster_options()
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="A topic to read. Can be given several times.")
@pattern_option
@click.option(
    "--format",
    "record_format",
    type=click.Choice(["raw", "json", "avro", "avro-confluent"]),
    default="raw",
    show_default=True,
    help="What the values are. avro: records of one schema. avro-confluent: a byte 0 and a schema's id are before each record.",
)
@click.option(
    "--sink",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="The format of the tables.",
)
@click.option(
    "--schema-file",
    "schema_files",
    metavar="[TOPIC=]FILE",
    multiple=True,
    callback=_schema_files,
    help="The schema of a topic's values, or of all: for json, Spark's DDL or a StructType's JSON; for avro, an Avro schema.",
)
@click.option(
    "--schema-registry",
    metavar="URL|DIR",
    help="For avro-confluent: a schema registry, or a directory with a file ID.avsc for each id.",
)
@click.option(
    "--sample-records",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Infer the schema of a topic of json without a schema file from this many records.",
)
@click.option("--keep-value-bytes", is_flag=True, help="Keep the bytes of each value too, in the column value_bytes.")
@click.option(
    "--dead-letters",
    metavar="TOPIC",
    help="Where records go that do not fit; by default the name of the directory with .dead-letters.",
)
@once_option
@click.option(
    "--interval", default="10 seconds", show_default=True, metavar="TIME", help="How often a batch begins, such as '1 minute'."
)
@batch_limit_option("--max-offsets-per-batch", "max_offsets_per_batch", 10_000_000)
@click.option(
    "--compact-every",
    type=click.IntRange(0),
    default=50,
    show_default=True,
    metavar="N",
    help="Merge the small files of the lake after each N batches; 0 for never.",
)
@click.option(
    "--file-bytes",
    type=click.IntRange(1),
    default=128 << 20,
    show_default=True,
    metavar="BYTES",
    help="About the size of the files that are merged.",
)
@click.option("--min-partitions", type=click.IntRange(1), metavar="N", help="Read a batch in at least this many tasks.")
@click.option(
    "--starting-offsets",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help='Where a new lake begins: earliest, latest, or offsets such as {"orders":{"0":23}}.',
)
@isolation_option
@allow_data_loss_option("allow_data_loss")
@session_options
@dry_run_option
def ingest(
    lake: str,
    cluster: Cluster,
    topics: tuple[str, ...],
    pattern: str | None,
    session: SessionOptions,
    dry_run: bool,
    **settings: Any,
) -> None:
    """Fills the directory LAKE with the records of topics, each record once.

    There is one table a topic, of Parquet files or in Delta Lake, with a directory for each date. The column value has the bytes
    of the value, or a struct of its fields. New fields and wider types extend the struct. Records that do not fit go to the
    dead-letter topic. Kill it at any time: the same command goes on where it ended.
    """
    from wirekafka.pipelines.ingest.options import IngestOptions
    from wirekafka.pipelines.ingest.query import connectors, describe, start_ingest

    options = IngestOptions(cluster, lake, selected_topics(topics, pattern), **settings)
    plan = describe(options)
    if dry_run:
        print_plan(plan)
        return
    with open_spark("ingest", connectors(options), session) as spark:
        run_stream(spark, lambda: start_ingest(spark, options))
