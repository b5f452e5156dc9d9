import { describe, expect, it } from "vitest";
import { href, type Page, parseRoute } from "./router";

const tenant = { org: "a&b", project: "x/y", env: "é" };
const odd = "a/b:*{c} 100% 🐟?#";

describe("routes", () => {
  it.each<[string, Page]>([
    ["/", { name: "overview" }],
    ["/queue-metrics", { name: "queues" }],
    ["/queues/emails", { name: "queue", queue: "emails" }],
    ["/streams", { name: "streams" }],
    ["/dead", { name: "dead" }],
    ["/alerts", { name: "alerts" }],
    ["/jobs/order-1", { name: "job", id: "order-1" }],
    ["/autoscaler", { name: "autoscaler" }],
    ["/pipeline", { name: "pipeline" }],
    ["/queues/", { name: "notFound" }],
    ["/queues/a/b", { name: "notFound" }],
    ["/queues/%E0%A4%A", { name: "notFound" }],
    ["/something", { name: "notFound" }],
  ])("parses %s", (path, page) => expect(parseRoute(path, "").page).toEqual(page));

  it.each<Page>([{ name: "overview" }, { name: "queue", queue: odd }, { name: "job", id: odd }, { name: "dead" }])("keep any name: %j", (page) => {
    const url = new URL(href(page, tenant, { q: odd, sort: null, type: "" }), "http://localhost");
    const route = parseRoute(url.pathname, url.search);
    expect(route.page).toEqual(page);
    expect(route.tenant).toEqual(tenant);
    expect(Object.fromEntries(route.params)).toEqual({ q: odd });
  });

  it("have a complete environment or none", () => {
    expect(parseRoute("/", "?org=acme&project=shop").tenant).toBeNull();
    expect(href({ name: "pipeline" }, null)).toBe("/pipeline");
  });
});
