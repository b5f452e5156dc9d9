import { expect, it } from "vitest";
import { unique } from "./more";

it("keeps the first of what pages have in common, where it stood", () => {
  const pages = [
    { id: "b", from: "the fresh page" },
    { id: "a", from: "the fresh page" },
    { id: "a", from: "an older page" },
    { id: "c", from: "an older page" },
  ];
  expect(unique(pages).map(({ id, from }) => `${id} of ${from}`)).toEqual(["b of the fresh page", "a of the fresh page", "c of an older page"]);
});
