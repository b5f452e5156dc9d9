import { describe, expect, it } from "vitest";
import type { DetailedQueues } from "./apiTypes";
import { at, queueState, START, waiting } from "./fixtures";
import { type Column, DEFAULT_ORDER, type Direction, filterRows, flowTypes, groupByQueue, joinTiers, orderParam, parseFilter, parseOrder, type QueueRow, sortRows, toggleSort } from "./queueRows";

const details = (warmQueues: DetailedQueues["warmQueues"], coldQueues: DetailedQueues["coldQueues"] = []): DetailedQueues => ({
  warmQueues,
  coldQueues,
  coldUnavailable: coldQueues === null ? "PostgreSQL is not responding." : null,
  timestamp: at(60),
  truncated: false,
});

const ROWS = joinTiers(
  details(
    [
      waiting("emails", "send", 2, { flowName: "signup", flowType: "SINK", oldestQueuedAt: at(30) }),
      waiting("emails", "send", 7, { flowName: "orders", flowType: "SINK", oldestQueuedAt: at(40) }),
      waiting("images", "resize", 5, { flowType: "TRANSFORM", oldestQueuedAt: at(5) }),
    ],
    [waiting("images", "resize", 100, { flowType: "TRANSFORM", oldestQueuedAt: at(10) }), waiting("reports", "build", 1)],
  ),
);

const names = (rows: readonly QueueRow[]) => rows.map((row) => `${row.queue}/${row.flow}`);
const sorted = (column: Column, direction: Direction) => names(sortRows(ROWS, { column, direction }));

describe("joinTiers", () => {
  it("knows neither cold jobs nor totals while PostgreSQL is unavailable, and sorts by what it knows", () => {
    const rows = joinTiers(details([waiting("emails", "send", 2), waiting("images", "resize", 5)], null));
    expect(rows.map(({ warm, cold, total }) => [warm, cold, total])).toEqual([
      [2, null, null],
      [5, null, null],
    ]);
    expect(names(sortRows(rows, DEFAULT_ORDER))).toEqual(["images/", "emails/"]);
  });

  it("adds up both tiers in one row", () => {
    const images = ROWS.find((row) => row.queue === "images");
    expect(images).toMatchObject({ warm: 5, cold: 100, total: 105, oldestMs: (START + 5) * 1000, task: "resize", type: "TRANSFORM" });
    expect(ROWS).toHaveLength(4);
  });

  it("keeps flows separate, whatever their names contain", () => {
    const tricky = joinTiers(details([waiting('a","b', "c", 1), waiting("a", 'b","c', 1), waiting("a", "b", 1, { flowName: "c" })]));
    expect(new Set(tricky.map((row) => row.key)).size).toBe(3);
  });

  it("has no age if none is given", () => {
    expect(ROWS.find((row) => row.queue === "reports")?.oldestMs).toBeNull();
  });
});

describe("groupByClass", () => {
  const grouped = groupByQueue([queueState("emails", { depth: 9, warm: 9, running: 3, limit: 5 }), queueState("idle")], ROWS);

  it("builds a row per queue with live numbers, idle queues included", () => {
    expect(grouped).toHaveLength(2);
    expect(grouped[0]).toMatchObject({ queue: "emails", total: 9, running: 3, limit: 5, flow: "orders, signup", task: "send" });
    expect(grouped[1]).toMatchObject({ queue: "idle", total: 0, task: "" });
  });
});

describe("sortRows", () => {
  it("sorts numbers and names in both directions", () => {
    expect(sorted("total", "desc")).toEqual(["images/", "emails/orders", "emails/signup", "reports/"]);
    expect(sorted("total", "asc")).toEqual(["reports/", "emails/signup", "emails/orders", "images/"]);
    expect(sorted("flow", "asc").at(-1)).toBe("emails/signup");
    expect(sorted("queue", "desc")[0]).toBe("reports/");
  });

  it("sorts by age, with unknown ages last in both directions", () => {
    expect(sorted("oldest", "desc")).toEqual(["images/", "emails/signup", "emails/orders", "reports/"]);
    expect(sorted("oldest", "asc")).toEqual(["emails/orders", "emails/signup", "images/", "reports/"]);
  });

  it("sorts numbers in names numerically, and does not change its input", () => {
    const rows = joinTiers(details([waiting("q10", "t", 1), waiting("q9", "t", 1)]));
    expect(names(sortRows(rows, { column: "queue", direction: "asc" }))).toEqual(["q9/", "q10/"]);
    expect(names(rows)).toEqual(["q10/", "q9/"]);
  });
});

describe("filterRows", () => {
  const found = (text: string, type = "", coldOnly = false) => names(filterRows(ROWS, { text, type, coldOnly }));

  it("requires all words, anywhere in the row", () => {
    expect(found("SEND orders")).toEqual(["emails/orders"]);
    expect(found("nothing")).toEqual([]);
  });

  it("filters by type and tier", () => {
    expect(found("", "SINK")).toEqual(["emails/signup", "emails/orders"]);
    expect(found("", "", true)).toEqual(["images/", "reports/"]);
    expect(flowTypes(ROWS)).toEqual(["SINK", "TRANSFORM"]);
  });
});

describe("in the URL", () => {
  it("keeps the order", () => {
    expect(parseOrder(new URLSearchParams({ sort: "oldest.asc" }))).toEqual({ column: "oldest", direction: "asc" });
    expect(orderParam({ column: "oldest", direction: "asc" })).toBe("oldest.asc");
    expect(orderParam(DEFAULT_ORDER)).toBeNull();
    expect(parseOrder(new URLSearchParams({ sort: "nonsense" }))).toEqual(DEFAULT_ORDER);
  });

  it("reverses on the second click", () => {
    expect(toggleSort(DEFAULT_ORDER, "total")).toEqual({ column: "total", direction: "asc" });
    expect(toggleSort(DEFAULT_ORDER, "task")).toEqual({ column: "task", direction: "asc" });
    expect(toggleSort(DEFAULT_ORDER, "cold")).toEqual({ column: "cold", direction: "desc" });
  });

  it("keeps the filters", () => {
    expect(parseFilter(new URLSearchParams({ q: "a b", type: "SINK", tier: "cold" }))).toEqual({ text: "a b", type: "SINK", coldOnly: true });
    expect(parseFilter(new URLSearchParams())).toEqual({ text: "", type: "", coldOnly: false });
  });
});
