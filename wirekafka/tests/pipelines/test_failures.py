"""What a user is told about a failure inside of Spark. The texts are those of Spark 4.0.0, shortened."""

from __future__ import annotations

import pytest

from wirekafka.pipelines.errors import PipelineError, UnreachableError
from wirekafka.pipelines.failures import LONGEST_CHARACTERS, explain, explained

LOST = (
    "[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: Some data may have been lost because they are not "
    "available in Kafka any more;\neither the data was aged out by Kafka or the topic may have been deleted before all the data "
    "in the\ntopic was processed.\nIf you don't want your streaming query to fail on such cases, set the source option "
    "failOnDataLoss to false.\nReason: "
)
TRACEBACK = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LOST + "Partitions orders-0 have been deleted. SQLSTATE: 22000", "the checkpoint has offsets of orders-0, which"),
        (LOST + "Cannot find initial offsets for partitions orders-1. They may have been deleted.", "offsets of orders-1"),
        (LOST + "Starting offset for orders-0 was 200 but consumer reset to 900.", "was 200 but consumer reset to 900"),
        ("Error: Master must either be yarn or start with spark, k8s, or local", "--master is unknown to Spark"),
        ("[unresolved dependency: org.apache.spark#spark-avro_2.13;4.0.0: not found]", "lacks org.apache.spark#spark-avro"),
        ("ConfigException: Invalid value NONE for configuration a.b: no SQLSTATE: X", "setting: Invalid value NONE for"),
        ("java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main", "Java is too old"),
        ("org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka.",
         "no connector for kafka"),
        (TRACEBACK + "ModuleNotFoundError: No module named 'wirekafka'", "no module wirekafka: install"),
        ('java.io.IOException: Cannot run program "/opt/python3": error=2', "no Python at /opt/python3"),
        (TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/data/t-0'", "no permission to use /data/t-0"),
        ("java.io.IOException: No space left on device", "no space is left"),
        ("[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/lake/topic=t/a.parquet. File.",
         "/lake/topic=t/a.parquet was compacted while it was read: run the command again"),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat java.base", "(Java heap space): give the driver more"),
    ],
)  # fmt: skip
def test_a_known_failure_is_told_with_what_to_do(text: str, told: str) -> None:
    error = explain(text)
    assert told in str(error)
    assert not isinstance(error, UnreachableError)


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: describeTopics",
        "org.apache.kafka.common.KafkaException: Failed to construct kafka consumer",
        TRACEBACK + 'cimpl.KafkaException: KafkaError{code=_TRANSPORT,val=-195,str="Failed"}',
        TRACEBACK + "wirekafka.pipelines.errors.UnreachableError: no broker answers at localhost:9092",
        TRACEBACK + "wirekafka.pipelines.transactional_sink.failures.SinkInterrupted: commit: _FENCED",
    ],
)
def test_an_outage_is_told_apart(text: str) -> None:
    assert isinstance(explain(text), UnreachableError)


def test_an_error_of_the_pipelines_is_told_as_it_is() -> None:
    text = f"org.apache.spark.SparkException: {TRACEBACK}wirekafka.pipelines.errors.PipelineError: the lake is full\n\tat org"
    assert str(explain(text)) == "the lake is full"


def test_an_error_of_python_is_told_by_its_last_line() -> None:
    assert str(explain(f"x\n{TRACEBACK}ValueError: 7 is odd\n\tat org.apache.spark")) == "ValueError: 7 is odd"


def test_an_unknown_failure_is_told_by_the_first_line() -> None:
    assert str(explain("\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'.\n== SQL ==")) == "[PARSE_SYNTAX_ERROR] Syntax error at 'x'."


def test_the_failure_of_a_query_is_told_without_the_ids_of_the_query() -> None:
    assert (
        str(explain("[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: odd SQLSTATE: 1")) == "odd SQLSTATE: 1"
    )


def test_a_long_message_is_cut() -> None:
    assert len(str(explain("x" * 10_000))) == LONGEST_CHARACTERS + 3


def test_the_end_of_the_java_process_is_told() -> None:
    with pytest.raises(PipelineError, match="Spark's Java process ended"), explained():
        raise ConnectionRefusedError(111, "Connection refused")
    assert str(explain("Answer from Java side is empty")).startswith("Spark's Java process ended")


def test_a_broken_pipe_of_the_output_is_no_failure_of_spark() -> None:
    with pytest.raises(BrokenPipeError), explained():
        raise BrokenPipeError


def test_a_failure_without_a_text_has_a_message() -> None:
    assert type(explain("")) is PipelineError
    assert str(explain(""))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied", "/root/lake"), "cannot use /root/lake: Permission denied"),
        (OSError(28, "No space left on device"), "the operating system says: No space left on device"),
    ],
)
def test_an_error_of_the_operating_system_is_told_in_one_line(error: OSError, told: str) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(PipelineError, match=told), explained():
        raise error
