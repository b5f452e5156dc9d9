import { expect, it } from "vitest";
import type { PipelineProcess } from "./apiTypes";
import { at, pipelineProcess, serverEvent, valkeyServer } from "./fixtures";
import { countUnlistedQueues, describeExport, describeForecast, describeLoss, describeReportProblem, formatEventTitle, newestGaps, spoolShare, sumStreams } from "./pipeline";

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

it("explains a report that is not current", () => {
  expect(describeReportProblem(pipelineProcess())).toBe("");
  expect(describeReportProblem(pipelineProcess({ condition: "stale" }))).toContain("last values");
  expect(describeReportProblem(pipelineProcess({ condition: "missing" }))).toContain("headrace pipeline");
});

it("shows the circuit breaker before the health of the exporter", () => {
  const exporting = (values: Partial<NonNullable<PipelineProcess["export"]>>) => {
    const process = pipelineProcess();
    return describeExport({ ...process, export: process.export && { ...process.export, ...values } });
  };
  expect(exporting({})).toEqual({ text: "sending", tone: "plain" });
  expect(exporting({ healthy: false })).toEqual({ text: "failing", tone: "bad" });
  expect(exporting({ healthy: false, breaker: "open" })).toEqual({ text: "waiting", tone: "bad" });
  expect(exporting({ breaker: "half_open" })).toEqual({ text: "probing", tone: "warn" });
  expect(exporting({ breaker: null })).toBeNull();
  expect(describeExport(null)).toBeNull();
});

it("measures the spool by its fuller limit, and does not guess", () => {
  expect(spoolShare(pipelineProcess())).toBe(0.5);
  expect(spoolShare(pipelineProcess({ spool: null }))).toBeNull();
  expect(spoolShare(null)).toBeNull();
});

it("adds up streams only if all are known", () => {
  const stream = (length: number | null) => ({ shard: 0, length, max_length: 100, unread: null, enabled: true });
  expect(sumStreams([stream(3), stream(4)], (each) => each.length)).toBe(7);
  expect(sumStreams([stream(3), stream(null)], (each) => each.length)).toBeNull();
  expect(sumStreams(null, (each) => each.length)).toBeNull();
});

it("says which limit is reached, when, and what happens then", () => {
  expect(describeForecast(valkeyServer())).toEqual({ text: "in 2 h", note: "maxmemory: then new jobs are refused", tone: "plain" });
  expect(describeForecast(valkeyServer({ full_in_s: 600 }))).toMatchObject({ text: "in 10 min", tone: "bad" });
  expect(describeForecast(valkeyServer({ full_in_s: 0 }))).toMatchObject({ text: "now", tone: "bad" });
  const capped = describeForecast(valkeyServer({ full_in_s: 600, limit: "shard_max_bytes" }));
  expect(capped).toEqual({ text: "in 10 min", note: "Headrace’s cap: then new jobs wait in PostgreSQL", tone: "warn" });
  const unknown = (why: "no limit" | "short window" | "no growth") => describeForecast(valkeyServer({ full_in_s: null, unknown: why })).text;
  expect([unknown("no limit"), unknown("short window"), unknown("no growth")]).toEqual(["no limit", "measuring", "not growing"]);
});
