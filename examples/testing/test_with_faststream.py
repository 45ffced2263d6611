"""FastStream in a test: the application runs as in production, against a real broker in the same process.

FastStream's own TestKafkaBroker calls the handlers without Kafka. With a real broker, the test also covers groups, committed
offsets, and what is really in the topics.

Run: pip install wirekafka pytest 'faststream[kafka]'; pytest examples/testing/test_with_faststream.py
"""

from __future__ import annotations

import asyncio
import json

from faststream.kafka import KafkaBroker
from pydantic import BaseModel

from wirekafka.testing import EmbeddedBroker


class Order(BaseModel):
    customer: str
    amount: int


class Invoice(BaseModel):
    customer: str
    total: float


def make_app(bootstrap: str) -> KafkaBroker:
    """Returns the application, which writes an invoice for each order. This is the program under test."""
    app = KafkaBroker(bootstrap)

    @app.subscriber("orders", group_id="billing", auto_offset_reset="earliest")
    @app.publisher("invoices")
    async def bill(order: Order) -> Invoice:
        return Invoice(customer=order.customer, total=order.amount * 1.2)

    return app


async def run_until_billed(broker: EmbeddedBroker, *orders: Order) -> list[dict[str, object]]:
    """Runs the application until it has billed the orders; returns the invoices."""
    async with make_app(broker.bootstrap) as app:
        await app.start()
        for order in orders:
            await app.publish(order, "orders")
        invoices = await asyncio.to_thread(broker.wait_for_records, "invoices", len(orders), timeout_s=30)
    return [json.loads(each.value or b"") for each in invoices]


def test_each_order_has_an_invoice(kafka_broker: EmbeddedBroker) -> None:
    invoices = asyncio.run(run_until_billed(kafka_broker, Order(customer="ann", amount=10), Order(customer="ben", amount=20)))
    assert invoices == [{"customer": "ann", "total": 12.0}, {"customer": "ben", "total": 24.0}]
    kafka_broker.wait_for_committed("billing", "orders", 2)
