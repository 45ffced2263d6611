"""Starts Spark's JVM, and decides what of its output a user sees.

Spark's launcher prints much before Spark's logging begins: how packages are resolved, warnings of Java. All of it is kept until
the JVM runs. If the JVM does not start, it says why. From then on, what the JVM prints (log4j2.properties: errors, and warnings
that help) goes to stderr, so that stdout belongs to the pipeline alone.

Source: `launch_gateway` of pyspark/java_gateway.py, whose `popen_kwargs` are made for this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

LOGGING = Path(__file__).with_name("log4j2.properties")


class JvmOutput:
    """What the JVM prints: kept at first, then passed on to stderr."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._passes_on = False
        self._lock = threading.Lock()
        read_end, self.write_end = os.pipe()
        threading.Thread(target=self._read, args=(read_end,), name="output of Spark's JVM", daemon=True).start()

    def text(self) -> str:
        """Returns what was kept."""
        with self._lock:
            return "".join(self._kept)

    def pass_on(self) -> None:
        """Begins to write what comes from now on to stderr, and forgets what was kept."""
        with self._lock:
            self._kept.clear()
            self._passes_on = True

    def close(self) -> None:
        """Closes this process's end; the JVM has its own."""
        os.close(self.write_end)

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with self._lock:
                    if not self._passes_on:
                        self._kept.append(line)
                        continue
                sys.stderr.write(line)
                sys.stderr.flush()


def start_context(conf: SparkConf, output: JvmOutput) -> SparkContext:
    """Returns the SparkContext of a new JVM, or of the JVM that this process already has.

    Raises:
        PySparkException, Py4JError: the JVM or Spark did not start; `output` may say why.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    gateway = None
    try:
        if SparkContext._gateway is None:
            with killed_on_failure():
                gateway = launch_gateway(conf, {"stdout": output.write_end, "stderr": output.write_end})
    finally:
        output.close()
    return SparkContext(conf=conf, gateway=gateway)


@contextmanager
def killed_on_failure() -> Iterator[None]:
    """Kills the JVM that `launch_gateway` starts in the block if the block raises, as at Ctrl-C.

    PySpark then deletes the directory into which the JVM is about to write its port, and the JVM, which cannot, never ends.

    Source: `launch_gateway`, which keeps its `Popen` to itself, and org.apache.spark.api.python.PythonGatewayServer.
    """
    from pyspark import java_gateway

    launch, started = java_gateway.Popen, list[subprocess.Popen[bytes]]()

    def remember(*arguments: Any, **settings: Any) -> subprocess.Popen[bytes]:
        with _signals_held():
            started.append(launch(*arguments, **settings))
        return started[-1]

    java_gateway.Popen = remember
    try:
        yield
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        java_gateway.Popen = launch


@contextmanager
def _signals_held() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back until the block has ended.

    An exception of their handlers inside `Popen` would lose the process that it has started.
    """
    if threading.current_thread() is not threading.main_thread():  # no handler runs in another thread
        yield
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, lambda number, _: arrived.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for held in arrived:
        signal.raise_signal(held)
