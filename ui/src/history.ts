/**
 * Load history in columns, and of a range that is already shown only the points that may have changed. Independent of components.
 */
import type { History, HistoryColumns, MetricPoint } from "./apiTypes";
import { epochSeconds } from "./chartData";

/** Fields of points that the charts of a queue draw, and the values of the whole range. */
export const QUEUE_FIELDS = [
  ...["throughput.enqueued", "throughput.dequeued", "throughput.completed", "failures", "latency.max_age_ms"],
  ...["queue_depth.max", "queue_depth.last", "queue_depth.warm", "queue_depth.cold", "queue_depth.max_bytes"],
  ...["concurrency.max", "concurrency.limit", "percentiles", "headline"],
].join(",");

export const ENVIRONMENT_FIELDS = [
  ...["throughput.enqueued", "throughput.dequeued", "throughput.completed", "failures", "latency.max_age_ms"],
  ...["queue_depth.max", "queue_depth.last", "concurrency.max", "concurrency.utilization_pct", "percentiles.wait_ms.p95", "headline"],
].join(",");

/** Final points do not change, except by a backfill, which `generation` shows. All are loaded again after this time nevertheless. */
const RELOAD_MS = 300_000;

/** Columns of a response; `fields` omits sections and fields. */
type Columns = Partial<Record<string, unknown>>;
type Cell = number | null;

/** Convert columns to points. Fields that were not requested are null. */
export function toHistory({ columns, ...rest }: HistoryColumns): History {
  const start = epochSeconds(columns.start);
  const points = columns.complete.map((complete, index) => readPoint(columns, index, start + index * columns.step_s, complete));
  return { ...rest, timeseries: points };
}

function readPoint(columns: HistoryColumns["columns"], index: number, at: number, complete: boolean): MetricPoint {
  const cell = (section: unknown, name: string): Cell => {
    const column = (section as Columns | undefined)?.[name];
    return Array.isArray(column) ? ((column[index] as Cell | undefined) ?? null) : null;
  };
  const pick = <Name extends string>(section: unknown, ...names: Name[]) =>
    Object.fromEntries(names.map((name) => [name, cell(section, name)])) as Record<Name, Cell>;
  const { percentiles } = columns as { percentiles?: { wait_ms?: unknown; run_ms?: unknown } };
  return {
    timestamp: new Date(at * 1000).toISOString().replace(".000Z", "Z"),
    complete,
    throughput: pick(columns.throughput, "enqueued", "dequeued", "completed", "enqueued_per_s", "dequeued_per_s", "completed_per_s"),
    queue_depth: pick(columns.queue_depth, "max", "last", "warm", "cold", "scheduled", "bytes", "max_bytes"),
    latency: pick(columns.latency, "avg_wait_ms", "max_age_ms", "avg_run_ms"),
    percentiles: { wait_ms: pick(percentiles?.wait_ms, "p50", "p90", "p95", "p99"), run_ms: pick(percentiles?.run_ms, "p50", "p90", "p95", "p99") },
    concurrency: pick(columns.concurrency, "max", "last", "limit", "utilization_pct"),
    failures: pick(columns.failures, "nack", "dlq", "ttl_expired"),
    moves: pick(columns.moves, "spilled", "refilled", "reclaimed", "released", "redriven", "cancelled", "deferred"),
  };
}

/** Put new points behind the known ones of their range. Return null if the known ones may have changed, or do not fit. */
export function appendPoints(known: History, update: History): History | null {
  if (known.generation !== update.generation || known.resolution !== update.resolution) return null;
  const start = epochSeconds(update.period.start);
  const from = update.timeseries[0] === undefined ? epochSeconds(update.period.end) : epochSeconds(update.timeseries[0].timestamp);
  const kept = known.timeseries.filter(({ timestamp }) => epochSeconds(timestamp) >= start && epochSeconds(timestamp) < from);
  const missing = kept[0] === undefined ? from > start : epochSeconds(kept[0].timestamp) > start;
  return missing ? null : { ...update, timeseries: [...kept, ...update.timeseries] };
}

interface Known {
  key: string;
  history: History;
  loadedAt: number;
}

export type HistoryLoader = (key: string, get: (more: string) => Promise<HistoryColumns>) => Promise<History>;

/**
 * Return a function that loads the history of a range: first all of it, then, for the same `key`, only points that end after the
 * watermark of the previous response. `get` sends a request with additional parameters.
 */
export function makeHistoryLoader(now: () => number = () => performance.now()): HistoryLoader {
  let known: Known | null = null;
  return async (key, get) => {
    const before = known;
    if (before !== null && before.key === key && before.history.watermark !== null && now() - before.loadedAt < RELOAD_MS) {
      const update = toHistory(await get(`&since=${encodeURIComponent(before.history.watermark)}`));
      const history = appendPoints(before.history, update);
      if (history !== null) {
        known = { ...before, history };
        return history;
      }
    }
    const history = toHistory(await get(""));
    known = { key, history, loadedAt: now() };
    return history;
  };
}
