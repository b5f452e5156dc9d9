/** Time range of the charts: a preset such as the last 30 minutes, or a fixed interval. Pure. */
import type { Params } from "./router";

export interface Preset {
  /** Value in the URL and of the API parameter `period`. */
  id: string;
  label: string;
  spoken: string;
  seconds: number;
}

export const PRESETS = [
  { id: "5m", label: "5 min", spoken: "5 minutes", seconds: 300 },
  { id: "30m", label: "30 min", spoken: "30 minutes", seconds: 1800 },
  { id: "2h", label: "2 h", spoken: "2 hours", seconds: 7200 },
  { id: "24h", label: "24 h", spoken: "24 hours", seconds: 86_400 },
  { id: "7d", label: "7 d", spoken: "7 days", seconds: 7 * 86_400 },
  { id: "30d", label: "30 d", spoken: "30 days", seconds: 30 * 86_400 },
  { id: "90d", label: "90 d", spoken: "90 days", seconds: 90 * 86_400 },
] as const satisfies readonly Preset[];

export const DEFAULT_PRESET: Preset = PRESETS[1];

export interface Interval {
  /** Epoch seconds. */
  start: number;
  end: number;
}

export type Range = { kind: "last"; preset: Preset } | ({ kind: "between" } & Interval);

export const SHORTEST_S = 30;
export const LONGEST_S = 400 * 86_400;

export function parseRange(params: URLSearchParams): Range {
  const start = Date.parse(params.get("start") ?? "") / 1000;
  const end = Date.parse(params.get("end") ?? "") / 1000;
  if (start < end) return { kind: "between", start, end };
  return { kind: "last", preset: PRESETS.find((preset) => preset.id === params.get("range")) ?? DEFAULT_PRESET };
}

export function rangeParams(range: Range): Params {
  if (range.kind === "last") return { range: range.preset.id, start: null, end: null };
  return { range: null, start: iso(range.start), end: iso(range.end) };
}

export function rangeKey(range: Range): string {
  return range.kind === "last" ? range.preset.id : `${range.start}-${range.end}`;
}

export function rangeSeconds(range: Range): number {
  return range.kind === "last" ? range.preset.seconds : range.end - range.start;
}

/** Describe the range for screen readers: "last 30 minutes". */
export function describeRange(range: Range): string {
  return range.kind === "last" ? `last ${range.preset.spoken}` : "selected range";
}

export function rangeLabel(range: Range): string {
  return range.kind === "last" ? range.preset.label : "this range";
}

/** Return the refresh interval. Long ranges have larger responses, and a pixel covers more than a refresh. */
export function refreshIntervalMs(range: Range): number {
  const seconds = rangeSeconds(range);
  if (seconds <= 1800) return 2000;
  return seconds <= 7200 ? 5000 : 30_000;
}

/** Build a fixed range from two times in any order, at least SHORTEST_S long. It is extended at its start, never at its end. */
export function customRange(a: number, b: number): Range {
  const start = Math.floor(Math.min(a, b));
  const end = Math.ceil(Math.max(a, b));
  const missing = Math.max(0, SHORTEST_S - (end - start));
  return { kind: "between", start: start - missing, end };
}

/** Scale an interval by `factor` around a time that keeps its relative position; the end is at most `now`. */
export function zoomRange(interval: Interval, factor: number, around: number, now: number): Range {
  const span = Math.min(LONGEST_S / 2, Math.max(SHORTEST_S, (interval.end - interval.start) * factor));
  const share = (around - interval.start) / Math.max(1, interval.end - interval.start);
  const end = Math.min(now, around + span * (1 - share));
  return customRange(end - span, end);
}

const MAX_POINTS = 730;
/** Resolutions of the API, and how long their tier is kept: the API refuses a finer one for older data. */
const STEPS: readonly (readonly [seconds: number, text: string, keptS: number])[] = [
  [5, "5s", 2 * 86_400],
  [10, "10s", 2 * 86_400],
  [30, "30s", 2 * 86_400],
  [60, "1m", 31 * 86_400],
  [120, "2m", 31 * 86_400],
  [300, "5m", 31 * 86_400],
  [600, "10m", 31 * 86_400],
  [900, "15m", 31 * 86_400],
  [1800, "30m", 31 * 86_400],
  [3600, "1h", LONGEST_S],
  [7200, "2h", LONGEST_S],
  [6 * 3600, "6h", LONGEST_S],
  [12 * 3600, "12h", LONGEST_S],
  [86_400, "1d", LONGEST_S],
];
const MARGIN_S = 3600;

/** Pick the finest resolution with at most MAX_POINTS points that is kept for the whole range. */
export function pickResolution(range: Range, now: number): string {
  const seconds = rangeSeconds(range);
  const age = (range.kind === "last" ? seconds : now - range.start) + MARGIN_S;
  const step = STEPS.find(([length, , kept]) => seconds / length <= MAX_POINTS && age <= kept);
  return step?.[1] ?? "1d";
}

/** Build the query parameters of a history request. */
export function rangeQuery(range: Range, now: number): string {
  const when = range.kind === "last" ? `period=${range.preset.id}` : `start=${iso(range.start)}&end=${iso(Math.min(range.end, now))}`;
  return `${when}&resolution=${pickResolution(range, now)}`;
}

function iso(epochSeconds: number): string {
  return new Date(epochSeconds * 1000).toISOString().replace(".000Z", "Z");
}
