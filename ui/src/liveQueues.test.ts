import { describe, expect, it } from "vitest";
import { at, queueState, START, TENANT } from "./fixtures";
import { applyUpdate, queueProblem, serverNow } from "./liveQueues";

const depths = (queues: ReturnType<typeof applyUpdate>) => [...queues.byKey.values()].map((queue) => `${queue.queue} ${queue.depth}`);

describe("merged", () => {
  const snapshot = applyUpdate(null, { queues: [queueState("a", { depth: 1 }), queueState("b", { depth: 2 })], timestamp: at(0) }, 100);

  it("merges changes into the previous state", () => {
    const update = { queues: [queueState("b", { depth: 5 }), queueState("c")], gone: [{ ...TENANT, queue: "a" }], timestamp: at(1) };
    const next = applyUpdate(snapshot, update, 1100);
    expect(depths(next)).toEqual(["b 5", "c 0"]);
    expect(depths(snapshot)).toEqual(["a 1", "b 2"]);
  });

  it("extrapolates the server's clock between responses", () => {
    expect(serverNow(snapshot, 2100)).toBe(START * 1000 + 2000);
    expect(serverNow(snapshot, 50)).toBe(START * 1000);
  });
});

describe("troubleOf", () => {
  const now = (START + 120) * 1000;
  const problem = (values: Parameters<typeof queueState>[1]) => queueProblem(queueState("q", values), now);

  it("explains why no job is running", () => {
    expect(problem({ paused: true })).toBe("paused");
    expect(problem({ depth: 1, limit: 0, oldest_at: at(119) })).toBe("limit 0");
    expect(problem({ depth: 1, oldest_at: at(0) })).toBe("stalled");
  });

  it("is null without a problem", () => {
    expect(problem({})).toBeNull();
    expect(problem({ depth: 1, running: 1, oldest_at: at(0) })).toBeNull();
    expect(problem({ depth: 1, oldest_at: at(100) })).toBeNull();
  });
});
