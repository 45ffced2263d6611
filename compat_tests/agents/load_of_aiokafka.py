"""The load of aiokafka: see load.py."""

from __future__ import annotations

import asyncio
import os
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from load import ABORT_EACH, PAUSE_S, PLAIN, TRANSACTED, Load

NAME = "aiokafka"
REQUEST_TIMEOUT_MS = 5000
START_DELAY_S = 0.5


class LoadOfAiokafka(Load):
    """Writers and a reader in one event loop."""

    async def _open(self, **settings: object) -> AIOKafkaProducer:
        """Starts a producer, also while the brokers that it asks first are down."""
        while True:
            producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, metadata_max_age_ms=5000, **settings)
            try:
                await producer.start()
            except KafkaError as error:
                print("cannot start:", error, file=sys.stderr, flush=True)
                await asyncio.sleep(START_DELAY_S)
            else:
                return producer

    async def _send(
        self, producer: AIOKafkaProducer, topic: str, partition: int, payload: str, transaction: str = "-"
    ) -> asyncio.Future[object]:
        self.recorder.add("sent", NAME, topic, partition, payload, transaction)
        sent: asyncio.Future[object] = await producer.send(topic, payload.encode(), partition=partition)
        sent.add_done_callback(lambda done: self._note(done, payload))
        return sent

    def _note(self, done: asyncio.Future[object], payload: str) -> None:
        if done.cancelled() or done.exception() is not None:
            self.recorder.add("unknown", payload, "cancelled" if done.cancelled() else repr(done.exception()))
        else:
            offset = done.result().offset  # type: ignore[attr-defined]
            self.recorder.add("acked", payload, -1 if offset is None else offset)

    async def produce(self) -> None:
        # Batches are given up after the request timeout, retries included.
        producer = await self._open(enable_idempotence=True, request_timeout_ms=60_000)
        number = 0
        while not self.is_stopped.is_set():
            try:
                for partition in range(self.partition_count):
                    await self._send(producer, PLAIN, partition, f"{NAME}-p-{number}-{partition}")
            except KafkaError as error:
                print("opens another producer:", error, file=sys.stderr, flush=True)
                await close(producer)
                producer = await self._open(enable_idempotence=True, request_timeout_ms=60_000)
            number += 1
            await asyncio.sleep(PAUSE_S)
        await close(producer)

    async def _open_transactions(self) -> AIOKafkaProducer:
        return await self._open(transactional_id=NAME, transaction_timeout_ms=60_000, request_timeout_ms=60_000)

    async def transact(self) -> None:
        producer = await self._open_transactions()
        number = 0
        while not self.is_stopped.is_set():
            transaction = f"{NAME}-t-{number}"
            self.recorder.add("begun", transaction, NAME, 1)
            try:
                await self._transact_once(producer, transaction, is_aborted=number % ABORT_EACH == ABORT_EACH - 1)
            except KafkaError as error:
                print(transaction, repr(error), file=sys.stderr, flush=True)
                self.recorder.add("gave-up", transaction, repr(error))
                await close(producer)
                producer = await self._open_transactions()
            number += 1
            await asyncio.sleep(PAUSE_S)
        await close(producer)

    async def _transact_once(self, producer: AIOKafkaProducer, transaction: str, *, is_aborted: bool) -> None:
        await producer.begin_transaction()
        sent = [
            await self._send(producer, TRANSACTED, partition, f"{transaction}-{partition}", transaction)
            for partition in range(self.partition_count)
        ]
        await asyncio.gather(*sent)
        if is_aborted:
            self.recorder.add("end", transaction, "abort")
            await producer.abort_transaction()
            self.recorder.add("aborted", transaction)
        else:
            self.recorder.add("end", transaction, "commit")
            await producer.commit_transaction()
            self.recorder.add("committed", transaction)

    async def consume(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="none",
            enable_auto_commit=False,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=5000,
        )
        await consumer.start()
        places = [TopicPartition(topic, index) for topic in (PLAIN, TRANSACTED) for index in range(self.partition_count)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        while True:
            try:
                found = await consumer.getmany(timeout_ms=200)
            except KafkaError as error:
                print("reader:", repr(error), file=sys.stderr, flush=True)
                continue
            for place, records in found.items():
                for record in records:
                    self.note_read(NAME, place.topic, place.partition, record.offset, (record.value or b"").decode())


async def close(producer: AIOKafkaProducer) -> None:
    """Stops a producer, whatever state it is in."""
    try:
        await asyncio.wait_for(producer.stop(), 60)
    except (KafkaError, TimeoutError) as error:
        print("stop:", repr(error), file=sys.stderr, flush=True)


async def run(load: LoadOfAiokafka) -> None:
    """Runs the load until it is told to end."""
    loop = asyncio.get_running_loop()
    reader = loop.create_task(load.consume())
    writers = [loop.create_task(target()) for target in (load.produce, load.transact)]
    lines = loop.run_in_executor(None, sys.stdin.readline)
    done, _ = await asyncio.wait([reader, lines, *writers], return_when=asyncio.FIRST_COMPLETED)
    for task in done - {lines}:
        task.result()
    load.is_stopped.set()
    await asyncio.gather(*writers)
    print("stopped", flush=True)
    await asyncio.wait([reader, loop.run_in_executor(None, sys.stdin.readline)], return_when=asyncio.FIRST_COMPLETED)
    os._exit(int(reader.done()))


if __name__ == "__main__":
    asyncio.run(run(LoadOfAiokafka()))
