import { describe, expect, it } from "vitest";
import { loadPages, mergeFirstPage, uniqueById } from "./pagination";

it("keeps the first of duplicate items, in order", () => {
  const pages = [
    { id: "b", from: "the fresh page" },
    { id: "a", from: "the fresh page" },
    { id: "a", from: "an older page" },
    { id: "c", from: "an older page" },
  ];
  expect(uniqueById(pages).map(({ id, from }) => `${id} of ${from}`)).toEqual(["b of the fresh page", "a of the fresh page", "c of an older page"]);
});

describe("pages after the first", () => {
  const list = ["a", "b", "c", "d"].map((id) => ({ id }));
  const page = async (cursor: string | null) => ({ items: list.slice(Number(cursor), Number(cursor) + 1), next: Number(cursor) < 3 ? String(Number(cursor) + 1) : null });
  const { signal } = new AbortController();

  it.each<[string | null, number, string[], string | null]>([
    ["1", 1, ["b"], "2"],
    ["1", 2, ["b", "c"], "3"],
    ["2", 9, ["c", "d"], null],
    [null, 9, [], null],
  ])("are loaded from %s, %i of them", async (cursor, count, ids, next) => expect(await loadPages(page, cursor, count, signal)).toEqual({ items: ids.map((id) => ({ id })), next }));

  it("keep items that newer ones push off the first page", () => {
    const merged = mergeFirstPage([{ id: "f" }, { id: "e" }], { items: [{ id: "e" }, { id: "d" }, { id: "c" }], next: "2" });
    expect(merged).toEqual({ items: [{ id: "f" }, { id: "e" }, { id: "d" }, { id: "c" }], next: "2" });
    expect(merged && mergeFirstPage([{ id: "g" }, { id: "f" }], merged)?.items.map(({ id }) => id)).toEqual(["g", "f", "e", "d", "c"]);
  });

  it("are dropped if they do not overlap the first page", () => {
    expect(mergeFirstPage([{ id: "z" }, { id: "y" }], { items: [{ id: "d" }, { id: "c" }], next: "2" })).toBeNull();
  });
});
