// Starts a broker in a container, and prints its address; stops it when the standard input ends.
//
//     docker build -f docker/Dockerfile -t wirekafka .
//     cd examples/testcontainers/node && npm install && node example.js
//
// docs/docker.md says more. Tests that need no container start wirekafka as in examples/testing/kafkajs, which is faster.

import { once } from "node:events";
import { GenericContainer, Wait } from "testcontainers";

const broker = await new GenericContainer("wirekafka")
  .withExposedPorts(9092)
  .withEnvironment({ WIREKAFKA_PUBLISHED: "@/dev/shm/published", WIREKAFKA_TOPICS: "orders:3" })
  .withWaitStrategy(Wait.forLogMessage(" ready on "))
  .start();
const bootstrap = `${broker.getHost()}:${broker.getMappedPort(9092)}`;
await broker.exec(["sh", "-c", `echo ${bootstrap} > /dev/shm/published`]);

console.log(bootstrap);
process.stdin.resume();
await once(process.stdin, "end");
await broker.stop();
