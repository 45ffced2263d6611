"""The data pipelines of Kafka as programs of Spark, through PySpark; the extra `wirekafka[spark]` installs what they need.

Rules of this package: Spark is the engine, so no record is processed outside of it. Nothing else in wirekafka imports PySpark,
pyarrow or numpy. They are imported only when a pipeline is used.
"""

from __future__ import annotations

import importlib
from typing import Any

EXPORTS = {
    "AuditOptions": "wirekafka.pipelines.audit.options",
    "BackfillOptions": "wirekafka.pipelines.backfill.options",
    "CheckOptions": "wirekafka.pipelines.check.options",
    "ClaimCounter": "wirekafka.pipelines.audit.claims",
    "IngestOptions": "wirekafka.pipelines.ingest.options",
    "MirrorOptions": "wirekafka.pipelines.mirror.options",
    "open_lake": "wirekafka.pipelines.lake.lake",
    "run_audit": "wirekafka.pipelines.audit.run",
    "run_backfill": "wirekafka.pipelines.backfill.job",
    "run_check": "wirekafka.pipelines.check.run",
    "run_mirror": "wirekafka.pipelines.mirror.commands",
    "start_ingest": "wirekafka.pipelines.ingest.query",
    "start_mirror": "wirekafka.pipelines.mirror.commands",
    "translate_groups": "wirekafka.pipelines.mirror.commands",
}
"""The functions and options of the pipelines, and their modules."""


def __getattr__(name: str) -> Any:
    """Imports a name of `EXPORTS` at its first use."""
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(EXPORTS[name]), name)


def register(spark: Any) -> None:
    """Adds the data source `wirekafka-log` to a SparkSession: `spark.read.format("wirekafka-log").load(DATA_DIR)`.

    The Python that runs Spark's tasks needs wirekafka and the packages of the extra `wirekafka[spark]` too. That Python is the
    `python3` of the path, unless the environment variable PYSPARK_PYTHON names another.

    Raises:
        ImportError: the packages of the extra are missing.
    """
    from wirekafka.pipelines.log_source.source import LogDataSource

    spark.dataSource.register(LogDataSource)
