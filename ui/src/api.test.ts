import { afterEach, describe, expect, it, vi } from "vitest";
import { historyPath, listDeadJobs, listEnvironments, listQueues, redriveBatch } from "./api";
import { queueState, TENANT } from "./fixtures";
import { ApiError, fromProblemDocument } from "./http";

const ref = { org: "a&b", project: "x/y", env: "é", queue: "a/b:*{c} 100% 🐟?#" };
const signal = new AbortController().signal;

afterEach(() => vi.unstubAllGlobals());

/** Answer each request with the next of these bodies. Returns the requests, as they are made. */
function answers(...bodies: unknown[]): { url: string; body: unknown }[] {
  const requests: { url: string; body: unknown }[] = [];
  vi.stubGlobal("fetch", async (url: string, given: RequestInit) => {
    requests.push({ url, body: given.body === undefined ? null : JSON.parse(String(given.body)) });
    return new Response(JSON.stringify(bodies[requests.length - 1]), { status: 200 });
  });
  return requests;
}

it("encodes any name as one path segment", () => {
  const url = new URL(historyPath(ref, "period=30m"), "http://localhost");
  expect(decodeURIComponent(url.pathname.split("/")[4] ?? "")).toBe(ref.queue);
  expect(Object.fromEntries(url.searchParams)).toEqual({ org: "a&b", project: "x/y", env: "é", period: "30m" });
});

it("rejects names that browsers would rewrite", () => {
  expect(() => historyPath({ ...ref, queue: ".." }, "period=30m")).toThrow(ApiError);
});

it("joins the pages of a list", async () => {
  const requests = answers({ queues: [queueState("a")], next: "x=", timestamp: "t1" }, { queues: [queueState("b")], next: null, timestamp: "t2" });
  const list = await listQueues(TENANT, signal);
  expect(list.queues.map((queue) => queue.queue)).toEqual(["a", "b"]);
  expect(requests[1]?.url).toContain("cursor=x%3D");
});

it("sends only the dead letter filters that are set", async () => {
  const requests = answers({ jobs: [], next: null }, { redriven: 0, next: null });
  await listDeadJobs({ ...TENANT, queue: "q" }, { error: "no answer", task: "" }, null, signal);
  expect(Object.fromEntries(new URL(requests[0]?.url ?? "", "http://localhost").searchParams)).toEqual({ ...TENANT, limit: "50", error: "no answer" });
  await redriveBatch({ ...TENANT, queue: "q" }, { ids: ["1"] }, "c", signal);
  expect(requests[1]?.body).toEqual({ ids: ["1"], limit: 200, cursor: "c" });
});

describe("failures", () => {
  const answer = (body: string, status: number) => vi.stubGlobal("fetch", async () => new Response(body, { status }));

  it("keeps title and detail of a problem document", async () => {
    answer(JSON.stringify({ type: "about:blank", title: "Warehouse unavailable", status: 503, detail: "Try later." }), 503);
    await expect(listEnvironments(signal)).rejects.toMatchObject({ title: "Warehouse unavailable", detail: "Try later.", status: 503 });
  });

  it("describes an error without a problem document", () => {
    expect(fromProblemDocument(502, undefined)).toMatchObject({ title: "The server returned status 502", detail: "", status: 502 });
  });

  it("rejects a response of another shape", async () => {
    answer("<html>", 200);
    await expect(listEnvironments(signal)).rejects.toBeInstanceOf(ApiError);
    answer("[]", 200);
    await expect(listEnvironments(signal)).rejects.toBeInstanceOf(ApiError);
    answer('{"environments": {}}', 200);
    await expect(listEnvironments(signal)).rejects.toBeInstanceOf(ApiError);
  });

  it("describes an unreachable server", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("fetch failed")));
    await expect(listEnvironments(signal)).rejects.toMatchObject({ title: "Cannot reach Headrace", status: null });
  });
});
