import { describe, expect, it } from "vitest";
import { at, history, point, queueState, START } from "./fixtures";
import { ageMs, historyLagMs, recentThroughput, sumQueues } from "./totals";

describe("recentThroughput", () => {
  it("averages the last final minute and omits provisional points", () => {
    const old = Array.from({ length: 12 }, (_, i) => point(i * 5, { completed: 100 }));
    const recent = Array.from({ length: 12 }, (_, i) => point(60 + i * 5, { completed: 10 }));
    expect(recentThroughput(history([...old, ...recent, point(120)], at(120)))).toBe(2);
  });

  it("is unknown while nothing is final", () => {
    expect(recentThroughput(history([point(0, { completed: 10 })], null))).toBeNull();
  });
});

it("measures ages by the server's clock", () => {
  expect(ageMs(at(0), (START + 47) * 1000)).toBe(47_000);
  expect(ageMs(at(50), (START + 47) * 1000)).toBe(0);
  expect(ageMs(null, 0)).toBeNull();
});

it("returns the lag of history", () => {
  expect(historyLagMs(history([point(0), point(5), point(10)], at(5)))).toBe(10_000);
  expect(historyLagMs(history([point(0)], null))).toBeNull();
});

it("adds up queues and finds the oldest job", () => {
  const queues = [
    queueState("a", { depth: 3, warm: 1, cold: 2, running: 1, dead: 4, oldest_at: at(20) }),
    queueState("b", { depth: 5, warm: 5, oldest_at: at(10) }),
    queueState("c"),
  ];
  expect(sumQueues(queues)).toEqual({ depth: 8, warm: 6, cold: 2, running: 1, dead: 4, queues: 3, oldestAt: at(10) });
  expect(sumQueues([])).toMatchObject({ depth: 0, oldestAt: null });
});
