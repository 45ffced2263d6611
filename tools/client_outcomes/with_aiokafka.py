"""aiokafka."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tools.client_outcomes.jobs import GIVEN_UP, GROUP, MOST_SECONDS, REQUEST_TIMEOUT_MS, TOPIC, TRANSACTIONAL_ID, Result


class Aiokafka:
    """The jobs in aiokafka."""

    def write(self, bootstrap: str) -> Result:
        """Writes one record."""
        return asyncio.run(_write(bootstrap))

    def read(self, bootstrap: str, count: int) -> Result:
        """Reads a partition."""
        consumer = {"auto_offset_reset": "earliest"}
        return asyncio.run(_consume(bootstrap, count, **consumer))

    def join(self, bootstrap: str, count: int) -> Result:
        """Reads in a group."""
        consumer = {"auto_offset_reset": "earliest", "group_id": GROUP, "enable_auto_commit": False}
        return asyncio.run(_consume(bootstrap, count, **consumer))

    def transact(self, bootstrap: str) -> Result:
        """Writes in a transaction."""
        return asyncio.run(_transact(bootstrap))


async def _write(bootstrap: str) -> Result:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS)
    step = "start raises"
    try:
        await producer.start()
        step = "raises"
        await asyncio.wait_for(producer.send_and_wait(TOPIC, b"one"), MOST_SECONDS)
    except TimeoutError:
        return Result(GIVEN_UP)
    except KafkaError as error:
        return Result(f"{step} {_name_of(error)}")
    finally:
        await producer.stop()
    return Result()


async def _consume(bootstrap: str, count: int, **settings: Any) -> Result:
    result = Result()
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS, **settings)
    step = "start"
    try:
        await consumer.start()
        if "group_id" in settings:
            consumer.subscribe([TOPIC])
        else:
            consumer.assign([TopicPartition(TOPIC, 0)])
        async with asyncio.timeout(MOST_SECONDS):
            while not result.has_read(count):
                step = "poll"
                polled = await consumer.getmany(timeout_ms=MOST_SECONDS * 1000)
                result.values += [message.value for messages in polled.values() for message in messages]
                if polled and "group_id" in settings:
                    step = "commit"
                    await consumer.commit()
    except TimeoutError:
        result.error = GIVEN_UP
    except KafkaError as error:
        result.error = f"{step} raises {_name_of(error)}"
    finally:
        await consumer.stop()
    return result


async def _transact(bootstrap: str) -> Result:
    timeouts = {"request_timeout_ms": REQUEST_TIMEOUT_MS}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=TRANSACTIONAL_ID, **timeouts)
    step = "init"
    try:
        async with asyncio.timeout(MOST_SECONDS):
            await producer.start()
            step = "send"
            await producer.begin_transaction()
            await producer.send_and_wait(TOPIC, b"one")
            step = "commit"
            await producer.commit_transaction()
    except TimeoutError:
        return Result(GIVEN_UP)
    except KafkaError as error:
        told = f"{step} raises {_name_of(error)}"
        return Result(told if step == "init" else f"{told}, {await _abort(producer)}")
    finally:
        await producer.stop()
    return Result()


async def _abort(producer: Any) -> str:
    try:
        await producer.abort_transaction()
    except (KafkaError, AssertionError) as error:  # it asserts that the transaction has no fatal error
        return f"and so does abort: {_name_of(error)}"
    return "abort works"


def _name_of(error: Exception) -> str:
    return type(error).__name__
