import { expect, it } from "vitest";
import type { Environment } from "./apiTypes";
import { listOptions, pickDefaultTenant } from "./tenantOptions";

const ALL = [
  { org: "acme", project: "shop", env: "prod" },
  { org: "acme", project: "shop", env: "dev" },
  { org: "acme", project: "blog", env: "dev" },
  { org: "globex", project: "media", env: "dev" },
  { org: "globex", project: "media", env: "prod" },
];
const HERE = ALL[0] as (typeof ALL)[number];

it("lists names within the parts before", () => {
  expect(listOptions(ALL, HERE, "org").map((choice) => choice.name)).toEqual(["acme", "globex"]);
  expect(listOptions(ALL, HERE, "project").map((choice) => choice.name)).toEqual(["blog", "shop"]);
  expect(listOptions(ALL, HERE, "env").map((choice) => choice.name)).toEqual(["dev", "prod"]);
});

it("switches to the most similar environment", () => {
  expect(listOptions(ALL, HERE, "org")[1]?.tenant).toEqual({ org: "globex", project: "media", env: "prod" });
  expect(listOptions(ALL, HERE, "project")[0]?.tenant).toEqual({ org: "acme", project: "blog", env: "dev" });
});

it("keeps the current environment if it is not listed", () => {
  expect(listOptions([], HERE, "env")).toEqual([{ name: "prod", tenant: HERE }]);
});

it("picks the environment with the most waiting jobs", () => {
  const deep = (org: string, depth: number) => ({ ...HERE, org, depth }) as Environment;
  expect(pickDefaultTenant([deep("a", 1), deep("b", 9), deep("c", 3)])?.org).toBe("b");
  expect(pickDefaultTenant([])).toBeNull();
});
