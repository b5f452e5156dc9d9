/**
 * From the API's answer to what the charts draw. Pure: takes data, returns data, knows neither uPlot nor the page.
 *
 * What it promises about truth:
 * - a null stays a null, and a missing step of the grid becomes one, so gaps are drawn as gaps;
 * - a point that the pipeline has not finished never mixes with final ones: each line comes as two arrays, `settled` and `unfinished`;
 * - past the watermark a counter of zero means "nothing known yet", so it is dropped instead of drawn as a dive to zero.
 */
import type { History, MetricPoint } from "./apiTypes";

export type Values = (number | null)[];

export interface Line {
  /** Final values; null where there is none. */
  settled: Values;
  /** Values still growing, with the last final one repeated so that both strokes meet. */
  unfinished: Values;
}

const PER_SECOND = {
  enqueued: (p: MetricPoint) => p.throughput.enqueued,
  started: (p: MetricPoint) => p.throughput.dequeued,
  completed: (p: MetricPoint) => p.throughput.completed,
  buried: (p: MetricPoint) => p.failures.dlq,
  retried: (p: MetricPoint) => p.failures.nack,
  expired: (p: MetricPoint) => p.failures.ttl_expired,
  // Bars that stand on each other: each is drawn behind the one below it.
  retriedTop: (p: MetricPoint) => sum(p.failures.dlq, p.failures.nack),
  expiredTop: (p: MetricPoint) => sum(p.failures.dlq, p.failures.nack, p.failures.ttl_expired),
};

const AS_IT_IS = {
  warm: (p: MetricPoint) => p.queue_depth.warm,
  cold: (p: MetricPoint) => p.queue_depth.cold,
  depth: (p: MetricPoint) => p.queue_depth.last,
  peak: (p: MetricPoint) => p.queue_depth.max,
  bytes: (p: MetricPoint) => p.queue_depth.max_bytes,
  running: (p: MetricPoint) => p.concurrency.max,
  limit: (p: MetricPoint) => p.concurrency.limit,
  utilization: (p: MetricPoint) => p.concurrency.utilization_pct,
  waitP50: (p: MetricPoint) => p.percentiles.wait_ms.p50,
  waitP95: (p: MetricPoint) => p.percentiles.wait_ms.p95,
  waitP99: (p: MetricPoint) => p.percentiles.wait_ms.p99,
  runP50: (p: MetricPoint) => p.percentiles.run_ms.p50,
  runP95: (p: MetricPoint) => p.percentiles.run_ms.p95,
  runP99: (p: MetricPoint) => p.percentiles.run_ms.p99,
  failureRate: (p: MetricPoint) => {
    const failed = sum(p.failures.nack, p.failures.dlq);
    return failed === null || p.throughput.dequeued === null || p.throughput.dequeued === 0 ? null : failed / p.throughput.dequeued;
  },
};

/** Null if a count is unknown. */
function sum(...counts: (number | null)[]): number | null {
  return counts.reduce((total, count) => (total === null || count === null ? null : total + count), 0);
}

export type LineName = keyof typeof PER_SECOND | keyof typeof AS_IT_IS;

export interface Frame {
  /** Start of each bucket, epoch seconds, ascending, on the grid. */
  times: number[];
  start: number;
  end: number;
  resolutionS: number;
  /** Epoch seconds up to which everything is final; null when nothing is. */
  settledUntil: number | null;
  lines: Record<LineName, Line>;
}

const RESOLUTION = /^(\d+)(s|m|h|d)$/;
const UNIT_S = { s: 1, m: 60, h: 3600, d: 86_400 } as const;

/** "5s" → 5, "1m" → 60; throws RangeError on anything else, because every rate would be wrong. */
export function resolutionSeconds(resolution: string): number {
  const match = RESOLUTION.exec(resolution);
  const seconds = match ? Number(match[1]) * UNIT_S[match[2] as keyof typeof UNIT_S] : 0;
  if (seconds <= 0) throw new RangeError(`unknown resolution “${resolution}”`);
  return seconds;
}

export function toFrame(history: History): Frame {
  const resolutionS = resolutionSeconds(history.resolution);
  const settledUntil = history.watermark === null ? null : epochSeconds(history.watermark);
  const points = onGrid(history.timeseries, resolutionS);
  const isSettled = points.map(({ point }) => point?.complete === true);

  const counter = (read: (point: MetricPoint) => number | null) =>
    splitLine(
      points.map(({ at, point }) => {
        if (point === null) return null;
        const value = read(point);
        const unknown = value === null || (value === 0 && (settledUntil === null || at >= settledUntil));
        return unknown ? null : value / resolutionS;
      }),
      isSettled,
    );
  const gauge = (read: (point: MetricPoint) => number | null) =>
    splitLine(
      points.map(({ point }) => (point === null ? null : read(point))),
      isSettled,
    );
  const lines = Object.fromEntries([
    ...Object.entries(PER_SECOND).map(([name, read]) => [name, counter(read)]),
    ...Object.entries(AS_IT_IS).map(([name, read]) => [name, gauge(read)]),
  ]) as Record<LineName, Line>;

  return {
    times: points.map(({ at }) => at),
    start: epochSeconds(history.period.start),
    end: epochSeconds(history.period.end),
    resolutionS,
    settledUntil,
    lines,
  };
}

/** The value of a line at a point: the final one, else the unfinished one. */
export function valueAt(line: Line, index: number): number | null {
  return line.settled[index] ?? line.unfinished[index] ?? null;
}

/** Index of the newest point at which any of the lines has a value; -1 when none has. */
export function lastIndex(lines: readonly Line[], kind: "settled" | "any" = "any"): number {
  const length = lines[0]?.settled.length ?? 0;
  for (let index = length - 1; index >= 0; index -= 1) {
    const known = lines.some((line) => (kind === "any" ? valueAt(line, index) : (line.settled[index] ?? null)) !== null);
    if (known) return index;
  }
  return -1;
}

export function hasValues(line: Line): boolean {
  return line.settled.some((v) => v !== null) || line.unfinished.some((v) => v !== null);
}

/** Points with nothing on either side: a line cannot show them, so the chart marks them with a dot. */
export function isolatedIndexes(values: ArrayLike<number | null | undefined>): number[] {
  const found: number[] = [];
  for (let index = 0; index < values.length; index += 1) {
    const known = (at: number) => values[at] !== null && values[at] !== undefined;
    if (known(index) && !known(index - 1) && !known(index + 1)) found.push(index);
  }
  return found;
}

interface GridPoint {
  at: number;
  point: MetricPoint | null;
}

/** Puts the points in order and fills missing steps with "unknown", so that a line never bridges a hole. */
function onGrid(timeseries: readonly MetricPoint[], resolutionS: number): GridPoint[] {
  const sorted = timeseries.map((point) => ({ at: epochSeconds(point.timestamp), point })).sort((a, b) => a.at - b.at);
  const filled: GridPoint[] = [];
  for (const entry of sorted) {
    const previous = filled.at(-1);
    if (previous !== undefined && entry.at - previous.at > resolutionS * 1.5) {
      // One unknown point breaks the line, however long the hole: no need to fill it step by step.
      filled.push({ at: previous.at + resolutionS, point: null });
    }
    filled.push(entry);
  }
  return filled;
}

function splitLine(values: Values, isSettled: readonly boolean[]): Line {
  const settled = values.map((value, index) => (isSettled[index] ? value : null));
  const unfinished = values.map((value, index) => (isSettled[index] ? null : value));
  const firstUnfinished = isSettled.indexOf(false);
  if (firstUnfinished > 0) unfinished[firstUnfinished - 1] = settled[firstUnfinished - 1] ?? null;
  return { settled, unfinished };
}

export function epochSeconds(iso: string): number {
  return Date.parse(iso) / 1000;
}
