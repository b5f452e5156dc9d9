import { describe, expect, it } from "vitest";
import type { Rule, RuleFields } from "./apiTypes";
import { rule } from "./fixtures";
import { parseForm, toForm, withoutDeletedChannels } from "./ruleForm";

function chosen({ name, metric, queue, operator, threshold, percentile, within_ms, objective, window_s, for_s, cooldown_s, severity, auto_resolve, channels }: Rule): RuleFields {
  return { name, metric, queue, operator, threshold, percentile, within_ms, objective, window_s, for_s, cooldown_s, severity, auto_resolve, channels };
}

describe("a rule in a form", () => {
  it.each([
    rule(),
    rule({ metric: "LATENCY", percentile: "p99", threshold: 250, queue: "a/b" }),
    rule({ metric: "LATENCY", percentile: "avg", threshold: 0.5 }),
    rule({ metric: "ERROR_RATE", threshold: 0.07, operator: "LESS_THAN", for_s: 90, auto_resolve: false }),
    rule({ metric: "OLDEST_AGE", threshold: 5_400_000, window_s: 7200, channels: ["channel_1"], severity: "critical" }),
    rule({ metric: "SLO", threshold: 1.5, within_ms: 2500, objective: 0.9995, window_s: 3600 }),
  ])("survives a round trip: $metric $threshold", (before) => expect(parseForm(toForm(before)).fields).toEqual(chosen(before)));

  it("omits deleted channels", () => {
    expect(parseForm(toForm(withoutDeletedChannels(rule({ channels: ["gone", "kept"] }), [{ id: "kept" }]))).fields?.channels).toEqual(["kept"]);
  });

  it("omits the fields that a NO_DATA rule does not have", () => {
    const { fields } = parseForm({ ...toForm(rule({ queue: "emails", threshold: 7 })), metric: "NO_DATA" });
    expect(fields).toMatchObject({ metric: "NO_DATA", queue: null, percentile: "avg" });
    expect(fields).not.toHaveProperty("threshold");
    expect(fields).not.toHaveProperty("operator");
  });

  it("has the fields of an SLO only for an SLO", () => {
    const slo = rule({ metric: "SLO", threshold: 2, within_ms: 5000, objective: 0.99 });
    expect(parseForm({ ...toForm(slo), metric: "BACKLOG" }).fields).toMatchObject({ within_ms: null, objective: null });
    expect(parseForm({ ...toForm(rule({ operator: "LESS_THAN" })), metric: "SLO", threshold: "1" }).fields).toMatchObject({ operator: "GREATER_THAN", within_ms: 30_000, objective: 0.99 });
  });

  it.each([
    ["a number of jobs", { threshold: "" }],
    ["a number of jobs", { threshold: "many" }],
    ["a duration with a unit", { metric: "OLDEST_AGE" as const, threshold: "30" }],
    ["a percentage", { metric: "ERROR_RATE" as const, threshold: "%" }],
    ["a burn rate", { metric: "SLO" as const, threshold: "fast" }],
    ["an objective in percent", { metric: "SLO" as const, within: "30" }],
    ["an objective in percent", { metric: "SLO" as const, objective: "most" }],
    ["need a unit", { window: "5" }],
    ["need a unit", { cooldown: "1500 ms" }],
  ])("reports what cannot be parsed: %s", (words, change) => expect(parseForm({ ...toForm(rule()), ...change }).error).toContain(words));
});
