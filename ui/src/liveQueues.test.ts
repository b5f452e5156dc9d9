import { describe, expect, it } from "vitest";
import { at, queueState, START, TENANT } from "./fixtures";
import { merged, serverNow, troubleOf } from "./liveQueues";

const depths = (queues: ReturnType<typeof merged>) => [...queues.byKey.values()].map((queue) => `${queue.queue} ${queue.depth}`);

describe("merged", () => {
  const snapshot = merged(null, { queues: [queueState("a", { depth: 1 }), queueState("b", { depth: 2 })], timestamp: at(0) }, 100);

  it("takes changes into what was known", () => {
    const told = { queues: [queueState("b", { depth: 5 }), queueState("c")], gone: [{ ...TENANT, queue: "a" }], timestamp: at(1) };
    const next = merged(snapshot, told, 1100);
    expect(depths(next)).toEqual(["b 5", "c 0"]);
    expect(depths(snapshot)).toEqual(["a 1", "b 2"]);
  });

  it("lets the server's clock go on between answers", () => {
    expect(serverNow(snapshot, 2100)).toBe(START * 1000 + 2000);
    expect(serverNow(snapshot, 50)).toBe(START * 1000);
  });
});

describe("troubleOf", () => {
  const now = (START + 120) * 1000;
  const trouble = (values: Parameters<typeof queueState>[1]) => troubleOf(queueState("q", values), now);

  it("tells why nothing runs", () => {
    expect(trouble({ paused: true })).toBe("paused");
    expect(trouble({ depth: 1, limit: 0, oldest_at: at(119) })).toBe("limit 0");
    expect(trouble({ depth: 1, oldest_at: at(0) })).toBe("nothing runs");
  });

  it("is silent where all is well", () => {
    expect(trouble({})).toBeNull();
    expect(trouble({ depth: 1, running: 1, oldest_at: at(0) })).toBeNull();
    expect(trouble({ depth: 1, oldest_at: at(100) })).toBeNull();
  });
});
