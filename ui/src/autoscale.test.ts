import { describe, expect, it } from "vitest";
import type { Decision } from "./apiTypes";
import { describeScope, describeWork, readDemand, readSources, toSteps } from "./autoscale";
import { at } from "./fixtures";

function decision(seconds: number, wanted: number, workers: number | null = null): Decision {
  return { id: seconds, verb: "hold", current: 0, wanted, known: true, sentence: "", inputs: { workers }, decided_at: at(seconds) };
}

describe("describing a worker type", () => {
  it("describes its scope", () => {
    expect(describeScope({ org: null, project: null, env: null })).toBe("all organisations");
    expect(describeScope({ org: "acme", project: "shop", env: null })).toBe("acme / shop");
  });

  it("describes what it serves", () => {
    const none = { queues: [], all_queues: false, stream: null, group: null };
    expect(describeWork({ ...none, queues: ["emails", "a/b"] })).toBe("emails, a/b");
    expect(describeWork({ ...none, all_queues: true })).toBe("all queues");
    expect(describeWork({ ...none, stream: "orders", group: "billing" })).toBe("stream orders, group billing");
  });
});

it("reads the inputs of a decision and ignores unknown ones", () => {
  const source = { name: "emails", depth: 3, running: null, arrivals_per_s: 0.5, service_s: 0.25, age_s: null, paused: true, unknown: "Valkey", later: 1 };
  expect(readSources({ inputs: { sources: [source, "nonsense"] } })).toEqual([
    { name: "emails", depth: 3, running: null, arrivalsPerS: 0.5, serviceMs: 250, ageMs: null, paused: true, unknown: "Valkey" },
  ]);
  expect(readSources({ inputs: {} })).toEqual([]);
});

it("reads the demand of a decision, if it was estimated", () => {
  expect(readDemand({ inputs: { slots: 45.25, allowed: 25 } })).toEqual({ slots: 45.25, allowed: 25 });
  expect(readDemand({ inputs: { slots: 45.25 } })).toBeNull();
});

describe("the chart of decisions", () => {
  it("holds a number until the next decision", () => {
    expect(toSteps([decision(60, 1), decision(30, 4), decision(0, 2)])).toEqual({ wanted: "M0 60H300V0H600V90", workers: "", top: 4, from: at(0), until: at(60) });
  });

  it("leaves gaps where the number is unknown", () => {
    expect(toSteps([decision(30, 2, 1), decision(20, 2), decision(10, 2, 2), decision(0, 2, 2)])?.workers).toBe("M0 0H200V0H400M600 60");
  });

  it("needs two decisions", () => {
    expect(toSteps([])).toBeNull();
    expect(toSteps([decision(0, 2)])).toBeNull();
  });
});
