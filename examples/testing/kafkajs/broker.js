// A broker for tests: `wirekafka serve` in a process of its own, controlled over HTTP (docs/control.md).

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

const [program, ...given] = (process.env.WIREKAFKA ?? "wirekafka").split(" ");
const READY = / ready on (\S+), data in .*, control on (\S+) /;

export async function startBroker() {
  const args = [...given, "serve", "--listen", "127.0.0.1:0", "--control-port", "0", "--temporary", "--log-level", "warning"];
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  const ended = once(child, "exit");
  for await (const line of createInterface({ input: child.stdout })) {
    const ready = READY.exec(line);
    if (ready) {
      return new Broker(child, ended, ready[1], ready[2]);
    }
  }
  throw new Error("the broker has not started; its messages are above");
}

class Broker {
  constructor(child, ended, bootstrap, url) {
    this.child = child;
    this.ended = ended;
    this.bootstrap = bootstrap;
    this.url = url;
  }

  // Sends a request to the control port; returns its JSON, or throws the text of the error.
  async control(method, path, body) {
    const response = await fetch(this.url + path, {
      method,
      headers: { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const json = await response.json();
    if (!response.ok) {
      throw new Error(json.error);
    }
    return json;
  }

  // Orders a fault for as long as `act` runs; returns the requests that it has hit.
  async withFault(fault, act) {
    const { id } = await this.control("POST", "/faults", fault);
    let ended;
    try {
      await act();
    } finally {
      ended = await this.control("DELETE", `/faults/${id}`);
    }
    return ended.hits;
  }

  async stop() {
    this.child.kill("SIGTERM");
    await this.ended;
  }
}
