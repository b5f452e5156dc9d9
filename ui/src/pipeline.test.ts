import { expect, it } from "vitest";
import { at, serverEvent } from "./fixtures";
import { countUnlistedQueues, describeLoss, formatEventTitle, newestGaps } from "./pipeline";

it("names the server and what happened", () => {
  expect(formatEventTitle(serverEvent())).toBe("Valkey: went back");
  expect(formatEventTitle(serverEvent({ server: "postgres", kind: "promoted" }))).toBe("PostgreSQL: promoted");
});

it("describes how many accepted jobs are missing according to the counters", () => {
  expect(describeLoss(serverEvent())).toBe("12 accepted jobs missing in 1 queue according to the counters");
  expect(describeLoss(serverEvent({ missing: 1 }))).toBe("1 accepted job missing in 1 queue according to the counters");
  expect(describeLoss(serverEvent({ missing: 0, queues: 0, losses: [] }))).toBe("no accepted jobs missing according to the counters");
});

it("counts the queues that are not listed", () => {
  expect(countUnlistedQueues(serverEvent())).toBe(0);
  expect(countUnlistedQueues(serverEvent({ queues: 40 }))).toBe(39);
});

it("shows the newest gaps first", () => {
  const gaps = [0, 60, 120].map((start) => ({ shard: 0, start: at(start), end: at(start + 5), events: null }));
  expect(newestGaps(gaps, 2).map((gap) => gap.start)).toEqual([at(120), at(60)]);
});
