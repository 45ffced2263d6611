"""What is told of a batch, from the progress that Spark reports."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from wirekafka.pipelines.progress import BatchProgress, batch_progress, progress_table

KAFKA = {
    "description": "KafkaV2[Subscribe[orders, stock]]",
    "endOffset": {"orders": {"0": 10, "1": 5}, "stock": {"0": 7}},
    "latestOffset": {"orders": {"0": 15, "1": 6}, "stock": {"0": 7}},
}
STATE = {"numRowsTotal": 3, "memoryUsedBytes": 500, "numRowsDroppedByWatermark": 2}


def reported(**changes: Any) -> Mapping[str, Any]:
    """Returns a report of Spark, with these changes."""
    return {
        "id": "0b0b",
        "name": "counts",
        "timestamp": "2026-11-22T12:00:00.000Z",
        "batchId": 4,
        "durationMs": {"addBatch": 40, "triggerExecution": 50},
        "numInputRows": 22,
        "processedRowsPerSecond": 440.04,
        "stateOperators": [],
        "sources": [KAFKA],
    } | changes


def test_a_batch_tells_its_records_and_its_rate() -> None:
    assert batch_progress(reported()) == BatchProgress(
        "counts", 4, "2026-11-22T12:00:00.000Z", 22, 440.0, 50, {"orders": 6, "stock": 0}, 0, 0, None, 0
    )


def test_a_look_for_data_that_finds_none_is_no_batch() -> None:
    assert batch_progress(reported(durationMs={"latestOffset": 1, "triggerExecution": 2})) is None


def test_a_query_without_a_name_is_told_by_its_id() -> None:
    found = batch_progress(reported(name=None))
    assert found is not None
    assert found.query == "0b0b"


def test_the_state_is_that_of_all_operators() -> None:
    found = batch_progress(reported(stateOperators=[STATE, STATE]))
    assert found is not None
    assert (found.state_rows, found.state_bytes) == (6, 1000)


def test_a_batch_tells_its_watermark_and_the_rows_behind_it() -> None:
    watermark = "2026-11-22T11:50:00.000Z"
    found = batch_progress(reported(eventTime={"watermark": watermark}, stateOperators=[STATE, STATE]))
    assert found is not None
    assert (found.watermark, found.late_rows) == (watermark, 4)


def test_a_partition_that_was_not_read_yet_lags_by_all_its_offsets() -> None:
    found = batch_progress(reported(sources=[{**KAFKA, "endOffset": {"orders": {"0": 10}}}]))
    assert found is not None
    assert found.lag == {"orders": 11, "stock": 7}


def test_offsets_as_text_are_read_too() -> None:
    source = {**KAFKA, "endOffset": '{"orders": {"0": 1}}', "latestOffset": '{"orders": {"0": 3}}'}
    found = batch_progress(reported(sources=[source]))
    assert found is not None
    assert found.lag == {"orders": 2}


def test_a_source_that_is_not_kafka_has_no_lag() -> None:
    found = batch_progress(reported(sources=[{"description": "RateStreamV2", "endOffset": 3, "latestOffset": 9}]))
    assert found is not None
    assert found.lag is None


def test_a_batch_that_an_earlier_run_planned_has_no_lag() -> None:
    found = batch_progress(reported(sources=[{**KAFKA, "latestOffset": None}]))
    assert found is not None
    assert found.lag is None


def test_a_rate_that_is_no_number_is_zero() -> None:
    for rate in ("NaN", "Infinity", None):
        found = batch_progress(reported(processedRowsPerSecond=rate))
        assert found is not None
        assert found.records_per_second == 0


def test_the_table_has_the_last_batch_the_total_and_the_lag_of_each_query() -> None:
    found = batch_progress(reported(stateOperators=[STATE]))
    assert found is not None
    out = io.StringIO()
    Console(file=out, width=120).print(progress_table({"counts": found}, {"counts": 12345}, 61))
    text = out.getvalue()
    assert "61 s" in text
    assert all(word in text for word in ("counts", "22", "440", "12,345", "orders 6", "stock 0", "3"))
