import { describe, expect, it } from "vitest";
import { START } from "./fixtures";
import { customRange, DEFAULT_PRESET, parseRange, pickResolution, PRESETS, type Range, rangeParams, rangeQuery, SHORTEST_S, zoomRange } from "./range";

const roundTrip = (range: Range) => {
  const given = Object.entries(rangeParams(range)).filter((entry): entry is [string, string] => entry[1] !== null);
  return parseRange(new URLSearchParams(given));
};

describe("in the URL", () => {
  it.each(PRESETS.map((preset) => [preset.id, preset] as const))("keeps %s", (_, preset) => {
    expect(roundTrip({ kind: "last", preset })).toEqual({ kind: "last", preset });
  });

  it("keeps a fixed interval", () => {
    const range: Range = { kind: "between", start: START, end: START + 90 };
    expect(roundTrip(range)).toEqual(range);
  });

  it.each(["", "range=3w", "start=2026-11-15T20:00:00Z", "start=b&end=a", "start=2026-11-15T20:00:00Z&end=2026-11-15T19:00:00Z"])(
    "falls back to the default for “%s”",
    (search) => expect(parseRange(new URLSearchParams(search))).toEqual({ kind: "last", preset: DEFAULT_PRESET }),
  );
});

describe("a history request", () => {
  const now = START;
  const ago = (days: number, seconds: number): Range => ({ kind: "between", start: now - days * 86_400, end: now - days * 86_400 + seconds });

  it.each([
    ["5m", "5s"],
    ["30m", "5s"],
    ["2h", "10s"],
    ["24h", "2m"],
    ["7d", "15m"],
    ["30d", "1h"],
    ["90d", "6h"],
  ])("for the last %s uses a resolution of %s", (id, step) => {
    const preset = PRESETS.find((each) => each.id === id) ?? DEFAULT_PRESET;
    expect(pickResolution({ kind: "last", preset }, now)).toBe(step);
  });

  it("uses no finer resolution than is kept for that time", () => {
    expect(pickResolution(ago(1, 600), now)).toBe("5s");
    expect(pickResolution(ago(3, 600), now)).toBe("1m");
    expect(pickResolution(ago(60, 600), now)).toBe("1h");
  });

  it("never ends in the future", () => {
    expect(rangeQuery({ kind: "between", start: now - 60, end: now + 60 }, now)).toBe(
      "start=2026-11-15T19:59:00Z&end=2026-11-15T20:00:00Z&resolution=5s",
    );
  });
});

describe("zooming", () => {
  it("accepts a drag in either direction", () => {
    expect(customRange(START + 100.4, START + 0.6)).toEqual({ kind: "between", start: START, end: START + 101 });
  });

  it("keeps a minimum length", () => {
    expect(customRange(START, START + 1)).toEqual({ kind: "between", start: START + 1 - SHORTEST_S, end: START + 1 });
  });

  it("keeps the position of the time at the crosshair", () => {
    expect(zoomRange({ start: START, end: START + 400 }, 0.5, START + 100, START + 400)).toEqual({ kind: "between", start: START + 50, end: START + 250 });
  });

  it("zooms out up to now", () => {
    expect(zoomRange({ start: START, end: START + 400 }, 2, START + 200, START + 400)).toEqual({ kind: "between", start: START - 400, end: START + 400 });
  });
});
