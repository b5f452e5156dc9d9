import { expect, it } from "vitest";
import { formatExactDuration, parseDuration } from "./durations";

it.each<[string, number | null]>([
  ["250 ms", 250],
  ["30s", 30_000],
  ["5 min", 300_000],
  ["5m", 300_000],
  ["1 h 30 min", 5_400_000],
  ["0.5 s", 500],
  ["2 D", 172_800_000],
  ["0 s", 0],
  ["30", null],
  ["", null],
  ["5 parsecs", null],
  ["-5 s", null],
])("parses “%s”", (text, ms) => expect(parseDuration(text)).toBe(ms));

it.each([0, 1, 250, 1500, 30_000, 90_000, 300_000, 5_400_000, 86_400_000, 90_000_000])("formats %i ms so that it parses back", (ms) =>
  expect(parseDuration(formatExactDuration(ms))).toBe(ms),
);

it("uses the largest whole unit", () => {
  expect([formatExactDuration(300_000), formatExactDuration(90_000), formatExactDuration(1500)]).toEqual(["5 min", "90 s", "1500 ms"]);
});
