import { expect, it } from "vitest";
import { SPARK_WIDTH, sparkPath } from "./sparkline";

it("draws gaps as gaps", () => {
  expect(sparkPath([0, 10, null, 5, 10])).toBe("M0 26L30 2M90 14L120 2");
});

it("draws an isolated point as a dot", () => {
  expect(sparkPath([null, 3, null])).toBe("M60 2h0.01");
});

it("keeps the peak of many points", () => {
  const values = Array.from({ length: 600 }, (_, index) => (index === 333 ? 100 : 1));
  expect(sparkPath(values)).toContain(" 2L");
  expect(sparkPath(values).endsWith(`L${SPARK_WIDTH} 25.8`)).toBe(true);
});

it("draws nothing without values", () => {
  expect(sparkPath([])).toBe("");
  expect(sparkPath([null, null])).toBe("");
});
