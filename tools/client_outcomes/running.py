"""Runs a case with a client, and checks the log after it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

from confluent_kafka import Producer

from tools.client_outcomes.cases import Case
from tools.client_outcomes.jobs import GROUP, TOPIC, Client, Result
from wirekafka.inspection.verification import verify
from wirekafka.testing import ActiveFault, EmbeddedBroker

PART = 3
"""The records of one part of the topic."""

HOUR_SECONDS = 3600
TIMEOUT_SECONDS = 30


class Stage:
    """A broker on which one client does its jobs.

    Args:
        logs: the directory that gets a copy of the data after each case, for Apache Kafka's reader of logs; None for no copies.
    """

    def __init__(self, broker: EmbeddedBroker, client: Client, logs: Path | None = None) -> None:
        self._broker = broker
        self._client = client
        self._logs = logs
        self._count = count()

    def outcome(self, case: Case) -> str:
        """Returns the cell of a case. The log is sound after the case, and after two hours more of the broker's time.

        Raises:
            AssertionError: the log is damaged.
        """
        broker = self._broker
        broker.reset()
        with broker.fault(times=case.times, **case.fault) as fault:
            # The topic is younger than the fault, so stale metadata does not have it.
            broker.create_topic(TOPIC, retention_ms=HOUR_SECONDS * 1000, segment_ms=1000)
            result = self._do(case, fault)
        assert fault.hits or result.error is None, f"no fault has caused {result}"
        told = (result.error or "goes on") if fault.hits else f"sends no {case.fault['api']}"
        cell = "; ".join([told, *self._surprises(case, result)])
        self._check_log()
        self._let_time_pass()
        self._check_log()
        return cell

    def _do(self, case: Case, fault: ActiveFault) -> Result:
        """Does the job; the second part of the records comes while it runs."""
        job: Callable[..., Result] = getattr(self._client, case.job)
        bootstrap = self._broker.bootstrap
        if case.job in ("write", "transact"):
            return job(bootstrap)
        self._write_part(0)
        if not case.has_second_part:
            return job(bootstrap, PART)
        # The first fault that matches takes a request, so this one shows those that come after it.
        with self._broker.fault(api=case.fault["api"], throttle_ms=0) as later, ThreadPoolExecutor(1) as pool:
            done: Future[Result] = pool.submit(job, bootstrap, 2 * PART)
            while not done.done() and not (fault.is_over and later.hits):
                time.sleep(0.05)
            self._write_part(1)
            return done.result()

    def _write_part(self, part: int) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap, "linger.ms": 0})
        for number in range(PART):
            producer.produce(TOPIC, b"%d" % (part * PART + number))
        assert producer.flush(TIMEOUT_SECONDS) == 0

    def _surprises(self, case: Case, result: Result) -> list[str]:
        """Returns what is not as the error, or its absence, lets a program expect."""
        succeeded = result.error is None
        if case.job in ("write", "transact"):
            found = len([each for each in self._broker.records(TOPIC) if each.is_committed and each.control is None])
            if found == (1 if succeeded else 0):
                return []
            what = "is committed" if case.job == "transact" else "is there"
            return [f"the record {what} {f'{found} times' if found > 2 else ('not at all', 'once', 'twice')[found]}"]
        surprises = [] if len(result.values) == len(set(result.values)) else ["reads records twice"]
        if case.job == "join":
            committed = self._broker.group(GROUP).committed.get((TOPIC, 0))
            if succeeded and committed != len(set(result.values)):
                surprises.append("the offset is not committed")
            if (result.error or "").startswith("commit") and committed is not None:
                surprises.append("the offset is committed")
        return surprises

    def _let_time_pass(self) -> None:
        """Lets transactions time out, and segments reach their age."""
        self._broker.clock.advance(2 * HOUR_SECONDS)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while any(each.control is None for each in self._broker.records(TOPIC)):
            assert time.monotonic() < deadline, f"retention has left {self._broker.records(TOPIC)}"
            time.sleep(0.005)

    def _check_log(self) -> None:
        snapshot = self._broker.snapshot()
        try:
            damages = list(verify(snapshot.path, advance=lambda _: None, reads_records=True).damages())
            assert not damages, damages
            if self._logs is not None:
                shutil.copytree(snapshot.path, self._logs / str(next(self._count)))
        finally:
            snapshot.close()
