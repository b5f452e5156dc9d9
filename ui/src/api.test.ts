import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiError, listQueues, metricsPath, problem } from "./api";
import { parseView, viewSearch, DEFAULT_RANGE } from "./location";

const ref = { org: "a&b", project: "x/y", env: "é", queue: "a/b:*{c} 100% 🐟?#" };

afterEach(() => vi.unstubAllGlobals());

it("puts any name into one path segment", () => {
  const url = new URL(metricsPath(ref, "30m"), "http://localhost");
  expect(decodeURIComponent(url.pathname.split("/")[4] ?? "")).toBe(ref.queue);
  expect(Object.fromEntries(url.searchParams)).toEqual({ org: "a&b", project: "x/y", env: "é", period: "30m" });
});

it("refuses names that a browser would rewrite away", () => {
  expect(() => metricsPath({ ...ref, queue: ".." }, "30m")).toThrow(ApiError);
});

it("keeps any name in the page's URL", () => {
  expect(parseView(viewSearch({ queue: ref, range: DEFAULT_RANGE }))).toEqual({ queue: ref, range: DEFAULT_RANGE });
  expect(parseView("?range=nonsense")).toEqual({ queue: null, range: DEFAULT_RANGE });
});

describe("failures", () => {
  const signal = new AbortController().signal;
  const answer = (body: string, status: number) => vi.stubGlobal("fetch", async () => new Response(body, { status }));

  it("carries a problem document", async () => {
    answer(JSON.stringify({ type: "about:blank", title: "Warehouse unavailable", status: 503, detail: "Try later." }), 503);
    await expect(listQueues(signal)).rejects.toMatchObject({ title: "Warehouse unavailable", detail: "Try later.", status: 503 });
  });

  it("has words for an answer that is no problem document", () => {
    expect(problem(502, undefined)).toMatchObject({ title: "The server answered 502", detail: "", status: 502 });
  });

  it("refuses an answer of another shape", async () => {
    answer("<html>", 200);
    await expect(listQueues(signal)).rejects.toBeInstanceOf(ApiError);
    answer("[]", 200);
    await expect(listQueues(signal)).rejects.toBeInstanceOf(ApiError);
  });

  it("has words for a server that is away", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("fetch failed")));
    await expect(listQueues(signal)).rejects.toMatchObject({ title: "Headrace cannot be reached", status: null });
  });
});
