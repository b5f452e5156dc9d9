import { describe, expect, it } from "vitest";
import { formatAgo, formatBytes, formatCount, formatDayTime, formatDuration, formatExact, formatPlural, formatRate, formatShare, formatUtcTime, UNKNOWN } from "./format";

describe("formatCount", () => {
  it.each([
    [0, "0"],
    [0.4, "0.4"],
    [12, "12"],
    [999, "999"],
    [999.6, "1k"],
    [1000, "1k"],
    [1234, "1.2k"],
    [34_567, "35k"],
    [999_600, "1M"],
    [5_600_000, "5.6M"],
    [-1500, "−1.5k"],
  ])("%d reads %s", (value, text) => expect(formatCount(value)).toBe(text));

  it("shows unknown as a dash, never as zero", () => {
    expect(formatCount(null)).toBe(UNKNOWN);
    expect(formatCount(Number.NaN)).toBe(UNKNOWN);
    expect(formatRate(null)).toBe(UNKNOWN);
    expect(formatShare(null)).toBe(UNKNOWN);
    expect(formatDuration(null)).toBe(UNKNOWN);
    expect(formatExact(null)).toBe("unknown");
  });
});

describe("formatRate", () => {
  it.each([
    [0, "0"],
    [0.004, "<0.01"],
    [0.25, "0.25"],
    [0.6, "0.6"],
    [3.14, "3.1"],
    [42.4, "42"],
    [1234, "1.2k"],
  ])("%d reads %s", (value, text) => expect(formatRate(value)).toBe(text));
});

describe("formatShare", () => {
  it.each([
    [0, "0 %"],
    [0.0001, "<0.1 %"],
    [0.012, "1.2 %"],
    [0.5, "50 %"],
    [0.9996, "99.9 %"],
    [1, "100 %"],
    [1.25, "125 %"],
  ])("%d reads %s", (value, text) => expect(formatShare(value)).toBe(text));
});

describe("formatDuration", () => {
  it.each([
    [0, "0 ms"],
    [-5, "0 ms"],
    [340, "340 ms"],
    [999.7, "1 s"],
    [1523, "1.5 s"],
    [9_960, "10 s"],
    [42_000, "42 s"],
    [59_700, "1 min"],
    [200_000, "3 min 20 s"],
    [7_500_000, "2 h 5 min"],
    [367_200_000, "4 d 6 h"],
  ])("%d ms reads %s", (value, text) => expect(formatDuration(value)).toBe(text));
});

describe("formatAgo", () => {
  it.each([
    [0, "just now"],
    [999, "just now"],
    [12_900, "12 s ago"],
    [180_000, "3 min ago"],
    [7_300_000, "2 h ago"],
  ])("%d ms reads %s", (value, text) => expect(formatAgo(value)).toBe(text));
});

describe("formatBytes", () => {
  it.each([
    [0, "0 B"],
    [512, "512 B"],
    [1024, "1 KiB"],
    [1536, "1.5 KiB"],
    [64 * 2 ** 20, "64 MiB"],
    [null, UNKNOWN],
  ])("%s reads %s", (value, text) => expect(formatBytes(value)).toBe(text));
});

it("omits the day if it is today", () => {
  const now = new Date(2026, 10, 15, 20, 0, 5).getTime() / 1000;
  expect(formatDayTime(now, now)).not.toContain("15");
  expect(formatDayTime(now - 3 * 86_400, now)).toContain("12");
});

it("forms plurals", () => {
  expect([formatPlural(1, "row"), formatPlural(2, "row"), formatPlural(3, "class")]).toEqual(["1 row", "2 rows", "3 classes"]);
});

it("formats UTC for hover texts", () => {
  expect(formatUtcTime(Date.parse("2026-11-15T20:00:05Z") / 1000)).toBe("2026-11-15 20:00:05 UTC");
});
