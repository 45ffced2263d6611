"""unittest: one broker for a test case, empty at the beginning of each test. pytest is not needed.

Run: pip install wirekafka confluent-kafka; python -m unittest examples/testing/test_with_unittest.py
"""

from __future__ import annotations

import unittest

from confluent_kafka import Producer

from wirekafka.testing import EmbeddedBroker


class OrdersTest(unittest.TestCase):
    broker: EmbeddedBroker

    @classmethod
    def setUpClass(cls) -> None:
        cls.broker = cls.enterClassContext(EmbeddedBroker())

    def setUp(self) -> None:
        self.broker.reset()
        self.broker.create_topic("orders", partitions=2)

    def order(self, customer: str) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        producer.produce("orders", key=customer, value=b"an order")
        self.assertEqual(producer.flush(30), 0)

    def test_orders_of_a_customer_are_in_one_partition(self) -> None:
        self.order("ann")
        self.order("ann")
        self.assertEqual(len({each.partition for each in self.broker.records("orders")}), 1)

    def test_each_test_begins_with_an_empty_topic(self) -> None:
        self.assertEqual(self.broker.records("orders"), [])
        self.order("ben")
        self.assertEqual([each.key for each in self.broker.records("orders")], [b"ben"])


if __name__ == "__main__":
    unittest.main()
