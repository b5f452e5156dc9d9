// Measures inside a worker, as meter.py does. Node cannot map a file: the count is written every few milliseconds.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const WRITE_MS = 2;
const SLOTS = 1024;
const SLOT_BYTES = 8;
const STAMP_DIGITS = 20;
const PAYLOAD_CHARS = 200;
const BURN_US = 1000;

const folder = process.env.BENCH_METER;
let jobs = 0n;
let written = 0n;

function count() {
  jobs += 1n;
}

/** Write the count at regular intervals until the process ends. */
function startWriting() {
  const file = fs.openSync(path.join(folder, "counts"), "r+");
  const cell = Buffer.alloc(SLOT_BYTES);
  setInterval(() => {
    if (jobs === written) return;
    written = jobs;
    cell.writeBigUInt64LE(written);
    fs.writeSync(file, cell, 0, SLOT_BYTES, (process.pid % SLOTS) * SLOT_BYTES);
  }, WRITE_MS);
}

/** Use 1 ms of CPU time, then count one job. */
function burn() {
  const start = process.cpuUsage();
  let used = start;
  do {
    used = process.cpuUsage(start);
  } while (used.user + used.system < BURN_US);
  count();
}

function makePayload() {
  return process.hrtime.bigint().toString().padStart(STAMP_DIGITS, "0").padEnd(PAYLOAD_CHARS, "x");
}

/** Append the time since the payload was made, in ns. */
function recordStart(payload) {
  const passed = process.hrtime.bigint() - BigInt(payload.slice(0, STAMP_DIGITS));
  fs.appendFileSync(path.join(folder, "starts"), `${passed}\n`);
}

/** Return the connection options for the URL of the server. */
function readConnection() {
  const url = new URL(process.env.BENCH_URL);
  return {
    host: url.hostname,
    port: Number(url.port),
    username: url.username,
    password: decodeURIComponent(url.password),
    db: Number(url.pathname.slice(1)),
    maxRetriesPerRequest: null,
  };
}

module.exports = { burn, count, makePayload, readConnection, recordStart, startWriting };
