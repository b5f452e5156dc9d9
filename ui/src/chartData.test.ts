import { describe, expect, it } from "vitest";
import { hasValues, isolatedIndexes, lastIndex, resolutionSeconds, toChartData, valueAt } from "./chartData";
import { at, history, point, START } from "./fixtures";

describe("toFrame", () => {
  it("converts counts to rates", () => {
    const chart = toChartData(history([point(0, { enqueued: 10, completed: 5, nack: 5 }), point(5, { enqueued: 5, completed: 5 })]));
    expect(chart.times).toEqual([START, START + 5]);
    expect(chart.lines.enqueued.final).toEqual([2, 1]);
    expect(chart.lines.completed.final).toEqual([1, 1]);
    expect(chart.lines.retried.final).toEqual([1, 0]);
    expect([chart.start, chart.end, chart.resolutionS]).toEqual([START, START + 10, 5]);
  });

  it("keeps nulls of gauges as gaps", () => {
    const chart = toChartData(history([point(0), point(5, { depth: 0, running: 0 }), point(10, { depth: 7, running: 2, limit: 10 })]));
    expect(chart.lines.depth.final).toEqual([null, 0, 7]);
    expect(chart.lines.running.final).toEqual([null, 0, 2]);
    expect(chart.lines.limit.final).toEqual([null, null, 10]);
  });

  it("stacks failures: buried, retried, expired", () => {
    const { lines } = toChartData(history([point(0, { dlq: 5, nack: 10, expired: 20, dequeued: 30 })]));
    expect([lines.buried.final, lines.retriedTop.final, lines.expiredTop.final]).toEqual([[1], [3], [7]]);
    expect([lines.retried.final, lines.expired.final]).toEqual([[2], [4]]);
    expect(lines.failureRate.final).toEqual([0.5]);
  });

  it("has no percentiles and failure rates where nothing was measured", () => {
    const { lines } = toChartData(history([point(0), point(5, { dequeued: 4, waitP95: 0 })]));
    expect(lines.waitP95.final).toEqual([null, 0]);
    expect(lines.failureRate.final).toEqual([null, 0]);
  });

  it("splits depth by tier", () => {
    const { lines } = toChartData(history([point(0, { depth: 9, warm: 5, cold: 4 })]));
    expect([lines.warm.final, lines.cold.final, lines.depth.final]).toEqual([[5], [4], [9]]);
  });

  it("breaks the line where points are missing", () => {
    const chart = toChartData(history([point(0, { enqueued: 5 }), point(5, { enqueued: 5 }), point(60, { enqueued: 5 })]));
    expect(chart.times).toEqual([START, START + 5, START + 10, START + 60]);
    expect(chart.lines.enqueued.final).toEqual([1, 1, null, 1]);
  });

  it("draws lost data as a gap, not as zero", () => {
    const chart = toChartData(history([point(0, { enqueued: 5 }), { ...point(5, { enqueued: null }), complete: false }, point(10, { enqueued: 5 })]));
    expect(chart.lines.enqueued.final).toEqual([1, null, 1]);
    expect(valueAt(chart.lines.enqueued, 1)).toBeNull();
  });

  it("sorts points", () => {
    const chart = toChartData(history([point(5, { depth: 2 }), point(0, { depth: 1 })]));
    expect(chart.lines.depth.final).toEqual([1, 2]);
  });

  it("separates provisional points, and lets both strokes meet", () => {
    const points = [point(0, { enqueued: 5, depth: 1 }), point(5, { enqueued: 5, depth: 2 }), point(10, { enqueued: 1, depth: 3 })];
    const chart = toChartData(history(points, at(10)));
    expect(chart.lines.enqueued.final).toEqual([1, 1, null]);
    expect(chart.lines.enqueued.provisional).toEqual([null, 1, 0.2]);
    expect(chart.lines.depth.provisional).toEqual([null, 2, 3]);
  });

  it("treats a bucket that contains the watermark as provisional", () => {
    const chart = toChartData(history([point(0, { enqueued: 5 }), point(5, { enqueued: 5 })], at(7)));
    expect(chart.lines.enqueued.final).toEqual([1, null]);
  });

  it("does not draw zeros after the watermark", () => {
    const chart = toChartData(history([point(0, { enqueued: 5 }), point(5), point(10), point(15)], at(10)));
    expect(chart.lines.enqueued.final).toEqual([1, 0, null, null]);
    expect(chart.lines.enqueued.provisional).toEqual([null, 0, null, null]);
  });

  it("has nothing final without a watermark", () => {
    const chart = toChartData(history([point(0, { enqueued: 5 }), point(5)], null));
    expect(chart.finalUntil).toBeNull();
    expect(chart.lines.enqueued.final).toEqual([null, null]);
    expect(chart.lines.enqueued.provisional).toEqual([1, null]);
  });

  it("accepts an empty response", () => {
    const chart = toChartData(history([]));
    expect(chart.times).toEqual([]);
    expect(lastIndex(Object.values(chart.lines))).toBe(-1);
    expect(hasValues(chart.lines.depth)).toBe(false);
  });
});

describe("reading lines", () => {
  const chart = toChartData(history([point(0, { enqueued: 5 }), point(5, { enqueued: 10 }), point(10, { enqueued: 1 }), point(15)], at(10)));
  const { enqueued } = chart.lines;

  it("prefers the final value, falls back to the provisional one", () => {
    expect([0, 1, 2, 3, 4].map((index) => valueAt(enqueued, index))).toEqual([1, 2, 0.2, null, null]);
  });

  it("finds the newest known point, and the newest final one", () => {
    expect(lastIndex([enqueued])).toBe(2);
    expect(lastIndex([enqueued], "final")).toBe(1);
  });

  it("finds isolated points", () => {
    expect(isolatedIndexes([1, null, 2, 3, null, 4])).toEqual([0, 5]);
    expect(isolatedIndexes([])).toEqual([]);
  });
});

describe("resolutionSeconds", () => {
  it.each([
    ["5s", 5],
    ["1m", 60],
    ["1h", 3600],
    ["1d", 86_400],
  ])("%s is %d s", (text, seconds) => expect(resolutionSeconds(text)).toBe(seconds));

  it.each(["", "5", "0s", "5 s", "auto"])("rejects “%s”", (text) => expect(() => resolutionSeconds(text)).toThrow(RangeError));
});
