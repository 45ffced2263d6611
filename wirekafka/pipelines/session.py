"""Opens the SparkSession of a pipeline: the master, the connectors' jars, and settings that suit a small machine.

The connectors come from Maven Central through `spark.jars.packages`, or, on a machine without access to it, from a directory of
jars. Each connector has the version that belongs to the installed PySpark.

Source: https://spark.apache.org/docs/latest/configuration.html
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from wirekafka.pipelines import jvm
from wirekafka.pipelines.errors import PipelineError
from wirekafka.pipelines.failures import explain
from wirekafka.pipelines.running import tell

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
TASK_ATTEMPTS = 4
"""A local master runs a failed task again this often in all, as a cluster does (spark.task.maxFailures)."""

CONNECT_TIMEOUT_S = 5.0

SLOW_AFTER_S = 20.0
SLOW_START = "Spark is still starting"
SLOW_FETCH = (
    "Spark is still starting; at the first run it fetches its connectors from Maven Central (--jars DIR takes them from a "
    "directory)"
)

ARROW_BATCH_BYTES = 32 << 20
"""Spark hands records to Python in batches of at most so many bytes, so that large records need little memory."""

AVRO_LIMITS = " ".join(
    f"-Dorg.apache.avro.limits.{name}.maxLength={limit}"
    for name, limit in {"bytes": 64 << 20, "string": 64 << 20, "collectionItems": 10_000_000}.items()
)
"""Java options by which a few bytes of damaged Avro that claim gibibytes are an error, and do not end the JVM.

Source: org.apache.avro.SystemLimitException
"""

DELTA_VERSIONS = {"4.0": "4.0.0"}
"""The release of Delta Lake for each release of Spark."""


class Connector(Enum):
    """A library that Spark needs beside PySpark; its value is the beginning of the names of its jars."""

    KAFKA = "spark-sql-kafka-0-10_2.13"
    AVRO = "spark-avro_2.13"
    DELTA = "delta-spark_2.13"


@dataclass(slots=True)
class SessionOptions:
    """How the SparkSession of a pipeline is opened.

    Attributes:
        master: a master URL of Spark.
        jars: a directory whose jars are used instead of packages from Maven Central.
        conf: more settings of Spark; they override those of wirekafka.
    """

    master: str = DEFAULT_MASTER
    jars: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def open_session(name: str, connectors: frozenset[Connector], options: SessionOptions) -> SparkSession:
    """Returns a new SparkSession, or the one that runs in this process.

    Raises:
        PipelineError: PySpark or Java is missing, a connector is missing, or the master does not answer.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError("PySpark is missing: pip install 'wirekafka[spark]'") from None
    if pyspark.SparkContext._active_spark_context is None:
        check_java()
        check_standalone_master(options.master)
        settings = settings_of(connectors, options, pyspark.__version__)
        _set_environment(options)
        conf = pyspark.SparkConf().setMaster(_with_task_attempts(options.master)).setAppName(f"wirekafka {name}")
        _start(conf.setAll(settings.items()))
    return SparkSession.builder.getOrCreate()


def settings_of(connectors: frozenset[Connector], options: SessionOptions, spark_version: str) -> dict[str, str]:
    """Returns the settings of the session; those of the user override those of wirekafka.

    Raises:
        PipelineError: the directory of jars lacks a connector, or no release of one is known for this Spark.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
        "spark.driver.defaultJavaOptions": f'"-Dlog4j2.configurationFile={jvm.LOGGING}" {AVRO_LIMITS}',
        "spark.executor.defaultJavaOptions": AVRO_LIMITS,
        **_jar_settings(connectors, options.jars, spark_version),
        **_delta_settings(connectors),
    }
    if is_local(options.master):
        settings["spark.sql.shuffle.partitions"] = str(local_cores(options.master))
    return {**settings, **options.conf}


def check_java() -> None:
    """Checks that there is a Java to run.

    Raises:
        PipelineError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(Path(home) / "bin" / "java", os.X_OK):
        raise PipelineError(f"JAVA_HOME names {home}, which has no bin/java: let it name a Java 17 or 21, or unset it")
    if not home and shutil.which("java") is None:
        raise PipelineError("Java is missing. Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)")


def _set_environment(options: SessionOptions) -> None:
    """Sets the variables by which PySpark takes the Python of the tasks and the address of the driver.

    Source: pyspark/core/context.py reads PYSPARK_PYTHON; only spark-submit reads spark.pyspark.python.
    """
    python = options.conf.get("spark.pyspark.python")
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    if is_local(options.master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@contextmanager
def told_if_slow(message: str, notify: Callable[[str], None], after_s: float = SLOW_AFTER_S) -> Iterator[None]:
    """Tells the message if the block still runs after some time."""
    timer = threading.Timer(after_s, notify, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell_on_terminal(message: str) -> None:
    """Tells a person; the log of a service keeps one line for an error."""
    if sys.stderr.isatty():
        tell(message)


def _start(conf: SparkConf) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    output = jvm.JvmOutput()
    fetches = conf.contains("spark.jars.packages")
    try:
        with told_if_slow(SLOW_FETCH if fetches else SLOW_START, _tell_on_terminal):
            jvm.start_context(conf, output)
    except (PySparkException, Py4JError) as error:
        raise explain(f"{output.text()}\n{error}") from error
    output.pass_on()


def check_standalone_master(master: str) -> None:
    """Checks that a standalone master listens; Spark itself would take a minute to say that none does.

    Raises:
        PipelineError: no master listens at an address of the URL.
    """
    addresses = master.removeprefix("spark://").split(",") if master.startswith("spark://") else []
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise PipelineError(f"the master {master!r} is malformed: write spark://HOST:PORT")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            return
    if addresses:
        raise PipelineError(f"no Spark master answers at {master}: check the address, and that the master runs")


def is_local(master: str) -> bool:
    """Whether Spark runs in this process's JVM alone."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str) -> int:
    """Returns the number of threads of a local master."""
    threads = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master)
    if threads is None:
        raise PipelineError(f"the master {master!r} is malformed: write local[*], local[2], or spark://HOST:PORT")
    return len(os.sched_getaffinity(0)) if threads[1] == "*" else int(threads[1] or 1)


def _with_task_attempts(master: str) -> str:
    """Returns a local master with Spark's usual number of attempts of a task; its own default is one."""
    bare = re.fullmatch(r"local\[(\*|\d+)\]", master)
    return f"local[{bare[1]},{TASK_ATTEMPTS}]" if bare else master


def _jar_settings(connectors: frozenset[Connector], jars: Path | None, spark_version: str) -> dict[str, str]:
    if not connectors:
        return {}
    if jars is None:
        packages = sorted(_coordinates(connector, spark_version) for connector in connectors)
        return {"spark.jars.packages": ",".join(packages)}
    found = sorted(jars.glob("*.jar"))
    for connector in connectors:
        if not any(path.name.startswith(connector.value) for path in found):
            missing = _coordinates(connector, spark_version)
            raise PipelineError(f"the directory {jars} has no {connector.value}-*.jar: copy {missing} and its dependencies there")
    return {"spark.jars": ",".join(str(path.resolve()) for path in found)}


def _coordinates(connector: Connector, spark_version: str) -> str:
    """Returns the Maven coordinates of a connector for a version of Spark."""
    if connector is not Connector.DELTA:
        return f"org.apache.spark:{connector.value}:{spark_version}"
    release = ".".join(spark_version.split(".")[:2])
    if release not in DELTA_VERSIONS:
        known = ", ".join(DELTA_VERSIONS)
        raise PipelineError(f"no Delta Lake is known for Spark {spark_version}: install PySpark {known}, or use --jars")
    return f"io.delta:{connector.value}:{DELTA_VERSIONS[release]}"


def _delta_settings(connectors: frozenset[Connector]) -> dict[str, str]:
    if Connector.DELTA not in connectors:
        return {}
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
