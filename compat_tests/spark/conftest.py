"""Fixtures of the tests of the pipelines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness.pipelines import PipelineProcess
from compat_tests.harness.spark_cluster import StandaloneCluster, standalone_cluster

MakePipeline = Callable[..., PipelineProcess]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[MakePipeline]:
    """Makes processes of `wirekafka pipeline ...`, which are not started yet, and kills those that still run at the end."""
    count = itertools.count()
    with ExitStack() as stack:

        def make(*arguments: object, **more: Any) -> PipelineProcess:
            made = PipelineProcess(arguments, tmp_path / f"pipeline-{next(count)}", **more)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Returns a standalone cluster of Spark with two workers, which the test may kill."""
    with standalone_cluster(tmp_path / "cluster") as running:
        yield running
