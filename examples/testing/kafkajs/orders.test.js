// Tests with kafkajs: faults, time and groups of a broker that is controlled over HTTP.
//
// Run, with Node 20 or later: pip install wirekafka; cd examples/testing/kafkajs; npm install; npm test

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { Kafka, logLevel } from "kafkajs";
import { startBroker } from "./broker.js";

let broker;
let kafka;

before(async () => {
  broker = await startBroker();
  kafka = new Kafka({
    brokers: [broker.bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 10, retries: 10 },
  });
});

beforeEach(() => broker.control("POST", "/reset"));

after(() => broker?.stop());

async function send(topic, ...values) {
  const producer = kafka.producer();
  await producer.connect();
  try {
    await producer.send({ topic, messages: values.map((value) => ({ value })) });
  } finally {
    await producer.disconnect();
  }
}

test("a brief lack of replicas is survived", async () => {
  await broker.control("POST", "/topics", { name: "orders" });
  const hits = await broker.withFault({ api: "Produce", error: "NOT_ENOUGH_REPLICAS", times: 2 }, () => send("orders", "one"));
  assert.equal(hits.length, 2);
  const { records } = await broker.control("GET", "/topics/orders/records");
  assert.deepEqual(records.map((record) => record.value), ["one"]);
});

test("records are deleted after their retention", async () => {
  await broker.control("POST", "/topics", {
    name: "orders",
    partitions: 1,
    settings: { "retention.ms": "3600000", "segment.ms": "1000" },
  });
  await send("orders", "one");
  await broker.control("POST", "/clock/advance", { seconds: 7200 });
  const { records } = await broker.control("GET", "/topics/orders/records");
  assert.deepEqual(records, []);
});

test("a consumer commits what it has read", async () => {
  await broker.control("POST", "/topics", { name: "orders" });
  await send("orders", "one", "two");
  const consumer = kafka.consumer({ groupId: "readers" });
  await consumer.connect();
  try {
    const read = [];
    await consumer.subscribe({ topic: "orders", fromBeginning: true });
    await consumer.run({ eachMessage: async ({ message }) => read.push(message.value.toString()) });
    const group = await broker.control("GET", "/groups/readers/stable/wait?members=1&timeout_s=60");
    assert.deepEqual(group.members[0].partitions, [{ topic: "orders", partition: 0 }]);
    await broker.control("GET", "/groups/readers/committed/wait?topic=orders&offset=2&timeout_s=60");
    assert.deepEqual(read, ["one", "two"]);
  } finally {
    await consumer.disconnect();
  }
});
