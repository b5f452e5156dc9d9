import { describe, expect, it } from "vitest";
import { buildTimeline, chartHref, countBySeverity, deliveryState, describeBacktest, describeCondition, describeCurrentValue, describeDelivery, describeOpenCount, formatMetricValue, parseAlertsView, sortBySeverity } from "./alerts";
import type { Backtest, Delivery, Transition } from "./apiTypes";
import { at, incident, START } from "./fixtures";

it("stores the view in the URL", () => {
  expect(parseAlertsView(new URLSearchParams("show=rules"))).toEqual({ show: "rules", incident: null });
  expect(parseAlertsView(new URLSearchParams("show=nonsense&incident=i-1"))).toEqual({ show: "incidents", incident: "i-1" });
});

describe("texts", () => {
  it.each([
    ["OLDEST_AGE > 30 s over 30 s", "Oldest job above 30 s over 30 s"],
    ["LATENCY p95 > 250 ms over 5 min", "Wait time p95 above 250 ms over 5 min"],
    ["LATENCY avg < 2 min over 1 h", "Mean wait time below 2 min over 1 h"],
    ["NO_DATA for 5 min", "No new data for 5 min"],
    ["SLO 99.95 % within 5 s: burn rate > 2 over 60 min", "Burn rate above 2 over 60 min (99.95 % start within 5 s)"],
    ["SOMETHING of a later release", "SOMETHING of a later release"],
  ])("%s", (condition, text) => expect(describeCondition(condition)).toBe(text));

  it.each<[string | null, number | null, string]>([
    ["BACKLOG > 1,000 jobs over 5 min", 1234, "1.2k jobs"],
    ["BACKLOG < 2 jobs over 5 min", 1, "1 job"],
    ["ERROR_RATE > 20 % over 5 min", 0.25, "25 %"],
    ["OLDEST_AGE > 30 s over 30 s", 45_000, "45 s"],
    ["NO_DATA for 5 min", 400, "6 min 40 s"],
    ["LATENCY avg > 1 s over 5 min", null, "no data"],
    ["SLO 99 % within 5 s: burn rate > 2 over 60 min", 3.25, "burn rate 3.25, 97 % in time"],
  ])("%s: %d", (condition, value, text) => expect(formatMetricValue(condition, value)).toBe(text));

  it("show the current value of an open incident, and since when it is unknown", () => {
    const nowMs = (START + 60) * 1000;
    expect(describeCurrentValue(incident(), nowMs)).toBe("now 50 s");
    expect(describeCurrentValue(incident({ current_value: null }), nowMs)).toBe("now no data");
    expect(describeCurrentValue(incident(), nowMs + 540_000)).toBe("50 s 10 min ago, unknown since");
    expect(describeCurrentValue(incident({ current_at: null, current_value: null }), nowMs)).toBe("current value unknown");
    expect(describeCurrentValue(incident({ resolved_at: at(30), current_at: null }), nowMs)).toBeNull();
    expect(describeCurrentValue(incident({ condition: null }), nowMs)).toBeNull();
  });

  it.each<[Partial<Backtest>, string]>([
    [{}, "Would not have fired in the last 24 hours (2 queues)."],
    [{ fired: 1, queues: 1 }, "Would have fired once in the last 24 hours (1 queue)."],
    [{ fired: 3, incidents: [{ queue: "a", fired_at: at(0), value: 1, resolved_at: null }] }, "Would have fired 3 times in the last 24 hours (2 queues); 1 still open."],
    [{ unknown: 4 }, "Would not have fired in the last 24 hours (2 queues). History was unknown for 2 min of them, in which nothing changes."],
    [{ unknown: 2881 }, "History is unknown for the last 24 hours."],
  ])("describe a back-test: %j", (values, text) => {
    const result: Backtest = { condition: "BACKLOG > 1 jobs over 5 min", start_at: at(0), end_at: at(86_400), fired: 0, queues: 2, every_s: 30, evaluations: 2881, unknown: 0, incidents: [] };
    expect(describeBacktest({ ...result, ...values })).toBe(text);
  });

  it("counts open alerts", () => {
    expect([describeOpenCount(0, false), describeOpenCount(1, false), describeOpenCount(50, true)]).toEqual(["No open alerts", "1 open alert", "50+ open alerts"]);
  });
});

describe("incidents", () => {
  const warning = incident({ id: "w" });
  const critical = incident({ id: "c", severity: "critical" });
  const taken = incident({ id: "t", severity: "critical", state: "acknowledged", fired_at: at(60) });
  const newer = incident({ id: "n", fired_at: at(60) });

  it("are sorted by severity, then unacknowledged first, then newest first", () => {
    expect(sortBySeverity([warning, taken, newer, critical]).map((each) => each.id)).toEqual(["c", "t", "n", "w"]);
    expect(countBySeverity([warning, taken, newer, critical])).toEqual([
      { severity: "critical", count: 2 },
      { severity: "warning", count: 2 },
    ]);
  });

  it("link to the chart up to now while open, else to the time of the incident", () => {
    const nowMs = (START + 600) * 1000;
    expect(chartHref(warning, nowMs)).toBe("/queues/reports?org=acme&project=shop&env=prod&range=30m");
    const over = incident({ resolved_at: at(300), state: "resolved" });
    expect(chartHref(over, nowMs + 86_400_000)).toContain(`start=${encodeURIComponent(at(-900))}&end=${encodeURIComponent(at(1200))}`);
    expect(chartHref(incident({ queue: null }), nowMs)).toBeNull();
  });

  it("have a timeline", () => {
    const step = (kind: Transition["kind"], seconds: number, told: boolean): Transition => ({ id: `${kind} ${seconds}`, kind, at: at(seconds), value: 45_000, told });
    const timeline = buildTimeline(
      incident({
        transitions: [step("firing", 0, false), step("firing", 60, true), step("resolved", 90, true)],
        ...{ acknowledged_at: at(30), acknowledged_by: "ann", resolved_at: at(90), reason: "resolved by ann" },
      }),
    );
    expect(timeline.map(({ title, note }) => [title, note])).toEqual([
      ["Fired", "45 s · silenced: no notification sent"],
      ["Acknowledged", "by ann"],
      ["Notified after the silence ended", "45 s"],
      ["Resolved", "resolved by ann"],
    ]);
  });
});

describe("messages", () => {
  const waiting: Delivery = { id: "m", channel_id: "c", channel: "ops", kind: "firing", attempts: 0, created_at: at(0), delivered_at: null, given_up_at: null, error: null };

  it.each<[Partial<Delivery>, string, string]>([
    [{}, "waiting", "not sent yet"],
    [{ attempts: 2, error: "HTTP 503" }, "retrying", "not delivered after 2 attempts; retrying"],
    [{ attempts: 1, delivered_at: at(1) }, "delivered", "delivered"],
    [{ attempts: 1, delivered_at: at(1), error: "refused: bad@example.com" }, "partial", "delivered, but not to every recipient"],
    [{ attempts: 5, given_up_at: at(9), error: "HTTP 410" }, "failed", "not delivered, given up after 5 attempts"],
  ])("%j is %s", (values, state, text) => {
    expect(deliveryState({ ...waiting, ...values })).toBe(state);
    expect(describeDelivery({ ...waiting, ...values })).toBe(text);
  });
});
