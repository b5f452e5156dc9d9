import { afterEach, expect, it, vi } from "vitest";
import { acknowledgeIncident, backtestRule, listHealthIncidents, listIncidents } from "./alertsApi";
import { incident, TENANT } from "./fixtures";

const signal = new AbortController().signal;

afterEach(() => vi.unstubAllGlobals());

/** Answer every request with this body. Returns the requested URLs, as they are made. */
function answer(body: unknown, status = 200): string[] {
  const requests: string[] = [];
  vi.stubGlobal("fetch", async (url: string) => {
    requests.push(url);
    return new Response(JSON.stringify(body), { status });
  });
  return requests;
}

it("lists incidents of one environment page by page", async () => {
  const requests = answer({ incidents: [], next: null });
  await listIncidents(TENANT, "resolved", "a=b&c", signal);
  const url = new URL(requests[0] ?? "", "http://localhost");
  expect(url.pathname).toBe("/api/v1/alerts/incidents");
  expect(Object.fromEntries(url.searchParams)).toEqual({ ...TENANT, state: "resolved", limit: "50", cursor: "a=b&c" });
});

it("selects the incidents of Headrace's own health", async () => {
  answer({ incidents: [incident(), incident({ id: "h", org: "", project: "", env: "", queue: null, condition: null })], next: null });
  expect((await listHealthIncidents(signal)).map((each) => each.id)).toEqual(["h"]);
});

it("reads all pages to find health incidents", async () => {
  const health = incident({ id: "h", org: "", project: "", env: "", queue: null, condition: null });
  const pages: Record<string, unknown> = { "": { incidents: [incident()], next: "a=b&c" }, "a=b&c": { incidents: [health], next: null } };
  vi.stubGlobal("fetch", async (url: string) => new Response(JSON.stringify(pages[new URL(url, "http://localhost").searchParams.get("cursor") ?? ""])));
  expect((await listHealthIncidents(signal)).map((each) => each.id)).toEqual(["h"]);
});

it("back-tests a rule that has no name yet", async () => {
  const bodies: unknown[] = [];
  vi.stubGlobal("fetch", async (url: string, options: RequestInit) => {
    bodies.push(new URL(url, "http://localhost").pathname, JSON.parse(String(options.body)));
    return new Response(JSON.stringify({ fired: 3 }));
  });
  expect(await backtestRule(TENANT, { name: "", metric: "BACKLOG", threshold: 5 }, signal)).toEqual({ fired: 3 });
  expect(bodies).toEqual(["/api/v1/alerts/rules/backtest", { metric: "BACKLOG", threshold: 5 }]);
});

it("gives a conflict a friendly title", async () => {
  answer({ title: "Conflict", status: 409, detail: "The incident is already resolved." }, 409);
  await expect(acknowledgeIncident("a/b", signal)).rejects.toMatchObject({ title: "Already handled", detail: "The incident is already resolved." });
});

it("passes other errors on unchanged", async () => {
  answer({ title: "Forbidden", status: 403, detail: "This key may only read." }, 403);
  await expect(acknowledgeIncident("i", signal)).rejects.toMatchObject({ title: "Forbidden", detail: "This key may only read." });
});
