// A BullMQ producer: the commands and replies of produce.py.
"use strict";

const readline = require("node:readline");
const { Queue } = require("bullmq");
const { makePayload, readConnection } = require("./meter.cjs");

const BULK = 500;
const AWAITS = 50;
const WARM_UP = 200;
const OPTIONS = { removeOnComplete: true };

const queue = new Queue("bench", { connection: readConnection() });

async function sendSingles(task, jobs) {
  for (let sent = 0; sent < jobs; sent += 1) await queue.add(task, { payload: makePayload() }, OPTIONS);
}

async function sendConcurrent(task, jobs) {
  const shares = Array.from({ length: AWAITS }, (_, i) => Math.floor(jobs / AWAITS) + (i < jobs % AWAITS ? 1 : 0));
  await Promise.all(shares.map((share) => sendSingles(task, share)));
}

async function sendBulk(task, jobs) {
  for (let sent = 0; sent < jobs; sent += BULK) {
    const length = Math.min(BULK, jobs - sent);
    await queue.addBulk(Array.from({ length }, () => ({ name: task, data: { payload: makePayload() }, opts: OPTIONS })));
  }
}

async function sendSpaced(task, jobs, [low, high]) {
  for (let sent = 0; sent < jobs; sent += 1) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * (low + Math.random() * (high - low))));
    await sendSingles(task, 1);
  }
}

const SENDERS = { single: sendSingles, concurrent: sendConcurrent, bulk: sendBulk };

async function obey({ do: command, task, jobs, gap_s: gap }) {
  if (command === "pickup") await sendSpaced(task, jobs, gap);
  if (command === "fill") await sendBulk(task, jobs);
  if (!(command in SENDERS)) return {};
  const send = SENDERS[command];
  await send(task, WARM_UP);
  const started = performance.now();
  await send(task, jobs);
  const rate = (1000 * jobs) / (performance.now() - started);
  return { [command === "concurrent" ? "awaits" : command]: rate };
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await obey(JSON.parse(line))));
  }
  await queue.close();
}

main();
