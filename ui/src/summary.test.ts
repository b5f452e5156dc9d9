import { describe, expect, it } from "vitest";
import { at, metrics, point } from "./fixtures";
import { failureRate, historyLagMs, oldestAgeMs, recentThroughput } from "./summary";

describe("recentThroughput", () => {
  it("averages the last final minute and leaves unfinished points out", () => {
    const old = Array.from({ length: 12 }, (_, i) => point(i * 5, { completed: 100 }));
    const recent = Array.from({ length: 12 }, (_, i) => point(60 + i * 5, { completed: 10 }));
    expect(recentThroughput(metrics([...old, ...recent, point(120)], at(120)))).toBe(2);
  });

  it("is unknown while nothing is final", () => {
    expect(recentThroughput(metrics([point(0, { completed: 10 })], null))).toBeNull();
  });
});

describe("failureRate", () => {
  it("is (nack + dlq) / dequeued", () => {
    expect(failureRate(metrics([point(0, { dequeued: 30, nack: 2, dlq: 1 }), point(5, { dequeued: 30, nack: 3 })]))).toBe(0.1);
  });

  it("is unknown when nothing was dequeued", () => {
    expect(failureRate(metrics([point(0, { nack: 1 })]))).toBeNull();
  });
});

describe("oldestAgeMs", () => {
  const state = { org: "a", project: "b", env: "c", queue: "d", depth: 1, running: 0, limit: null, paused: false, bytes: 1 };

  it("is measured on the server's clock", () => {
    expect(oldestAgeMs({ ...state, oldest_at: at(0) }, at(47))).toBe(47_000);
  });

  it("is unknown when nothing waits", () => {
    expect(oldestAgeMs({ ...state, oldest_at: null }, at(47))).toBeNull();
  });
});

it("tells how far history lags", () => {
  expect(historyLagMs(metrics([point(0), point(5), point(10)], at(5)))).toBe(10_000);
  expect(historyLagMs(metrics([point(0)], null))).toBeNull();
});
