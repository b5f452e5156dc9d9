// A BullMQ worker of concurrency 10.
"use strict";

const { Worker } = require("bullmq");
const meter = require("./meter.cjs");

const TASKS = {
  count: async () => meter.count(),
  burn: async () => meter.burn(),
  timed: async (job) => meter.recordStart(job.data.payload),
};

meter.startWriting();
const worker = new Worker("bench", (job) => TASKS[job.name](job), {
  concurrency: 10,
  connection: meter.readConnection(),
});

async function stop() {
  await worker.close();
  process.exit(0);
}

process.on("SIGTERM", stop);
