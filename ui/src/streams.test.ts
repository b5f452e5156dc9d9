import { describe, expect, it } from "vitest";
import { watchedStream } from "./fixtures";
import { describeDeliveries, describeLength, describeSummary, explainProblems, groupProblems, oldestAgeMs, sortByProblem } from "./streams";

describe("watched streams", () => {
  it("are sorted by problems, then by load", () => {
    const calm = watchedStream("calm", { load: 5 });
    const busy = watchedStream("busy", { load: 500 });
    const stuck = watchedStream("stuck", { load: 1, stuck: 2 });
    const unknown = watchedStream("unknown", { load: null, reason: "The server does not know." });
    const gone = watchedStream("gone", { load: null, reason: "No such group." });
    expect(sortByProblem([calm, busy, stuck, unknown, gone]).map((each) => each.stream)).toEqual(["gone", "unknown", "stuck", "busy", "calm"]);
  });

  it("describe their problems", () => {
    expect(groupProblems(watchedStream("calm"))).toEqual([]);
    expect(groupProblems(watchedStream("all", { stale: true, reason: "why", stuck: 3 }))).toEqual(["stale", "incomplete data", "3 stuck"]);
    expect(explainProblems(watchedStream("calm"))).toBe("");
    expect(explainProblems(watchedStream("odd", { reason: "The server does not know." }))).toBe("The server does not know.");
    expect(explainProblems(watchedStream("old", { stale: true, age_ms: 720_000 }))).toMatch(/last measured 12 min ago.*streams watch/);
    expect(explainProblems(watchedStream("never", { stale: true, age_ms: null }))).not.toMatch(/ago/);
  });

  it("have the age of the oldest unfinished entry", () => {
    expect(oldestAgeMs({ oldest_undelivered_age_ms: 5, oldest_pending_age_ms: 9 })).toBe(9);
    expect(oldestAgeMs({ oldest_undelivered_age_ms: 5, oldest_pending_age_ms: null })).toBe(5);
    expect(oldestAgeMs({ oldest_undelivered_age_ms: null, oldest_pending_age_ms: null })).toBeNull();
  });

  it("are full at the length at which jobs are refused", () => {
    const length = (total_messages: number | null, counted = true) => groupProblems(watchedStream("long", { total_messages, counted, hard_maxlen: 1000 }));
    expect(length(799)).toEqual([]);
    expect(length(800)).toEqual(["nearly full"]);
    expect(length(1000)).toEqual(["full"]);
    expect(length(null)).toEqual([]); // reported by an earlier release
    expect(length(5000, false)).toEqual([]); // other programs may add as many as they like
    expect(describeLength(10_045, 100_000)).toBe("10,045 of 100,000");
    expect(describeLength(10_045, null)).toBe("10,045");
  });

  it("describe deliveries and the summary", () => {
    expect(describeDeliveries({ "10": 1, "2": 3 })).toBe("2 times: 3, 10 times: 1");
    expect(describeSummary([watchedStream("a"), watchedStream("b", { stuck: 1 })], 2)).toBe("2 groups, 1 needs attention");
    expect(describeSummary([watchedStream("a")], 1)).toBe("1 group");
    expect(describeSummary([watchedStream("a")], 1200)).toBe("1 of 1,200 groups");
  });
});
