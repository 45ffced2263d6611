"""Says in the words of a user what went wrong inside of Spark: which setting or which file, and what to do.

A failure in Spark reaches Python as an exception whose text holds the stack traces of the JVM and of the tasks' Python. `RULES`
is the table of the failures that users meet, from what such a text contains to what the user is told.

Source: error-conditions.json of Spark 4.0 and kafka-error-conditions.json of its connector.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from wirekafka.pipelines.errors import PipelineError, UnreachableError

LONGEST_CHARACTERS = 600
"""A message that no rule knows is cut to this length."""


class Rule(NamedTuple):
    """What the text of a failure contains, and what the user is told; `{0}` is the first group of the pattern."""

    pattern: re.Pattern[str]
    advice: str


OUTAGE = re.compile(
    r"(?:TimeoutException|DisconnectException|Failed to (?:construct|create) (?:new )?[Kk]afka|No resolvable bootstrap"
    r"|_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|COORDINATOR_NOT_AVAILABLE|NOT_COORDINATOR|NETWORK_EXCEPTION)[^\n]*"
)
"""What errors of Kafka's Java client and of librdkafka say when no broker answers."""

OWN_ERROR = re.compile(r"wirekafka\.pipelines(?:\.\w+)*\.(UnreachableError|SinkInterrupted|PipelineError): (.+)")
"""An error of the pipelines themselves, in the traceback of a task or of a foreachBatch function."""

QUERY_PREFIX = re.compile(r"\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")

PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)

DATA_LOSS = r"Some data may have been lost.*?Reason:\s*"

JVM_ENDED = (
    "Spark's Java process ended. If it was killed for its memory, give it less with --conf spark.driver.memory=1g; if a signal "
    "to stop reached it too, send signals to Python only (systemd: KillMode=mixed). The same command goes on where this one ended"
)

RULES = (
    Rule(
        re.compile(DATA_LOSS + r"(?:Cannot find initial offsets for p|P)artitions (.+?)\.? (?:They may )?have been", re.S),
        "the checkpoint has offsets of {0}, which the brokers do not have: the checkpoint belongs to other topics or to another "
        "cluster, or the topic was deleted. Give the topics that it began with, or use another checkpoint (a new lake)",
    ),
    Rule(
        re.compile(DATA_LOSS + r"([^\n]+)", re.S),
        "the brokers deleted records before the pipeline read them (retention, or a topic that was made again): {0} "
        "Raise retention.ms of the topic, and go on without these records with --allow-data-loss",
    ),
    Rule(
        re.compile(r"(Invalid value \S+ for configuration [^\n]+?)(?: SQLSTATE|\n|$)"),
        "Kafka's client refuses a setting: {0}. Check --kafka-option",
    ),
    Rule(
        re.compile(r"All masters are unresponsive"),
        "no Spark master answers at the address of --master: check the address, and that the master runs",
    ),
    Rule(
        re.compile(r"unresolved dependency: ([^\s;#]+#[^;\s]+;[^:\s]+)|UNRESOLVED DEPENDENCIES"),
        "Maven Central cannot be reached, or lacks {0}: install the release of PySpark that the tests use (pip install "
        "'pyspark==4.0.0'), or copy the jars of the connectors into a directory, and name it with --jars",
    ),
    Rule(
        re.compile(r"Could not parse Master URL|Master must either be yarn or start with spark, k8s, or local"),
        "--master is unknown to Spark: write local[*], local[2], spark://HOST:PORT, k8s://... or yarn",
    ),
    Rule(
        re.compile(r"UnsupportedClassVersionError|class file version (\d+)"),
        "Java is too old. Spark needs Java 17 or 21: install it, and let JAVA_HOME name it",
    ),
    Rule(
        re.compile(r"(?:Failed to find (?:the )?data source:|DATA_SOURCE_NOT_FOUND\][^\n]*?) ?(kafka|avro|delta)\b"),
        "Spark has no connector for {0}: open the session with wirekafka.pipelines.session.open_session, or add the package",
    ),
    Rule(
        re.compile(r"No module named '((?:wirekafka|confluent_kafka|pyarrow|numpy|pandas)\b[\w.]*)'"),
        "the Python of Spark's tasks has no module {0}: install wirekafka[spark] on every worker, or let PYSPARK_PYTHON name a "
        "Python that has it",
    ),
    Rule(
        re.compile(r"PYTHON_VERSION_MISMATCH.*?(?:different version|Python in worker)[^:]*?(\d\.\d+)", re.S),
        "the workers run Python {0}, the driver another version: let PYSPARK_PYTHON name the same version on both",
    ),
    Rule(
        re.compile(r'Cannot run program "([^"]*python[^"]*)"'),
        "the workers have no Python at {0}: let PYSPARK_PYTHON name the one they have",
    ),
    Rule(
        re.compile(r"(?:PermissionError: .*?|AccessControlException.*?|Permission denied: ?)'?(/[^'\n]*)'?"),
        "no permission to use {0}",
    ),
    Rule(
        re.compile(r"Answer from Java side is empty|Error while (?:sending or )?receiving"),
        JVM_ENDED,
    ),
    Rule(re.compile(r"No space left on device"), "no space is left on the device"),
    Rule(
        re.compile(r"FILE_NOT_EXIST\] Encountered error while reading file (?:file:)?(\S+?)\.? "),
        "the file {0} was compacted while it was read: run the command again",
    ),
    Rule(
        re.compile(r"java\.lang\.OutOfMemoryError: ?([^\n]*)"),
        "Spark ran out of memory ({0}): give the driver more with --conf spark.driver.memory=4g, on a cluster the executors "
        "with --conf spark.executor.memory=4g, or read fewer records in a batch",
    ),
)


def explain(text: str) -> PipelineError:
    """Returns the error for the text of a failure in Spark."""
    own = OWN_ERROR.findall(text)
    if own:
        kind, message = own[-1]
        return (PipelineError if kind == "PipelineError" else UnreachableError)(message)
    for rule in RULES:
        found = rule.pattern.search(text)
        if found is not None:
            detail = next((group.strip() for group in found.groups() if group), "them")
            return PipelineError(rule.advice.format(detail))
    outage = OUTAGE.search(text)
    if outage is not None:
        return UnreachableError(f"no broker answers: {_cut(outage[0])}")
    return PipelineError(_cut(_main_message(text)))


@contextmanager
def explained() -> Iterator[None]:
    """Turns the exceptions of Spark and of the operating system in the block into a PipelineError.

    Raises:
        PipelineError: Spark failed, or a file cannot be used.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (ConnectionRefusedError, ConnectionResetError) as error:
        raise PipelineError(JVM_ENDED) from error
    except (PySparkException, Py4JError) as error:
        raise explain(str(error)) from error
    except BrokenPipeError:
        raise  # the reader of the output ended, which the command line tells
    except OSError as error:
        what = f"cannot use {error.filename}" if error.filename is not None else "the operating system says"
        raise PipelineError(f"{what}: {error.strerror or error}") from error


def _main_message(text: str) -> str:
    """Returns the last error of Python in the text, or the first line of Spark's own message."""
    python = PYTHON_ERROR.findall(text)
    if python and "Traceback" in text:
        return "{}: {}".format(*python[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return QUERY_PREFIX.sub("", lines[0]) if lines else "Spark failed without a message"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CHARACTERS else text[:LONGEST_CHARACTERS] + "..."
