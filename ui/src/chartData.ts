/**
 * Converts history from the API to the data of the charts. Pure; independent of uPlot and of components.
 *
 * Guarantees:
 * - a null stays a null, and missing points become nulls, so gaps are drawn as gaps;
 * - final and provisional points never mix: each line has two arrays, `final` and `provisional`;
 * - a zero count after the watermark means "not known yet", so it is dropped instead of drawn as zero.
 */
import type { History, MetricPoint } from "./apiTypes";

export type Values = (number | null)[];

export interface Line {
  /** Final values; null where there is none. */
  final: Values;
  /** Values that may still increase, preceded by the last final one so that both strokes meet. */
  provisional: Values;
}

const RATES = {
  enqueued: (p: MetricPoint) => p.throughput.enqueued,
  started: (p: MetricPoint) => p.throughput.dequeued,
  completed: (p: MetricPoint) => p.throughput.completed,
  buried: (p: MetricPoint) => p.failures.dlq,
  retried: (p: MetricPoint) => p.failures.nack,
  expired: (p: MetricPoint) => p.failures.ttl_expired,
  // Stacked bars: each is drawn behind the one below it.
  retriedTop: (p: MetricPoint) => sum(p.failures.dlq, p.failures.nack),
  expiredTop: (p: MetricPoint) => sum(p.failures.dlq, p.failures.nack, p.failures.ttl_expired),
};

const GAUGES = {
  warm: (p: MetricPoint) => p.queue_depth.warm,
  cold: (p: MetricPoint) => p.queue_depth.cold,
  depth: (p: MetricPoint) => p.queue_depth.last,
  peak: (p: MetricPoint) => p.queue_depth.max,
  bytes: (p: MetricPoint) => p.queue_depth.max_bytes,
  running: (p: MetricPoint) => p.concurrency.max,
  limit: (p: MetricPoint) => p.concurrency.limit,
  utilization: (p: MetricPoint) => p.concurrency.utilization_pct,
  age: (p: MetricPoint) => p.latency.max_age_ms,
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

/** Add counts; null if one is unknown. */
function sum(...counts: (number | null)[]): number | null {
  return counts.reduce((total, count) => (total === null || count === null ? null : total + count), 0);
}

export type LineName = keyof typeof RATES | keyof typeof GAUGES;

export interface ChartData {
  /** Start of each bucket, epoch seconds, ascending, on the grid. */
  times: number[];
  start: number;
  end: number;
  resolutionS: number;
  /** Epoch seconds up to which everything is final; null when nothing is. */
  finalUntil: number | null;
  lines: Record<LineName, Line>;
}

const RESOLUTION = /^(\d+)(s|m|h|d)$/;
const UNIT_S = { s: 1, m: 60, h: 3600, d: 86_400 } as const;

/** Parse a resolution: "5s" → 5, "1m" → 60. Throws RangeError on anything else, because every rate would be wrong. */
export function resolutionSeconds(resolution: string): number {
  const match = RESOLUTION.exec(resolution);
  const seconds = match ? Number(match[1]) * UNIT_S[match[2] as keyof typeof UNIT_S] : 0;
  if (seconds <= 0) throw new RangeError(`unknown resolution “${resolution}”`);
  return seconds;
}

export function toChartData(history: History): ChartData {
  const resolutionS = resolutionSeconds(history.resolution);
  const finalUntil = history.watermark === null ? null : epochSeconds(history.watermark);
  const points = fillGaps(history.timeseries, resolutionS);
  const isFinal = points.map(({ point }) => point?.complete === true);

  const counter = (read: (point: MetricPoint) => number | null) =>
    splitLine(
      points.map(({ at, point }) => {
        if (point === null) return null;
        const value = read(point);
        const unknown = value === null || (value === 0 && (finalUntil === null || at >= finalUntil));
        return unknown ? null : value / resolutionS;
      }),
      isFinal,
    );
  const gauge = (read: (point: MetricPoint) => number | null) =>
    splitLine(
      points.map(({ point }) => (point === null ? null : read(point))),
      isFinal,
    );
  const lines = Object.fromEntries([
    ...Object.entries(RATES).map(([name, read]) => [name, counter(read)]),
    ...Object.entries(GAUGES).map(([name, read]) => [name, gauge(read)]),
  ]) as Record<LineName, Line>;

  return {
    times: points.map(({ at }) => at),
    start: epochSeconds(history.period.start),
    end: epochSeconds(history.period.end),
    resolutionS,
    finalUntil,
    lines,
  };
}

/** Return the value of a line at a point: the final one, else the provisional one. */
export function valueAt(line: Line, index: number): number | null {
  return line.final[index] ?? line.provisional[index] ?? null;
}

/** Return the index of the newest point at which any of the lines has a value; -1 if none has. */
export function lastIndex(lines: readonly Line[], kind: "final" | "any" = "any"): number {
  const length = lines[0]?.final.length ?? 0;
  for (let index = length - 1; index >= 0; index -= 1) {
    const known = lines.some((line) => (kind === "any" ? valueAt(line, index) : (line.final[index] ?? null)) !== null);
    if (known) return index;
  }
  return -1;
}

export function hasValues(line: Line): boolean {
  return line.final.some((v) => v !== null) || line.provisional.some((v) => v !== null);
}

/** Return the points without neighbours. A line cannot show them, so the chart draws dots. */
export function isolatedIndexes(values: ArrayLike<number | null | undefined>): number[] {
  const indexes: number[] = [];
  for (let index = 0; index < values.length; index += 1) {
    const known = (at: number) => values[at] !== null && values[at] !== undefined;
    if (known(index) && !known(index - 1) && !known(index + 1)) indexes.push(index);
  }
  return indexes;
}

interface GridPoint {
  at: number;
  point: MetricPoint | null;
}

/** Sort the points, and insert an unknown point into each gap, so that no line bridges it. */
function fillGaps(timeseries: readonly MetricPoint[], resolutionS: number): GridPoint[] {
  const sorted = timeseries.map((point) => ({ at: epochSeconds(point.timestamp), point })).sort((a, b) => a.at - b.at);
  const filled: GridPoint[] = [];
  for (const entry of sorted) {
    const previous = filled.at(-1);
    if (previous !== undefined && entry.at - previous.at > resolutionS * 1.5) {
      // One unknown point breaks the line, however long the gap.
      filled.push({ at: previous.at + resolutionS, point: null });
    }
    filled.push(entry);
  }
  return filled;
}

function splitLine(values: Values, isFinal: readonly boolean[]): Line {
  const final = values.map((value, index) => (isFinal[index] ? value : null));
  const provisional = values.map((value, index) => (isFinal[index] ? null : value));
  const firstProvisional = isFinal.indexOf(false);
  if (firstProvisional > 0) provisional[firstProvisional - 1] = final[firstProvisional - 1] ?? null;
  return { final, provisional };
}

export function epochSeconds(iso: string): number {
  return Date.parse(iso) / 1000;
}
